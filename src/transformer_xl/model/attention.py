"""Attention as the equation reads: what every kernel is tested against.

Letters: B lanes, T queries, M memory, S = M + T keys, R = S + 1 distances, N heads, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from transformer_xl.model.mask import AttentionMask


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


def plain_content_attention(
    *, query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, mask: AttentionMask, dropout: float
) -> Tensor:
    """Attend by `content_scores`; arguments and result as in `plain_attention`."""
    weight_BNTS = attention_weights(content_scores(query_BTNH, key_BSNH), mask)
    return weighted_values(weight_BNTS, value_BSNH, dropout=dropout)
