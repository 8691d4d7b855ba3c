"""Initial weights, as the published code draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

if TYPE_CHECKING:
    from transformer_xl.model.base import LanguageModel
    from transformer_xl.model.layers import DecoderLayer
    from transformer_xl.model.transformer import Transformer


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


@torch.no_grad()
def shrink_residual_weights(model: Transformer) -> None:
    """Make initial weights GPT-2's (Radford et al., 2019), and gains 1.

    What is added to the hidden states is drawn sqrt(2 L) times smaller: their sum does not grow with the layers.
    """
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.weight.fill_(1.0)
    scale = (2 * model.config.n_layer) ** -0.5
    for layer in cast("Sequence[DecoderLayer]", model.layers):
        layer.attention.output.weight.mul_(scale)
        layer.feed_forward.last_weight.mul_(scale)
