"""The figures beside a training step's loss, which are written at intervals."""

from __future__ import annotations

import dataclasses
import math
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Trainer

from transformer_xl.scores import Unit
from transformer_xl.training import names


@dataclass
class _Window:
    """What figures over several steps need: of the steps after `since`, across fetches and resumes."""

    since: int
    clipped: int = 0
    seconds: float = 0.0


class StepFigures:
    """Works out the figures of every n-th step and of the last one, some over the steps since the n-th before."""

    def __init__(
        self,
        *,
        every_n_steps: int,
        max_steps: int,
        tokens_after: Callable[[int], int],
        flops_a_token: float,
        peak_flops: float | None,
        clip: float | None,
        unit: Unit,
    ) -> None:
        """Take what the figures need.

        Args:
            every_n_steps: between two steps that have figures.
            max_steps: the last step, which has them too.
            tokens_after: tokens read after an optimizer step, over all lanes.
            flops_a_token: useful operations of training on one token.
            peak_flops: operations per second of all devices together; None: those of known GPUs.
            clip: largest gradient norm; None: no clipping.
            unit: of training's loss.
        """
        self._every = every_n_steps
        self._max_steps = max_steps
        self._tokens_after = tokens_after
        self._flops_a_token = flops_a_token
        self._peak_flops = peak_flops
        self._clip = clip
        self._unit = unit
        self._window = _Window(since=0)

    def start(self, trainer: Trainer) -> None:
        """Look the devices' peak up where none was given; without one there is no MFU."""
        device = trainer.strategy.root_device
        if self._peak_flops is None and device.type == "cuda":
            known = get_available_flops(device, _matrix_dtype(str(trainer.precision)))
            self._peak_flops = None if known is None else float(known * trainer.world_size)

    def add_seconds(self, seconds: float) -> None:
        """Count the time that steps took."""
        self._window.seconds += seconds

    def of_step(
        self, step: int, *, loss: float | None, gradient_norm: float | None, lr: float, device: torch.device
    ) -> dict[str, float | None]:
        """Count a step, and give its figures; none where it is not one of those that have some."""
        if gradient_norm is not None and self._clip is not None:
            self._window.clipped += self._clip < gradient_norm < math.inf
        if step % self._every and step != self._max_steps:
            return {}
        window = self._window
        if step % self._every == 0:  # at another last step the window goes on, should the run be lengthened
            self._window = _Window(since=step)
        tokens_per_second = (self._tokens_after(step) - self._tokens_after(window.since)) / window.seconds
        values: dict[str, float | None] = {
            f"train/{self._unit.name}": None if loss is None else self._unit.of(loss),
            names.GRADIENT_NORM: gradient_norm,
            names.LEARNING_RATE: lr,
            names.TOKENS_PER_SECOND: tokens_per_second,
            names.PROCESS_MEMORY: _process_peak_bytes(),
        }
        if self._peak_flops is not None:
            values[names.MFU] = self._flops_a_token * tokens_per_second / self._peak_flops
        if self._clip is not None:
            values[names.CLIPPED_SHARE] = window.clipped / (step - window.since)
        if device.type == "cuda":
            values[names.DEVICE_MEMORY] = float(torch.cuda.max_memory_allocated())
        return values

    def state_dict(self) -> dict[str, Any]:
        """Give the window that is open."""
        return dataclasses.asdict(self._window)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._window = _Window(**state)


def _process_peak_bytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _matrix_dtype(precision: str) -> torch.dtype:
    if precision.startswith("bf16"):
        return torch.bfloat16
    if precision.startswith("16"):
        return torch.float16
    return torch.float64 if precision.startswith("64") else torch.float32
