"""Tokens a second, and the share of the machine's peak that useful operations reach (MFU)."""

from __future__ import annotations

import time

import torch

_REPEATS = 5
_MATRIX = {"cpu": 1024}
_LARGE_MATRIX = 8192  # what a GPU needs to be busy


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Time a large matrix product in the run's precision: operations a second of one device."""
    size = _MATRIX.get(device.type, _LARGE_MATRIX)
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        float((left @ right)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


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
