"""Optimizers and their parameter groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from transformer_xl.config import AdamConfig, SgdConfig


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
    config: AdamConfig | SgdConfig, groups: list[dict[str, Any]], *, fused: bool
) -> torch.optim.Optimizer:
    """Make the optimizer of `config`; `fused` updates all parameters in one kernel."""
    if isinstance(config, SgdConfig):
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
    cls = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
    return cls(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)
