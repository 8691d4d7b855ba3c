"""Learning rate by optimizer step: pure functions, and one schedule that follows the validation loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from transformer_xl.config import ConstantConfig, CosineConfig, InverseSquareRootConfig, PlateauConfig
from transformer_xl.registry import register


class Schedule(Protocol):
    """The interface of all schedules."""

    def lr(self, step: int) -> float:
        """Give the learning rate of an optimizer step; steps count from 1."""

    def validated(self, loss: float) -> None:
        """Hear of a validation loss."""

    def state_dict(self) -> dict[str, Any]:
        """Give what cannot be computed from the step."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""


class _PureSchedule:
    def validated(self, loss: float) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


@register("scheduler", "constant", config=ConstantConfig)
class Constant(_PureSchedule):
    """Linear warm-up, then the peak."""

    def __init__(self, *, peak: float, config: ConstantConfig) -> None:
        self.peak, self.config = peak, config

    def lr(self, step: int) -> float:
        """Give the learning rate of an optimizer step."""
        return self.peak * _warmup(step, self.config.warmup_steps)


@register("scheduler", "cosine", config=CosineConfig)
class Cosine(_PureSchedule):
    """Linear warm-up, then the cosine of the whole run's progress, as published: warm-up does not delay it."""

    def __init__(self, *, peak: float, config: CosineConfig) -> None:
        self.peak, self.config = peak, config

    def lr(self, step: int) -> float:
        """Give the learning rate of an optimizer step; `min_lr` after `total_steps`."""
        if step <= self.config.warmup_steps:
            return self.peak * _warmup(step, self.config.warmup_steps)
        progress = min(1.0, (step - 1) / self.config.total_steps)
        return self.config.min_lr + (self.peak - self.config.min_lr) * (1 + math.cos(math.pi * progress)) / 2


@register("scheduler", "inv_sqrt", config=InverseSquareRootConfig)
class InverseSquareRoot(_PureSchedule):
    """Linear warm-up to the peak, then peak * sqrt(warmup_steps / step)."""

    def __init__(self, *, peak: float, config: InverseSquareRootConfig) -> None:
        self.peak, self.config = peak, config

    def lr(self, step: int) -> float:
        """Give the learning rate of an optimizer step."""
        warmup_steps = max(1, self.config.warmup_steps)
        return self.peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))


@register("scheduler", "plateau", config=PlateauConfig)
class Plateau:
    """Linear warm-up; the peak is multiplied by `factor` after more than `patience` validations without a new best."""

    def __init__(self, *, peak: float, config: PlateauConfig) -> None:
        self.peak, self.config = peak, config
        self._scale = 1.0
        self._best = math.inf
        self._bad = 0

    def lr(self, step: int) -> float:
        """Give the learning rate of an optimizer step."""
        reduced = max(self.peak * self._scale, min(self.config.min_lr, self.peak))
        return reduced * _warmup(step, self.config.warmup_steps)

    def validated(self, loss: float) -> None:
        """Count validations without a new best, and reduce after `patience` of them."""
        if loss < self._best:
            self._best, self._bad = loss, 0
            return
        self._bad += 1
        if self._bad > self.config.patience:
            self._scale, self._bad = self._scale * self.config.factor, 0

    def state_dict(self) -> dict[str, Any]:
        """Give the reduction so far and the validations since the best one."""
        return {"scale": self._scale, "best": self._best, "bad": self._bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._scale, self._best, self._bad = state["scale"], state["best"], state["bad"]
