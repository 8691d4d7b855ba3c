"""Time on the device's own clock, its peak, and what a row of the table holds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long steps took.

    Attributes:
        seconds: of a step, the median.
        spread: between the slowest and the fastest of the middle half of all steps, over the median.
        first_seconds: of the first step, which compiles where something is compiled.
        steps: how many were timed.
        peak_gib: the most memory allocated during them; None where the device does not say.
    """

    seconds: float
    spread: float
    first_seconds: float
    steps: int
    peak_gib: float | None


class Clock:
    """Marks in the device's stream of work, and the seconds between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Note where the work stands; the host waits for nothing."""
        if self._device.type != "cuda":
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def intervals(self) -> list[float]:
        """Wait for the device, and give the seconds between neighbouring marks."""
        wait_for(self._device)
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._device.type != "cuda":
            return [after - before for before, after in pairs]
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


def wait_for(device: torch.device) -> None:
    """Let the host wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Give a GPU's memory back that nothing holds any more, and forget its peak."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def time_steps(
    step: Callable[[], object], *, device: torch.device, warmup: int, seconds: float, most: int = 50
) -> Timing:
    """Time a step again and again.

    Args:
        step: what is timed.
        device: where it works.
        warmup: steps before the first that counts, at least 2.
        seconds: for which steps are timed, about; never fewer than 3.
        most: steps that are timed.
    """
    first = _seconds_of(step, device)
    for _ in range(warmup - 2):
        step()
    usual = _seconds_of(step, device)
    count = max(3, min(most, int(seconds / usual)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    clock = Clock(device)
    clock.mark()
    for _ in range(count):
        step()
        clock.mark()
    taken = sorted(clock.intervals())
    median = statistics.median(taken)
    middle = taken[count // 4 : count - count // 4]
    return Timing(
        seconds=median,
        spread=(middle[-1] - middle[0]) / median,
        first_seconds=first,
        steps=count,
        peak_gib=torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None,
    )


def _seconds_of(step: Callable[[], object], device: torch.device) -> float:
    wait_for(device)
    start = time.perf_counter()
    step()
    wait_for(device)
    return time.perf_counter() - start


def matrix_peak(device: torch.device, *, size: int) -> float:
    """Time a bfloat16 matrix product of random numbers: operations a second."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    timing = time_steps(lambda: torch.mm(left, right, out=out), device=device, warmup=5, seconds=0.5)
    return 2 * size**3 / timing.seconds
