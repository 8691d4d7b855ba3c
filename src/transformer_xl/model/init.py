"""Initial weights, as the published code draws them."""

from __future__ import annotations

import torch

from transformer_xl.model.base import LanguageModel


@torch.no_grad()
def init_weights(model: LanguageModel) -> None:
    """Draw from torch's global generator: N(0, init_std), layer-norm gains N(1, init_std), biases 0.

    Projections of an adaptive vocabulary are N(0, proj_init_std); u and v, which are biases by name only, are weights.
    """
    config = model.config
    for name, parameter in model.named_parameters():
        owner, _, own = name.rpartition(".")
        if owner.endswith("norm") and own == "weight":
            parameter.normal_(1.0, config.init_std)
        elif own == "bias" or owner.endswith("biases") or own == "cluster_bias":
            parameter.zero_()
        elif owner.endswith("projections"):
            parameter.normal_(0.0, config.proj_init_std)
        else:
            parameter.normal_(0.0, config.init_std)
