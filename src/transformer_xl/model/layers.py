"""One layer: attention over memory and segment, then a feed-forward network.

Letters: B lanes, T tokens, S = M + T keys, D width, N heads, H head width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.config import AlRfouConfig, ShawConfig, TransformerXLConfig, VaswaniConfig
from transformer_xl.model.attention import RelativeAttention, relative_weights
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.mask import AttentionMask

Encoding = Mapping[str, Tensor]
"""What an attention needs to know of positions, by the names of its own arguments."""

WithMemory = Callable[[Tensor], Tensor]
"""Gives keys and values of memory and segment, (2, N, B, S, H), for those of the segment."""


class Layer(Protocol):
    """What a transformer is made of."""

    def key_value(self, rows_BTD: Tensor) -> Tensor:
        """Project layer inputs to keys and values (2, N, B, T, H)."""

    def __call__(
        self, *, hidden_BTD: Tensor, with_memory: WithMemory, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Run the layer over one segment: (B, T, D); see `DecoderLayer.forward`."""

    def attention_weights(
        self, *, hidden_BTD: Tensor, with_memory: WithMemory, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; see `DecoderLayer.forward`."""


class SelfAttention(Protocol):
    """What a layer attends with: a module of these arguments and those of its encoding."""

    n_head: int
    key_value: Linear

    def __call__(
        self, *, hidden_BTD: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, mask: AttentionMask, **encoding: Tensor
    ) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D)."""

    @property
    def weights(self) -> Callable[..., Tensor]:
        """The method that gives what each key weighs to each query, (B, N, T, S); it takes all of these but values."""


class VariationalDropout(nn.Module):
    """Drops the same features at every position of a lane's segment (Gal and Ghahramani, 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Drop features of (B, T, D)."""
        mask_B1D = functional.dropout(hidden_BTD.new_ones(hidden_BTD[:, :1].shape), self.p, training=self.training)
        return hidden_BTD * mask_B1D


def make_dropout(p: float, *, variational: bool) -> nn.Module:
    """Make the dropout of hidden states (B, T, D)."""
    return VariationalDropout(p) if variational else nn.Dropout(p)


def heads_first(key_value_BTC: Tensor, *, n_head: int) -> Tensor:
    """Give what a layer projected to keys and values as (2, N, B, T, H), a view.

    In this order the pieces of memory and segment can be put behind one another, and products made of a head's keys.
    """
    lanes, tokens, width = key_value_BTC.shape
    return key_value_BTC.view(lanes, tokens, 2, n_head, width // (2 * n_head)).permute(2, 3, 0, 1, 4)


class RelativeSelfAttention(nn.Module):
    """Projections around relative attention (paper, section 3.3)."""

    def __init__(self, *, d_model: int, n_head: int, d_head: int, dropatt: float, attention: RelativeAttention) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropatt = dropatt
        self.attend = attention
        self.query = Linear(d_model, n_head * d_head, bias=False)
        self.key_value = Linear(d_model, 2 * n_head * d_head, bias=False)
        self.position = Linear(d_model, n_head * d_head, bias=False)
        self.output = Linear(n_head * d_head, d_model, bias=False)

    def forward(
        self,
        *,
        hidden_BTD: Tensor,
        key_BSNH: Tensor,
        value_BSNH: Tensor,
        mask: AttentionMask,
        position_RNH: Tensor,
        content_bias_NH: Tensor,
        position_bias_NH: Tensor,
    ) -> Tensor:
        """Attend from the segment to memory and segment: (B, T, D).

        Args:
            hidden_BTD: what queries are made of.
            key_BSNH: keys of memory and segment.
            value_BSNH: values of memory and segment.
            mask: which keys each query sees.
            position_RNH: projected encodings of the distances S-1 ... 0, and of none; see `project_positions`.
            content_bias_NH: u.
            position_bias_NH: v.
        """
        attended_BTNH = self.attend(
            query_BTNH=self.query(hidden_BTD).unflatten(-1, (self.n_head, -1)),
            key_BSNH=key_BSNH,
            value_BSNH=value_BSNH,
            position_RNH=position_RNH,
            content_bias_NH=content_bias_NH,
            position_bias_NH=position_bias_NH,
            mask=mask,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD

    def weights(self, *, hidden_BTD: Tensor, key_BSNH: Tensor, mask: AttentionMask, **encoding: Tensor) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        query_BTNH = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        return relative_weights(query_BTNH=query_BTNH, key_BSNH=key_BSNH, mask=mask, **encoding)

    def project_positions(self, sinusoid_SD: Tensor) -> Tensor:
        """Project encodings of distances, and add a row of zeros for no distance: (R, N, H)."""
        position_SNH: Tensor = self.position(sinusoid_SD).unflatten(-1, (self.n_head, -1))
        return functional.pad(position_SNH, (0, 0, 0, 0, 0, 1))


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
            Linear(d_model, d_inner),
            nn.ReLU(inplace=True),
            make_dropout(dropout, variational=variational_dropout),
            Linear(d_inner, d_model),
            make_dropout(dropout, variational=variational_dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.dropout = make_dropout(dropout, variational=variational_dropout)

    def key_value(self, rows_BTD: Tensor) -> Tensor:
        """Project layer inputs to keys and values (2, N, B, T, H)."""
        return self._key_value(self.attention_norm(rows_BTD) if self.pre_norm else rows_BTD)

    def _key_value(self, normed_BTD: Tensor) -> Tensor:
        return heads_first(self.attention.key_value(normed_BTD), n_head=self.attention.n_head)

    def forward(
        self, *, hidden_BTD: Tensor, with_memory: WithMemory, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Run the layer over one segment: (B, T, D).

        Args:
            hidden_BTD: the layer's input.
            with_memory: gives keys and values of memory and segment for those of the segment.
            mask: which keys each query sees.
            encoding: of positions, for the attention.
        """
        normed_BTD = self.attention_norm(hidden_BTD) if self.pre_norm else hidden_BTD
        key_NBSH, value_NBSH = with_memory(self._key_value(normed_BTD)).unbind(0)
        attended_BTD = self.attention(
            hidden_BTD=normed_BTD,
            key_BSNH=key_NBSH.permute(1, 2, 0, 3),
            value_BSNH=value_NBSH.permute(1, 2, 0, 3),
            mask=mask,
            **encoding,
        )
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        if self.pre_norm:
            hidden_BTD = hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        else:
            hidden_BTD = self.attention_norm(hidden_BTD)
            hidden_BTD = self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
        return hidden_BTD

    def attention_weights(
        self, *, hidden_BTD: Tensor, with_memory: WithMemory, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Give what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        normed_BTD = self.attention_norm(hidden_BTD) if self.pre_norm else hidden_BTD
        key_NBSH, _ = with_memory(self._key_value(normed_BTD)).unbind(0)
        key_BSNH = key_NBSH.permute(1, 2, 0, 3)
        return self.attention.weights(hidden_BTD=normed_BTD, key_BSNH=key_BSNH, mask=mask, **encoding)


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
