"""Relative attention: the score of query i for key j depends on both contents and on the distance i - j.

Letters: B lanes, T queries, M memory, S = M + T keys, N heads, H head width.

Every implementation has the signature of `plain_attention` and a name in `ATTENTION`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from transformer_xl.model.positions import relative_shift
from transformer_xl.model.sdpa_attention import sdpa_attention


class RelativeAttention(Protocol):
    """The interface of all implementations."""

    def __call__(
        self,
        *,
        query_BTNH: Tensor,
        key_BSNH: Tensor,
        value_BSNH: Tensor,
        position_SNH: Tensor,
        content_bias_NH: Tensor,
        position_bias_NH: Tensor,
        visible_BTS: Tensor,
        dropout: float,
    ) -> Tensor:
        """Attend; see `plain_attention`."""


def plain_attention(
    *,
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_SNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    visible_BTS: Tensor,
    dropout: float,
) -> Tensor:
    """Attend as the equation reads: ((q_i + u)·k_j + (q_i + v)·W_r r_{i-j}) / sqrt(H) (paper, section 3.3).

    Args:
        query_BTNH: queries of the segment.
        key_BSNH: keys of memory and segment.
        value_BSNH: values of memory and segment.
        position_SNH: projected sinusoids W_r r of the distances S-1 ... 0, in this order.
        content_bias_NH: u, the global content bias.
        position_bias_NH: v, the global position bias.
        visible_BTS: which keys a query sees; at least one.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, T, N, H).
    """
    content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + content_bias_NH, key_BSNH)
    # one more row than there are distances: `relative_shift` pushes it into the corner that causality hides
    padded_RNH = torch.nn.functional.pad(position_SNH, (0, 0, 0, 0, 0, 1))
    position_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH + position_bias_NH, padded_RNH)
    score_BNTS = (content_BNTS + relative_shift(position_BNTR)) * query_BTNH.shape[-1] ** -0.5
    score_BNTS = score_BNTS.masked_fill(~visible_BTS[:, None], -torch.inf)
    weight_BNTS = torch.nn.functional.dropout(score_BNTS.softmax(dim=-1), p=dropout)
    return torch.einsum("bnts,bsnh->btnh", weight_BNTS, value_BSNH)


ATTENTION: dict[str, RelativeAttention] = {"plain": plain_attention, "sdpa": sdpa_attention}
