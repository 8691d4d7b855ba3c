"""One layer: relative attention over memory and segment, then a feed-forward network.

Letters: B lanes, T tokens, S = M + T keys, D width, N heads, H head width, F feed-forward width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from transformer_xl.model.attention import RelativeAttention


class LayerOutput(NamedTuple):
    """A layer's output for the segment, and what it read: memory followed by segment."""

    hidden_BTD: Tensor
    context_BSD: Tensor


class TransformerXLLayer(nn.Module):
    """Post-norm as published; `pre_norm` normalises what goes into each half instead."""

    def __init__(
        self,
        *,
        d_model: int,
        n_head: int,
        d_head: int,
        d_inner: int,
        dropout: float,
        dropatt: float,
        pre_norm: bool,
        attention: RelativeAttention,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.pre_norm = pre_norm
        self.attend = attention
        self.query = nn.Linear(d_model, n_head * d_head, bias=False)
        self.key_value = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.position = nn.Linear(d_model, n_head * d_head, bias=False)
        self.output = nn.Linear(n_head * d_head, d_model, bias=False)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_inner),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(d_inner, d_model),
            nn.Dropout(dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        *,
        hidden_BTD: Tensor,
        memory_BMD: Tensor,
        sinusoid_SD: Tensor,
        content_bias_NH: Tensor,
        position_bias_NH: Tensor,
        visible_BTS: Tensor,
    ) -> LayerOutput:
        """Run the layer over one segment.

        Args:
            hidden_BTD: the layer's input.
            memory_BMD: the layer's inputs of earlier segments; no gradient flows into them.
            sinusoid_SD: encodings of the distances S-1 ... 0.
            content_bias_NH: u.
            position_bias_NH: v.
            visible_BTS: which keys each query sees.
        """
        context_BSD = torch.cat([memory_BMD.detach().to(hidden_BTD.dtype), hidden_BTD], dim=1)
        normed_BSD = self.attention_norm(context_BSD) if self.pre_norm else context_BSD
        heads = (self.n_head, -1)
        key_value = self.key_value(normed_BSD).unflatten(-1, (2, *heads))
        attended_BTNH = self.attend(
            query_BTNH=self.query(normed_BSD[:, -hidden_BTD.shape[1] :]).unflatten(-1, heads),
            key_BSNH=key_value[:, :, 0],
            value_BSNH=key_value[:, :, 1],
            position_SNH=self.position(sinusoid_SD).unflatten(-1, heads),
            content_bias_NH=content_bias_NH,
            position_bias_NH=position_bias_NH,
            visible_BTS=visible_BTS,
            dropout=self.dropatt if self.training else 0.0,
        )
        hidden_BTD = hidden_BTD + self.dropout(self.output(attended_BTNH.flatten(-2)))
        if self.pre_norm:
            hidden_BTD = hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        else:
            hidden_BTD = self.attention_norm(hidden_BTD)
            hidden_BTD = self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
        return LayerOutput(hidden_BTD=hidden_BTD, context_BSD=context_BSD)
