"""One layer: attention over memory and segment, then a feed-forward network.

Letters: B lanes, T tokens, S = M + T keys, D width, N heads, H head width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from transformer_xl.model.attention import RelativeAttention
from transformer_xl.model.dropout import make_dropout
from transformer_xl.model_config import AlRfouConfig, ShawConfig, TransformerXLConfig, VaswaniConfig

Encoding = Mapping[str, Tensor]
"""What an attention needs to know of positions, by the names of its own arguments."""


class SelfAttention(Protocol):
    """What a layer attends with: a module of these arguments and those of its encoding."""

    def __call__(self, *, context_BSD: Tensor, segment_len: int, visible_BTS: Tensor, **encoding: Tensor) -> Tensor:
        """Attend from the last `segment_len` positions to all: (B, T, D)."""


class LayerOutput(NamedTuple):
    """A layer's output for the segment, and the rows of memory and segment, of which the new memory is made."""

    hidden_BTD: Tensor
    context_BSD: Tensor


class Layer(Protocol):
    """What a transformer is made of."""

    def __call__(
        self, *, hidden_BTD: Tensor, memory_BMD: Tensor, visible_BTS: Tensor, encoding: Encoding
    ) -> LayerOutput:
        """Run the layer over one segment; see `DecoderLayer.forward`."""


class RelativeSelfAttention(nn.Module):
    """Projections around relative attention (paper, section 3.3)."""

    def __init__(self, *, d_model: int, n_head: int, d_head: int, dropatt: float, attention: RelativeAttention) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.attend = attention
        self.query = nn.Linear(d_model, n_head * d_head, bias=False)
        self.key_value = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.position = nn.Linear(d_model, n_head * d_head, bias=False)
        self.output = nn.Linear(n_head * d_head, d_model, bias=False)

    def forward(
        self,
        *,
        context_BSD: Tensor,
        segment_len: int,
        visible_BTS: Tensor,
        sinusoid_SD: Tensor,
        content_bias_NH: Tensor,
        position_bias_NH: Tensor,
    ) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D).

        Args:
            context_BSD: memory followed by segment.
            segment_len: T.
            visible_BTS: which keys each query sees.
            sinusoid_SD: encodings of the distances S-1 ... 0.
            content_bias_NH: u.
            position_bias_NH: v.
        """
        heads = (self.n_head, -1)
        key_value = self.key_value(context_BSD).unflatten(-1, (2, *heads))
        attended_BTNH = self.attend(
            query_BTNH=self.query(context_BSD[:, -segment_len:]).unflatten(-1, heads),
            key_BSNH=key_value[:, :, 0],
            value_BSNH=key_value[:, :, 1],
            position_SNH=self.position(sinusoid_SD).unflatten(-1, heads),
            content_bias_NH=content_bias_NH,
            position_bias_NH=position_bias_NH,
            visible_BTS=visible_BTS,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD


class DecoderLayer(nn.Module):
    """Post-norm as published; `pre_norm` normalises what goes into each half instead."""

    def __init__(
        self,
        *,
        attention: SelfAttention,
        d_model: int,
        d_inner: int,
        dropout: float,
        variational_dropout: bool,
        pre_norm: bool,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = attention
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_inner),
            nn.ReLU(inplace=True),
            make_dropout(dropout, variational=variational_dropout),
            nn.Linear(d_inner, d_model),
            make_dropout(dropout, variational=variational_dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = make_dropout(dropout, variational=variational_dropout)

    def forward(
        self, *, hidden_BTD: Tensor, memory_BMD: Tensor, visible_BTS: Tensor, encoding: Encoding
    ) -> LayerOutput:
        """Run the layer over one segment.

        Args:
            hidden_BTD: the layer's input.
            memory_BMD: the layer's inputs of earlier segments; no gradient flows into them.
            visible_BTS: which keys each query sees.
            encoding: of positions, for the attention.
        """
        context_BSD = torch.cat([memory_BMD.detach().to(hidden_BTD.dtype), hidden_BTD], dim=1)
        attended_BTD = self.attention(
            context_BSD=self.attention_norm(context_BSD) if self.pre_norm else context_BSD,
            segment_len=hidden_BTD.shape[1],
            visible_BTS=visible_BTS,
            **encoding,
        )
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        if self.pre_norm:
            hidden_BTD = hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        else:
            hidden_BTD = self.attention_norm(hidden_BTD)
            hidden_BTD = self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
        return LayerOutput(hidden_BTD=hidden_BTD, context_BSD=context_BSD)


def make_decoder_layer(
    config: TransformerXLConfig | ShawConfig | VaswaniConfig | AlRfouConfig, *, attention: SelfAttention
) -> DecoderLayer:
    """Make the layer that the published models share around their attention."""
    return DecoderLayer(
        attention=attention,
        d_model=config.d_model,
        d_inner=config.d_inner,
        dropout=config.dropout,
        variational_dropout=config.variational_dropout,
        pre_norm=config.pre_norm,
    )
