"""The clock behind tokens per second."""

from __future__ import annotations

import time


class Stopwatch:
    """Counts the seconds between `start` and now, without those between `pause` and `resume`."""

    def __init__(self) -> None:
        self._running = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Begin, or go on after `pause`; does nothing while running."""
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop counting until the next `start`."""
        if self._since is not None:
            self._running += time.perf_counter() - self._since
            self._since = None

    def lap(self) -> float:
        """Give the seconds counted since the last lap, and begin another."""
        now = time.perf_counter()
        seconds = self._running
        if self._since is not None:
            seconds += now - self._since
            self._since = now
        self._running = 0.0
        return seconds
