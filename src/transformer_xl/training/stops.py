"""What asks a run to stop: signals, and a limit of time; every process hears of it at the same step."""

from __future__ import annotations

import math
import os
import signal
from time import monotonic
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Trainer

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
_OUT_OF_TIME = 1  # a reason beside the signals' numbers, smaller than theirs


class Stops:
    """Remembers a signal until the step that is under way has ended; nothing is saved inside a handler."""

    def __init__(self, *, min_steps: int, max_steps: int, max_seconds: float | None) -> None:
        """Take the limits.

        Args:
            min_steps: before which the time limit does not stop the run.
            max_steps: the last step, at which nothing needs to be stopped for being late.
            max_seconds: the run stops at the first step after so much time in this process; None: no limit.
        """
        self._min_steps = min_steps
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._started = math.inf
        self._signal: signal.Signals | None = None
        self._previous: dict[int, Any] = {}

    def start_clock(self) -> None:
        """Count the time limit from now."""
        self._started = monotonic()

    def take_signals(self) -> None:
        """Take over the signals that stop a run."""
        # not before Lightning has set its own handlers, which would end a run between two hooks with status 0
        for number in EXIT_CODES:
            handler = signal.signal(number, self._remember)
            self._previous.setdefault(number, handler)

    def give_signals_back(self) -> None:
        """Undo `take_signals`."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self._signal = self._signal or signal.Signals(number)

    def agreed_reason(self, trainer: Trainer, step: int) -> int:
        """Give 0, or a reason to stop after this step: the same on all processes."""
        reason = int(self._signal or 0)
        is_late = self._max_seconds is not None and monotonic() - self._started > self._max_seconds
        if not reason and is_late and self._min_steps <= step < self._max_steps:
            reason = _OUT_OF_TIME
        if trainer.world_size == 1:
            return reason
        agreed = torch.tensor(reason, device=trainer.strategy.root_device)
        torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MAX)
        return int(agreed)


def in_words(reason: int) -> str:
    """Name what stopped the run."""
    return "trainer.max_time" if reason == _OUT_OF_TIME else signal.Signals(reason).name
