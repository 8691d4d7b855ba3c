"""How far an evaluation is, and how long it will take: on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from transformer_xl.scores import Unit

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_ON_A_TERMINAL = 0.5


class EvaluationProgress:
    """Shows one reading of a split: on a terminal a line that changes, elsewhere a line now and then."""

    def __init__(self, label: str, *, total: int, unit: Unit) -> None:
        """Begin.

        Args:
            label: of the reading.
            total: predictions that will be read.
            unit: of the split's scores.
        """
        self._label = label
        self._total = total
        self._unit = unit
        self._start = time.monotonic()
        self._on_terminal = sys.stderr.isatty()
        self._interval = _SECONDS_ON_A_TERMINAL if self._on_terminal else _SECONDS_BETWEEN_LINES
        self._last = self._start

    def __call__(self, read: int, loss: Callable[[], float]) -> None:
        """Show how many predictions were read, and the loss so far, if it is time."""
        now = time.monotonic()
        if now - self._last < self._interval:
            return
        self._last = now
        seconds = now - self._start
        left = int(seconds / max(1, read) * max(0, self._total - read))
        mean = loss()
        figures = f"loss {mean:.4f}  {self._unit.name} {self._unit.of(mean):.4f} so far"
        speed = f"{read / seconds:,.0f} tokens/s  {left // 60}:{left % 60:02d} left"
        line = f"{self._label}: {read:,} of {self._total:,}  {figures}  {speed}"
        print(f"\r\x1b[K{line}" if self._on_terminal else line, end="" if self._on_terminal else "\n", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        """Clear the line."""
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
