"""The layer of today's decoder: rotary attention, then SwiGLU, each on an input normalised by its root mean square.

Letters: B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads, H head width, C = 2 N H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.content_attention import content_attention
from transformer_xl.model.dropout import make_dropout
from transformer_xl.model.layers import Encoding, LayerOutput
from transformer_xl.model_config import RopeConfig


def rms_norm(d_model: int) -> nn.RMSNorm:
    """Make a norm whose smallest root mean square is the same at every precision."""
    return nn.RMSNorm(d_model, eps=1e-6)


class RotarySelfAttention(nn.Module):
    """Projections around content attention between turned queries and keys."""

    def __init__(self, *, d_model: int, n_head: int, d_head: int, dropatt: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.query = nn.Linear(d_model, n_head * d_head, bias=False)
        self.key_value = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.output = nn.Linear(n_head * d_head, d_model, bias=False)

    def forward(
        self, *, normed_BTD: Tensor, key_value_BSC: Tensor, visible_BTS: Tensor, cos_SH: Tensor, sin_SH: Tensor
    ) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D).

        Args:
            normed_BTD: what the queries are made of.
            key_value_BSC: keys and values of memory and segment, not turned.
            visible_BTS: which keys each query sees.
            cos_SH: cosines of each slot's angles.
            sin_SH: their sines.
        """
        segment_len, heads = normed_BTD.shape[1], (self.n_head, -1)
        key_value = key_value_BSC.view(*key_value_BSC.shape[:2], 2, *heads)
        query_BTNH = self.query(normed_BTD).unflatten(-1, heads)
        attended_BTNH = content_attention(
            query_BTNH=turn(query_BTNH, cos_SH[-segment_len:], sin_SH[-segment_len:]),
            key_BSNH=turn(key_value[:, :, 0], cos_SH, sin_SH),
            value_BSNH=key_value[:, :, 1],
            visible_BTS=visible_BTS,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD


def turn(vector_BSNH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    """Turn the pairs (h, h + H/2) of every head's vector by its slot's angles."""
    left, right = vector_BSNH.chunk(2, dim=-1)
    across_BSNH = torch.cat([-right, left], dim=-1)
    return (vector_BSNH * cos_SH[:, None] + across_BSNH * sin_SH[:, None]).to(vector_BSNH.dtype)


class SwiGlu(nn.Module):
    """A feed-forward network with a gate: down(silu(gate x) * up x) (Shazeer, 2020)."""

    def __init__(self, *, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.down = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Give (B, T, D)."""
        gate, up = self.gate_up(hidden_BTD).chunk(2, dim=-1)
        down_BTD: Tensor = self.down(functional.silu(gate) * up)
        return down_BTD


class RopeLayer(nn.Module):
    """Attention, then SwiGLU, each on a normalised input and added to it."""

    def __init__(self, config: RopeConfig) -> None:
        super().__init__()
        self.attention = RotarySelfAttention(
            d_model=config.d_model, n_head=config.n_head, d_head=config.d_head, dropatt=config.dropatt
        )
        self.attention_norm = rms_norm(config.d_model)
        self.feed_forward = SwiGlu(d_model=config.d_model, d_inner=config.d_inner)
        self.feed_forward_norm = rms_norm(config.d_model)
        self.dropout = make_dropout(config.dropout, variational=config.variational_dropout)

    def forward(
        self, *, hidden_BTD: Tensor, memory_BMD: Tensor, visible_BTS: Tensor, encoding: Encoding
    ) -> LayerOutput:
        """Run the layer over a memory of layer inputs; see `DecoderLayer.forward`."""
        context_BSD = torch.cat([memory_BMD.detach().to(hidden_BTD.dtype), hidden_BTD], dim=1)
        normed_BSD = self.attention_norm(context_BSD)
        normed_BTD = normed_BSD[:, -hidden_BTD.shape[1] :]
        key_value_BSC = self.attention.key_value(normed_BSD)
        return LayerOutput(self._read(hidden_BTD, normed_BTD, key_value_BSC, visible_BTS, encoding), context_BSD)

    def read_cached(
        self, *, hidden_BTD: Tensor, memory_BMD: Tensor, visible_BTS: Tensor, encoding: Encoding
    ) -> LayerOutput:
        """Run the layer over a memory of its keys and values, and leave such rows."""
        normed_BTD = self.attention_norm(hidden_BTD)
        key_value_BTC = self.attention.key_value(normed_BTD)
        key_value_BSC = torch.cat([memory_BMD.detach().to(key_value_BTC.dtype), key_value_BTC], dim=1)
        return LayerOutput(self._read(hidden_BTD, normed_BTD, key_value_BSC, visible_BTS, encoding), key_value_BSC)

    def _read(
        self, hidden_BTD: Tensor, normed_BTD: Tensor, key_value_BSC: Tensor, visible_BTS: Tensor, encoding: Encoding
    ) -> Tensor:
        attended_BTD = self.attention(
            normed_BTD=normed_BTD, key_value_BSC=key_value_BSC, visible_BTS=visible_BTS, **encoding
        )
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        fed_BTD: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(hidden_BTD)))
        return hidden_BTD + fed_BTD
