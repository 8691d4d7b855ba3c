"""Keeps Lightning's own signal handlers out of a run."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector


class _NoHandlers(_SignalConnector):
    def register_signal_handlers(self) -> None:
        pass


def leave_signals_alone(trainer: Trainer) -> None:
    """Keep Lightning from handling signals: its SIGTERM handler waits, inside the handler, for the other processes.

    With it goes the question to the first process, before each batch, whether it has had one; each process would wait
    for its device to answer.
    """
    trainer._signal_connector = _NoHandlers(trainer)
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _ask_nothing  # type: ignore[method-assign]


def _ask_nothing() -> None:
    pass
