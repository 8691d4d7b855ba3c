"""Tells a signal's watch that the run is moving."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer

from transformer_xl.training.signals import StopSignals


class Heartbeat(Callback):
    """Beats at the end of each part of a step and of each part of a validation."""

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Beat."""
        self._signals.beat()

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Beat."""
        self._signals.beat()
