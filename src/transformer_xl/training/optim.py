"""Optimizers and their parameter groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transformer_xl.config import AdamConfig, LambConfig, OptimizerConfig, SgdConfig
from transformer_xl.errors import UserError
from transformer_xl.registry import lookup, register


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


def check_installed(config: OptimizerConfig) -> None:
    """Refuse an optimizer whose library is not installed.

    Raises:
        UserError: how to install it.
    """
    if isinstance(config, LambConfig):
        _lamb()


def make_optimizer(config: OptimizerConfig, groups: list[dict[str, Any]], *, fused: bool) -> torch.optim.Optimizer:
    """Make the optimizer of `config`; `fused` updates all parameters in one kernel, where the optimizer has one."""
    factory = lookup("optimizer", config.kind).factory
    takes_fused = "fused" in inspect.signature(factory).parameters
    optimizer: torch.optim.Optimizer = factory(groups, config, **({"fused": fused} if takes_fused else {}))
    return optimizer


@register("optimizer", "adam", config=AdamConfig)
def _adam(groups: list[dict[str, Any]], config: AdamConfig, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)


@register("optimizer", "adamw", config=AdamConfig)
def _adamw(groups: list[dict[str, Any]], config: AdamConfig, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)


@register("optimizer", "sgd", config=SgdConfig)
def _sgd(groups: list[dict[str, Any]], config: SgdConfig, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)


@register("optimizer", "lamb", config=LambConfig)
def _make_lamb(groups: list[dict[str, Any]], config: LambConfig) -> torch.optim.Optimizer:
    # The step of NVIDIA's Transformer-XL recipe (its `lamb.py`), but for the order of float operations: weight
    # norms count as 10 at most and eps is added to the step's norm (the library's defaults); weight decay is a
    # part of the step (not decoupled); no bias is corrected, which this library writes as `adam_debias=True`.
    return _lamb()(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decouple=False,
        adam_debias=True,
        foreach=True,
    )


def clip_by_norm(parameters: Sequence[nn.Parameter], *, norm: Tensor, limit: float) -> None:
    """Scale gradients so that their norm is at most `limit`: the second half of `clip_grad_norm_`, to the bit.

    Args:
        parameters: whose gradients are scaled in place.
        norm: of all of them.
        limit: for it; where the norm is no number, neither are the gradients afterwards.
    """
    # As computed there. On a CPU the host can look, and a product with 1 would read and write every gradient for
    # nothing; on another device it would have to wait.
    if norm.device.type == "cpu" and limit / (norm + 1e-6) >= 1:
        return
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)


def _lamb() -> Callable[..., torch.optim.Optimizer]:
    try:
        from pytorch_optimizer import Lamb
    except ModuleNotFoundError as error:
        raise UserError(
            'optimizer=lamb needs a library that is not installed: type pip install "pytorch-optimizer>=4.1,<5"'
        ) from error
    return Lamb
