"""What asks a run to stop: signals, and a limit of time; every process hears of it at the same step or batch.

Nothing is saved inside a handler: a signal is remembered until the step, or a batch of an evaluation, has ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from transformer_xl.errors import Stopped

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 75}

_OUT_OF_TIME = -1  # a reason beside the signals' numbers
_REASONS = (0, _OUT_OF_TIME, *sorted(EXIT_CODES))
"""Of several processes' reasons the last one here counts."""


class StopSignals:
    """Ends the run where it is when a signal comes; while training or evaluating, remembers it until the batch ends.

    A signal that this process was started to ignore, as by `nohup`, stays ignored; outside of the main thread, where
    Python knows no handlers, all are as they were.

    Attributes:
        received: the first signal that came; None: none did.
    """

    def __init__(self, *, speaks: bool = False) -> None:
        """Take whether this process answers a signal on the screen: one of several does."""
        self.received: signal.Signals | None = None
        self._speaks = speaks
        self._is_held = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        """Take over the signals."""
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in EXIT_CODES if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Remember the signals that come from here on."""
        self._is_held = True

    def release(self) -> None:
        """Obey at once again, also a signal that came since training last looked.

        Raises:
            Stopped: there was one.
        """
        self._is_held = False
        if self.received is not None:
            raise stopped_by(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                os._exit(EXIT_CODES[signal.SIGINT])
            return
        self.received = signal.Signals(number)
        if not self._is_held:
            raise stopped_by(self.received)
        if self._speaks:
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self.received.name}: stopping after this batch; Ctrl-C ends at once\n".encode())


def stopped_by(received: signal.Signals) -> Stopped:
    """Return what says that a signal ended the run where it was."""
    return Stopped(f"stopped by {received.name} outside of training's steps", exit_code=EXIT_CODES[received])


class Stops:
    """Says after each step whether the run shall end there.

    Args:
        signals: which ask for a stop.
        min_steps: before which the time limit does not stop the run.
        max_steps: the last step, at which nothing needs to be stopped for being late.
        max_seconds: the run stops at the first step after so much time in this process; None: no limit.
    """

    def __init__(self, *, signals: StopSignals, min_steps: int, max_steps: int, max_seconds: float | None) -> None:
        self._signals = signals
        self._min_steps = min_steps
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._started = math.inf

    def start_clock(self) -> None:
        """Count the time limit from now."""
        self._started = monotonic()

    def agreed_reason(self, trainer: Trainer, step: int) -> int:
        """Return 0, or a reason to stop after this step: the same on all processes."""
        reason = int(self._signals.received or 0)
        is_late = self._max_seconds is not None and monotonic() - self._started > self._max_seconds
        if not reason and is_late and self._min_steps <= step < self._max_steps:
            reason = _OUT_OF_TIME
        return self._agreed(trainer, reason)

    def agreed_signal(self, trainer: Trainer) -> int:
        """Return 0, or the number of a signal that ends an evaluation after this batch: the same on all processes."""
        return self._agreed(trainer, int(self._signals.received or 0))

    def _agreed(self, trainer: Trainer, reason: int) -> int:
        if trainer.world_size > 1:
            agreed = torch.tensor(_REASONS.index(reason), device=trainer.strategy.root_device)
            torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MAX)
            reason = _REASONS[int(agreed)]
        return reason


def in_words(reason: int) -> str:
    """Name what stopped the run."""
    return "trainer.max_time" if reason == _OUT_OF_TIME else signal.Signals(reason).name


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
