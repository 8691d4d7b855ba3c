"""Optimizers, their parameter groups, and learning rates by optimizer step.

Each part stands here with its settings, registered as a part from outside is; the numbers stand in `conf/`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from transformer_xl.registry import lookup, register
from transformer_xl.settings import Amount, Number, OptimizerConfig, SchedulerConfig, Share


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_embeddings: bool) -> list[dict[str, Any]]:
    """Sort every parameter into one of two groups: with weight decay, and without.

    Biases, norms, u and v never decay; embeddings only when `decay_embeddings` says so.
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_bias_or_norm = parameter.dim() < 2 or name.endswith("bias")
        is_embedding = "embedding" in name
        decays = not is_bias_or_norm and (decay_embeddings or not is_embedding)
        (decayed if decays else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def make_optimizer(
    settings: OptimizerConfig, groups: list[dict[str, Any]], *, fused: bool = True
) -> torch.optim.Optimizer:
    """Make the optimizer that `settings.kind` names; `fused` updates all parameters in one kernel, where it has one."""
    optimizer: torch.optim.Optimizer = lookup("optimizer", settings.kind).factory(groups, settings)
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = fused
            optimizer._step_supports_amp_scaling = fused  # type: ignore[attr-defined]
    return optimizer


class AdamConfig(OptimizerConfig):
    """Of Adam, AdamW (decoupled weight decay) and LAMB (steps scaled for each tensor to its weights' norm)."""

    beta1: Share
    beta2: Share
    eps: Amount

    def rules(self) -> Iterator[str]:
        if self.kind == "lamb" and find_spec("pytorch_optimizer") is None:
            yield 'kind is lamb, whose library is not installed: type pip install "pytorch-optimizer>=4.1,<5"'


@register("optimizer", "adam", config=AdamConfig)
@register("optimizer", "adamw", config=AdamConfig)
def _adam(groups: list[dict[str, Any]], settings: AdamConfig) -> torch.optim.Optimizer:
    cls = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return cls(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps)


class SgdConfig(OptimizerConfig):
    """Stochastic gradient descent."""

    momentum: Share


@register("optimizer", "sgd", config=SgdConfig)
def _sgd(groups: list[dict[str, Any]], settings: SgdConfig) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)


@register("optimizer", "lamb", config=AdamConfig)
def _lamb(groups: list[dict[str, Any]], settings: AdamConfig) -> torch.optim.Optimizer:
    # The step of NVIDIA's Transformer-XL recipe (its `lamb.py`), but for the order of float operations: weight
    # norms count as 10 at most and eps is added to the step's norm (the library's defaults); weight decay is a
    # part of the step (not decoupled); no bias is corrected, which this library writes as `adam_debias=True`.
    from pytorch_optimizer import Lamb

    lamb: torch.optim.Optimizer = Lamb(
        groups,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decouple=False,
        adam_debias=True,
        foreach=True,
    )
    return lamb


def clip_by_norm(parameters: Sequence[nn.Parameter], *, norm: Tensor, limit: float) -> None:
    """Scale gradients of this norm so that it is at most `limit`: the second half of `clip_grad_norm_`, to the bit."""
    # On a CPU the host can look, and a product with 1 would read and write every gradient for nothing; on another
    # device it would have to wait.
    if norm.device.type == "cpu" and limit / (norm + 1e-6) >= 1:
        return
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)


class Schedule:
    """The learning rate of each optimizer step, as a factor of the peak; steps count from 1.

    A function of the step is wrapped in one; a schedule that follows the validation loss is a subclass.
    """

    def __init__(self, factor: Callable[[int], float]) -> None:
        self._factor = factor

    def __call__(self, step: int) -> float:
        """Return the factor of an optimizer step."""
        return self._factor(step)

    def validated(self, loss: float) -> None:
        """Update the schedule with a validation loss."""

    def state_dict(self) -> dict[str, Any]:
        """Return what cannot be computed from the step."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""


def make_schedule(settings: SchedulerConfig, *, total_steps: int, peak: float) -> Schedule:
    """Make the schedule that `settings.kind` names.

    Args:
        settings: of the schedule.
        total_steps: optimizer steps of the run, which count where the settings have no `total_steps` or -1.
        peak: the learning rate that factors are of, for a schedule that names it as an argument.
    """
    own = getattr(settings, "total_steps", -1)
    factory = lookup("scheduler", settings.kind).factory
    named = {"peak": peak} if "peak" in inspect.signature(factory).parameters else {}
    made = factory(settings, total_steps if own == -1 else own, **named)
    return made if isinstance(made, Schedule) else Schedule(made)


@register("scheduler", "constant", config=SchedulerConfig)
def _constant(settings: SchedulerConfig, total_steps: int) -> Callable[[int], float]:
    return lambda step: _warmup(step, settings.warmup_steps)


class CosineConfig(SchedulerConfig):
    """Half a cosine from the peak to `min_lr`, reached after `total_steps`; -1: the run's."""

    total_steps: Annotated[int, Field(ge=-1)]
    min_lr: Amount


@register("scheduler", "cosine", config=CosineConfig)
def _cosine(settings: CosineConfig, total_steps: int, *, peak: float) -> Callable[[int], float]:
    """Linear warm-up, then the cosine of the whole run's progress, as published: warm-up does not delay it."""
    floor = settings.min_lr / peak if peak else 0.0

    def factor(step: int) -> float:
        if step <= settings.warmup_steps:
            return _warmup(step, settings.warmup_steps)
        progress = min(1.0, (step - 1) / max(1, total_steps))
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return factor


@register("scheduler", "inv_sqrt", config=SchedulerConfig)
def _inverse_square_root(settings: SchedulerConfig, total_steps: int) -> Callable[[int], float]:
    warmup_steps = max(1, settings.warmup_steps)
    return lambda step: min(step / warmup_steps, math.sqrt(warmup_steps / step))


class PlateauConfig(SchedulerConfig):
    """Of `Plateau`."""

    factor: Share
    patience: Number
    min_lr: Amount


@register("scheduler", "plateau", config=PlateauConfig)
class Plateau(Schedule):
    """Linear warm-up; the peak is multiplied by `factor` after more than `patience` validations without a new best."""

    def __init__(self, settings: PlateauConfig, total_steps: int, *, peak: float) -> None:
        floor = min(settings.min_lr / peak, 1.0) if peak else 1.0
        super().__init__(lambda step: max(self._scale, floor) * _warmup(step, settings.warmup_steps))
        self._settings = settings
        self._scale, self._best, self._bad = 1.0, math.inf, 0

    def validated(self, loss: float) -> None:
        if loss < self._best:
            self._best, self._bad = loss, 0
            return
        self._bad += 1
        if self._bad > self._settings.patience:
            self._scale, self._bad = self._scale * self._settings.factor, 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self._scale, "best": self._best, "bad": self._bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scale, self._best, self._bad = state["scale"], state["best"], state["bad"]


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0
