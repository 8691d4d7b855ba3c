"""Tokens a second, and the share of the machine's peak that useful operations reach (MFU)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch

_REPEATS = 5
_SECONDS = 0.5
"""For so long at least a product is repeated: the best of many, since a busy machine disturbs most of them."""
_MATRIX = {"cpu": 1024}
_LARGE_MATRIX = 8192  # what a GPU needs to be busy


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Give the operations a second of one device in the run's precision: those of a large matrix product.

    It is timed once a machine and kept in a file of the user's cache folder, so that the runs of a machine report their
    MFU against one number. A file that cannot be read or written makes no difference but that it is timed again.
    """
    key = _machine(device, dtype)
    kept = _read(key)
    if kept is None:
        flops = _timed_product(device, dtype)
        kept = _read(key)  # another process may have been faster
        if kept is None:
            _write(key, flops)
            return flops
    return kept


def _timed_product(device: torch.device, dtype: torch.dtype) -> float:
    size = _MATRIX.get(device.type, _LARGE_MATRIX)
    generator = torch.Generator(device).manual_seed(0)  # of its own: a run's must not depend on what is kept
    left = torch.randn(size, size, device=device, generator=generator).to(dtype)
    right = torch.randn(size, size, device=device, generator=generator).to(dtype)
    best, repeats, began = math.inf, 0, time.perf_counter()
    while repeats < _REPEATS or time.perf_counter() - began < _SECONDS:
        start = time.perf_counter()
        float((left @ right)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
        repeats += 1
    return 2 * size**3 / best


def _machine(device: torch.device, dtype: torch.dtype) -> dict[str, str | int]:
    """Give what the time of a product depends on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {_processor()}",
        "threads": torch.get_num_threads(),
        "dtype": str(dtype),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _kept_at(key: Mapping[str, str | int]) -> Path:
    """Name the file of a machine: each has its own, so that processes write over no other's."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # which the standard says to pass over
        cache = Path.home() / ".cache"
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache / "transformer-xl-lightning" / f"peak-{name}.json"


def _read(key: Mapping[str, str | int]) -> float | None:
    try:
        content = json.loads(_kept_at(key).read_text(encoding="utf-8"))
        flops = content.pop("flops")
    except (OSError, ValueError, RecursionError, RuntimeError, KeyError, TypeError, AttributeError):
        return None  # there is none, it is damaged, or the user has no home
    return flops if content == key and type(flops) is float and 0 < flops < math.inf else None


def _write(key: Mapping[str, str | int], flops: float) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        path = _kept_at(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            temporary.write_text(json.dumps({**key, "flops": flops}, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


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
