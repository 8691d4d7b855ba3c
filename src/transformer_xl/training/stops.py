"""What asks a run to stop: signals, and a limit of time; every process hears of it at the same step."""

from __future__ import annotations

import math
import signal
from time import monotonic

import torch
from lightning.pytorch import Trainer

from transformer_xl.training.signals import StopSignals

_OUT_OF_TIME = 1  # a reason beside the signals' numbers, smaller than theirs


class Stops:
    """Says after each step whether the run shall end there; nothing is saved inside a handler."""

    def __init__(self, *, signals: StopSignals, min_steps: int, max_steps: int, max_seconds: float | None) -> None:
        """Take the limits.

        Args:
            signals: which ask for a stop.
            min_steps: before which the time limit does not stop the run.
            max_steps: the last step, at which nothing needs to be stopped for being late.
            max_seconds: the run stops at the first step after so much time in this process; None: no limit.
        """
        self._signals = signals
        self._min_steps = min_steps
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._started = math.inf

    def start_clock(self) -> None:
        """Count the time limit from now."""
        self._started = monotonic()

    def agreed_reason(self, trainer: Trainer, step: int) -> int:
        """Give 0, or a reason to stop after this step: the same on all processes."""
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
            agreed = torch.tensor(reason, device=trainer.strategy.root_device)
            torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MAX)
            reason = int(agreed)
        if reason:
            self._signals.obey()
        return reason


def in_words(reason: int) -> str:
    """Name what stopped the run."""
    return "trainer.max_time" if reason == _OUT_OF_TIME else signal.Signals(reason).name
