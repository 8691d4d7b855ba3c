"""Time on the device's own clock, and its peak."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch


def free(device: torch.device) -> None:
    """Return a GPU's memory that nothing holds any more, and forget its peak."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def time_steps(
    step: Callable[[], object], *, device: torch.device, warmup: int, seconds: float, most: int = 50
) -> dict[str, Any]:
    """Time a step again and again.

    Args:
        step: what is timed.
        device: where it works.
        warmup: steps before the first that counts, at least 2.
        seconds: for which steps are timed, about; never fewer than 3.
        most: steps that are timed.

    Returns:
        `ms`: median of a step; `spread`: between the slowest and the fastest of the middle half, over the median;
        `first step s`: it compiles; `steps`: how many were timed; `GiB`: the most memory allocated, where it is known.
    """
    first, *_, usual = (_seconds_of(step, device) for _ in range(warmup))
    count = max(3, min(most, int(seconds / usual)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        taken = sorted(_on_cuda(step, count))
    else:
        taken = sorted(_seconds_of(step, device) for _ in range(count))
    median = statistics.median(taken)
    middle = taken[count // 4 : count - count // 4]
    return {
        "ms": 1000 * median,
        "spread": (middle[-1] - middle[0]) / median,
        "GiB": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        "first step s": first,
        "steps": count,
    }


def _on_cuda(step: Callable[[], object], count: int) -> list[float]:
    """Return the seconds between marks in the device's stream of work, for which the host does not wait."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]


def _seconds_of(step: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def matrix_peak(device: torch.device, *, size: int) -> float:
    """Return the operations per second of a bfloat16 matrix product of random numbers."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    timing = time_steps(lambda: torch.mm(left, right, out=out), device=device, warmup=5, seconds=0.5)
    return 2000 * size**3 / float(timing["ms"])
