"""The layer of today's decoder: rotary attention, then SwiGLU, each on an input normalised by its root mean square.

Letters: B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads, H head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.config import RopeConfig
from transformer_xl.model.content_attention import content_attention, content_weights
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.layers import Encoding, WithMemory, heads_first, make_dropout
from transformer_xl.model.mask import AttentionMask


def rms_norm(d_model: int) -> nn.RMSNorm:
    """Make a norm whose smallest root mean square is the same at every precision."""
    return nn.RMSNorm(d_model, eps=1e-6)


class RotarySelfAttention(nn.Module):
    """Projections around content attention between turned queries and keys."""

    def __init__(self, *, d_model: int, n_head: int, d_head: int, dropatt: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.query = Linear(d_model, n_head * d_head, bias=False)
        self.key_value = Linear(d_model, 2 * n_head * d_head, bias=False)
        self.output = Linear(n_head * d_head, d_model, bias=False)

    def forward(
        self,
        *,
        hidden_BTD: Tensor,
        key_BSNH: Tensor,
        value_BSNH: Tensor,
        mask: AttentionMask,
        cos_SH: Tensor,
        sin_SH: Tensor,
    ) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D).

        Args:
            hidden_BTD: what queries are made of.
            key_BSNH: keys of memory and segment, not turned.
            value_BSNH: values of memory and segment.
            mask: which keys each query sees.
            cos_SH: cosines of each slot's angles.
            sin_SH: their sines.
        """
        segment_len = hidden_BTD.shape[1]
        query_BTNH = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        attended_BTNH = content_attention(
            query_BTNH=turn(query_BTNH, cos_SH[-segment_len:], sin_SH[-segment_len:]),
            key_BSNH=turn(key_BSNH, cos_SH, sin_SH),
            value_BSNH=value_BSNH,
            mask=mask,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD

    def weights(
        self, *, hidden_BTD: Tensor, key_BSNH: Tensor, mask: AttentionMask, cos_SH: Tensor, sin_SH: Tensor
    ) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        segment_len = hidden_BTD.shape[1]
        query_BTNH = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        return content_weights(
            query_BTNH=turn(query_BTNH, cos_SH[-segment_len:], sin_SH[-segment_len:]),
            key_BSNH=turn(key_BSNH, cos_SH, sin_SH),
            mask=mask,
        )


def turn(vector_BSNH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    """Turn the pairs (h, h + H/2) of every head's vector by its slot's angles."""
    turned_BSNH: Tensor = _Turn.apply(vector_BSNH, cos_SH[:, None], sin_SH[:, None])  # type: ignore[no-untyped-call]
    return turned_BSNH


class _Turn(torch.autograd.Function):
    """As one function: its gradient is turned back, and nothing but the angles need be kept for it."""

    @staticmethod
    def forward(ctx: Any, vector_BSNH: Tensor, cos_S1H: Tensor, sin_S1H: Tensor) -> Tensor:
        ctx.save_for_backward(cos_S1H, sin_S1H)
        return _turned(vector_BSNH, cos_S1H, sin_S1H)

    @staticmethod
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor | None, ...]:
        cos_S1H, sin_S1H = ctx.saved_tensors
        return _turned(grad_BSNH, cos_S1H, -sin_S1H), None, None


def _turned(vector_BSNH: Tensor, cos_S1H: Tensor, sin_S1H: Tensor) -> Tensor:
    precise_BSNH = vector_BSNH.to(cos_S1H.dtype)
    turned_BSNH = precise_BSNH * cos_S1H
    (left, right), (sin, _) = precise_BSNH.chunk(2, dim=-1), sin_S1H.chunk(2, dim=-1)
    to_left, to_right = turned_BSNH.chunk(2, dim=-1)
    to_left.addcmul_(right, sin, value=-1)
    to_right.addcmul_(left, sin)
    return turned_BSNH.to(vector_BSNH.dtype)


class SwiGlu(nn.Module):
    """A feed-forward network with a gate: down(silu(gate x) * up x) (Shazeer, 2020)."""

    def __init__(self, *, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.gate_up = Linear(d_model, 2 * d_inner, bias=False)
        self.down = Linear(d_inner, d_model, bias=False)

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

    def key_value(self, rows_BTD: Tensor) -> Tensor:
        """Project layer inputs to keys and values (2, N, B, T, H), not turned."""
        return self._key_value(self.attention_norm(rows_BTD))

    def _key_value(self, normed_BTD: Tensor) -> Tensor:
        return heads_first(self.attention.key_value(normed_BTD), n_head=self.attention.n_head)

    def forward(
        self, *, hidden_BTD: Tensor, with_memory: WithMemory, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Run the layer over one segment; see `DecoderLayer.forward`."""
        normed_BTD = self.attention_norm(hidden_BTD)
        key_NBSH, value_NBSH = with_memory(self._key_value(normed_BTD)).unbind(0)
        attended_BTD = self.attention(
            hidden_BTD=normed_BTD,
            key_BSNH=key_NBSH.permute(1, 2, 0, 3),
            value_BSNH=value_NBSH.permute(1, 2, 0, 3),
            mask=mask,
            **encoding,
        )
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        fed_BTD: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(hidden_BTD)))
        return hidden_BTD + fed_BTD

    def attention_weights(
        self, *, hidden_BTD: Tensor, with_memory: WithMemory, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        normed_BTD = self.attention_norm(hidden_BTD)
        key_NBSH, _ = with_memory(self._key_value(normed_BTD)).unbind(0)
        key_BSNH = key_NBSH.permute(1, 2, 0, 3)
        return self.attention.weights(hidden_BTD=normed_BTD, key_BSNH=key_BSNH, mask=mask, **encoding)
