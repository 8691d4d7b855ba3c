"""Attention as the equation reads, and the projections around it; positions enter as a `PositionEncoding` has them.

Letters: B lanes, T queries, M memory, S = M + T keys, R = S + 1 distances, D width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.mask import AttentionMask
from transformer_xl.model_config import TransformerConfig

if TYPE_CHECKING:
    from transformer_xl.model.positions import PositionEncoding

Encoding = Mapping[str, Tensor]
"""What attention needs to know of the positions of a segment's keys, by name."""


def content_scores(query_BTNH: Tensor, key_BSNH: Tensor) -> Tensor:
    """Return q·k / sqrt(H), (B, N, T, S) (Vaswani et al., 2017, section 3.2.1)."""
    product_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH, key_BSNH)
    return product_BNTS.mul(query_BTNH.shape[-1] ** -0.5)


def relative_scores(
    *,
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    position_RNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
) -> Tensor:
    """Return ((q_i + u)·k_j + (q_i + v)·W_r r_{i-j}) / sqrt(H), (B, N, T, S); arguments as in `plain_attention`."""
    content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + content_bias_NH, key_BSNH)
    position_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH + position_bias_NH, position_RNH)
    return (content_BNTS + relative_shift(position_BNTR)).mul(query_BTNH.shape[-1] ** -0.5)


def relative_shift(by_distance_BNTR: Tensor) -> Tensor:
    """Turn scores by distance into scores by key, without a copy.

    Column c of row i belongs to distance S-1-c, so key j's score stands in column T-1-i+j: one column further left a
    row. In a row-major block whose rows are one longer than S, that is the same block read S at a time from T-1 on.

    Args:
        by_distance_BNTR: (B, N, T, S + 1), contiguous; the last column is of no distance.

    Returns:
        (B, N, T, S), a view. Only columns j <= S - T + i of row i mean anything; the corner beyond them holds
        neighbours' values and must be hidden.
    """
    batch, heads, queries, columns = by_distance_BNTR.shape
    keys = columns - 1
    flat = by_distance_BNTR.reshape(batch, heads, queries * columns)
    return flat.narrow(2, queries - 1, queries * keys).view(batch, heads, queries, keys)


def attention_weights(score_BNTS: Tensor, mask: AttentionMask) -> Tensor:
    """Return the softmax of scores over the keys that each query sees, (B, N, T, S)."""
    return score_BNTS.masked_fill(~mask.visible_BTS[:, None], -torch.inf).softmax(dim=-1)


def weighted_values(weight_BNTS: Tensor, value_BSNH: Tensor, *, dropout: float) -> Tensor:
    """Return the sum of values by weight (B, T, N, H), weights dropped with probability `dropout`."""
    weight_BNTS = functional.dropout(weight_BNTS, p=dropout)
    return torch.einsum("bnts,bsnh->btnh", weight_BNTS, value_BSNH)


def plain_attention(
    *,
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_RNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    mask: AttentionMask,
    dropout: float,
) -> Tensor:
    """Attend as the equation reads (Dai et al., 2019, section 3.3); every relative kernel has this signature.

    Args:
        query_BTNH: queries of the segment.
        key_BSNH: keys of memory and segment.
        value_BSNH: values of memory and segment.
        position_RNH: projected sinusoids W_r r of the distances S-1 ... 0, in this order, and a row of no distance,
            which `relative_shift` pushes into the corner that causality hides.
        content_bias_NH: u, the global content bias.
        position_bias_NH: v, the global position bias.
        mask: which keys a query sees; at least one.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, T, N, H).
    """
    score_BNTS = relative_scores(
        query_BTNH=query_BTNH,
        key_BSNH=key_BSNH,
        position_RNH=position_RNH,
        content_bias_NH=content_bias_NH,
        position_bias_NH=position_bias_NH,
    )
    return weighted_values(attention_weights(score_BNTS, mask), value_BSNH, dropout=dropout)


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
        """Attend from the segment to memory and segment: (B, T, D).

        Args:
            hidden_BTD: what queries are made of.
            key_value_2NBSH: keys and values of memory and segment.
            mask: which keys each query sees.
            encoding: of the keys' positions.
        """
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
        scores = self._position[0].scores(self._queries(hidden_BTD), key_BSNH, encoding)
        return attention_weights(scores, mask)

    def _queries(self, hidden_BTD: Tensor) -> Tensor:
        query_BTNH: Tensor = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        return query_BTNH
