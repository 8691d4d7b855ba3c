"""One layer: attention over memory and segment, then a feed-forward network.

Letters: B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.attention import AttentionMask, attention_weights
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.positions import Encoding, PositionEncoding
from transformer_xl.model_config import ModelConfig, TransformerConfig

Past = Tensor | Callable[[Tensor], Tensor]
"""What came before a segment: a layer's inputs (B, M, D), or what puts keys and values of those before its own."""


class SelfAttention(nn.Module):
    """Projections to queries, keys and values, and of what is attended to."""

    def __init__(self, config: TransformerConfig, position: PositionEncoding) -> None:
        super().__init__()
        width = config.n_head * config.d_head
        self.n_head = config.n_head
        self.dropatt = config.dropatt
        self._position = (position,)  # in a tuple: a part of the model, and not of each layer
        self.query = Linear(config.d_model, width, bias=False)
        self.key_value = Linear(config.d_model, 2 * width, bias=False)
        position.add_to(self)
        self.output = Linear(width, config.d_model, bias=False)

    def keys_and_values(self, rows_BTD: Tensor) -> Tensor:
        """Return keys and values (2, N, B, T, H), a view of what they are projected to.

        In this order those of memory and segment can be put behind one another, and products made of a head's keys.
        """
        projected_BTC: Tensor = self.key_value(rows_BTD)
        lanes, tokens, width = projected_BTC.shape
        return projected_BTC.view(lanes, tokens, 2, self.n_head, width // (2 * self.n_head)).permute(2, 3, 0, 1, 4)

    def forward(
        self, hidden_BTD: Tensor, key_value_2NBSH: Tensor, *, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Attend from the segment to keys and values of memory and segment, at `encoding`'s positions: (B, T, D)."""
        key_NBSH, value_NBSH = key_value_2NBSH.unbind(0)
        attended_BTNH = self._position[0].attend(
            self._queries(hidden_BTD),
            key_NBSH.permute(1, 2, 0, 3),
            value_NBSH.permute(1, 2, 0, 3),
            encoding,
            mask=mask,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD

    def weights(
        self, hidden_BTD: Tensor, key_value_2NBSH: Tensor, *, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Return what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        key_BSNH = key_value_2NBSH[0].permute(1, 2, 0, 3)
        return attention_weights(self._position[0].scores(self._queries(hidden_BTD), key_BSNH, encoding), mask)

    def _queries(self, hidden_BTD: Tensor) -> Tensor:
        query_BTNH: Tensor = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        return query_BTNH


class VariationalDropout(nn.Module):
    """Drops the same features at every position of a lane's segment (Gal and Ghahramani, 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Drop features of (B, T, D)."""
        mask_B1D = functional.dropout(hidden_BTD.new_ones(hidden_BTD[:, :1].shape), self.p, training=self.training)
        return hidden_BTD * mask_B1D


def make_dropout(config: ModelConfig) -> nn.Module:
    """Make the dropout of hidden states (B, T, D)."""
    return VariationalDropout(config.dropout) if config.variational_dropout else nn.Dropout(config.dropout)


def make_norm(config: TransformerConfig) -> nn.Module:
    """Make a norm over D; the smallest root mean square of RMSNorm is the same at every precision."""
    return nn.RMSNorm(config.d_model, eps=1e-6) if config.norm == "rms" else nn.LayerNorm(config.d_model)


def relu_network(config: TransformerConfig) -> nn.Sequential:
    """Make the published feed-forward network: two matrices with biases, dropout inside and after it."""
    return nn.Sequential(
        Linear(config.d_model, config.d_inner),
        nn.ReLU(inplace=True),
        make_dropout(config),
        Linear(config.d_inner, config.d_model),
        make_dropout(config),
    )


class SwiGlu(nn.Module):
    """A feed-forward network with a gate: down(silu(gate x) * up x) (Shazeer, 2020), dropout after it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.d_model, 2 * config.d_inner, bias=False)
        self.down = Linear(config.d_inner, config.d_model, bias=False)
        self.dropout = make_dropout(config)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return (B, T, D)."""
        gate, up = self.gate_up(hidden_BTD).chunk(2, dim=-1)
        fed_BTD: Tensor = self.dropout(self.down(functional.silu(gate) * up))
        return fed_BTD


class DecoderLayer(nn.Module):
    """Post-norm as published; `pre_norm` normalises what goes into each half instead."""

    def __init__(self, config: TransformerConfig, position: PositionEncoding) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = SelfAttention(config, position)
        self.attention_norm = make_norm(config)
        self.feed_forward = SwiGlu(config) if config.feed_forward == "swiglu" else relu_network(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = make_dropout(config)

    def key_value(self, rows_BTD: Tensor) -> Tensor:
        """Project layer inputs to keys and values (2, N, B, T, H)."""
        return self.attention.keys_and_values(self._normed(rows_BTD))

    def forward(self, hidden_BTD: Tensor, past: Past, *, mask: AttentionMask, encoding: Encoding) -> Tensor:
        """Run the layer over one segment, of whose keys' positions `encoding` is: (B, T, D)."""
        normed_BTD = self._normed(hidden_BTD)
        key_value_2NBTH = self.attention.keys_and_values(normed_BTD)
        if isinstance(past, Tensor):
            key_value_2NBSH = torch.cat([self.key_value(past.to(hidden_BTD.dtype)), key_value_2NBTH], dim=3)
        else:
            key_value_2NBSH = past(key_value_2NBTH)
        attended_BTD = self.attention(normed_BTD, key_value_2NBSH, mask=mask, encoding=encoding)
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        if self.pre_norm:
            hidden_BTD = hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        else:
            hidden_BTD = self.attention_norm(hidden_BTD)
            hidden_BTD = self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
        return hidden_BTD

    def _normed(self, hidden_BTD: Tensor) -> Tensor:
        normed_BTD: Tensor = self.attention_norm(hidden_BTD) if self.pre_norm else hidden_BTD
        return normed_BTD
