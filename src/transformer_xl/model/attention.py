"""Relative attention: the score of query i for key j depends on both contents and on the distance i - j.

Letters: B lanes, T queries, M memory, S = M + T keys, R = S + 1 distances, N heads, H head width.

Every implementation has the signature of `plain_attention` and a name in `ATTENTION`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from transformer_xl.model.blockwise_attention import blockwise_attention
from transformer_xl.model.visibility import Visibility


class RelativeAttention(Protocol):
    """The interface of all implementations."""

    def __call__(
        self,
        *,
        query_BTNH: Tensor,
        key_BSNH: Tensor,
        value_BSNH: Tensor,
        position_RNH: Tensor,
        content_bias_NH: Tensor,
        position_bias_NH: Tensor,
        visible: Visibility,
        dropout: float,
    ) -> Tensor:
        """Attend; see `plain_attention`."""


def plain_attention(
    *,
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_RNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    visible: Visibility,
    dropout: float,
) -> Tensor:
    """Attend as the equation reads: ((q_i + u)·k_j + (q_i + v)·W_r r_{i-j}) / sqrt(H) (paper, section 3.3).

    Args:
        query_BTNH: queries of the segment.
        key_BSNH: keys of memory and segment.
        value_BSNH: values of memory and segment.
        position_RNH: projected sinusoids W_r r of the distances S-1 ... 0, in this order, and a row of no distance,
            which `relative_shift` pushes into the corner that causality hides.
        content_bias_NH: u, the global content bias.
        position_bias_NH: v, the global position bias.
        visible: which keys a query sees; at least one.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, T, N, H).
    """
    content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + content_bias_NH, key_BSNH)
    position_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH + position_bias_NH, position_RNH)
    score_BNTS = (content_BNTS + relative_shift(position_BNTR)) * query_BTNH.shape[-1] ** -0.5
    score_BNTS = score_BNTS.masked_fill(~visible.mask_BTS[:, None], -torch.inf)
    weight_BNTS = torch.nn.functional.dropout(score_BNTS.softmax(dim=-1), p=dropout)
    return torch.einsum("bnts,bsnh->btnh", weight_BNTS, value_BSNH)


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


def automatic_attention(*, query_BTNH: Tensor, **others: Any) -> Tensor:
    """Attend by the implementation that is fastest where the queries are, as far as that has been measured.

    Blockwise on a CPU. Elsewhere plain: no run on a GPU has been recorded that another could be chosen by.
    """
    attend = blockwise_attention if query_BTNH.device.type == "cpu" else plain_attention
    return attend(query_BTNH=query_BTNH, **others)


ATTENTION: dict[str, RelativeAttention] = {
    "auto": automatic_attention,
    "plain": plain_attention,
    "blockwise": blockwise_attention,
}
