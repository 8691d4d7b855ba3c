"""Relative attention: the score of query i for key j depends on both contents and on the distance i - j.

Letters: B lanes, T queries, M memory, S = M + T keys, R = S + 1 distances, N heads, H head width.

Every implementation has the signature of `plain_attention` and a name in `ATTENTION`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from transformer_xl.model.kernels.blockwise import blockwise_attention, use_blockwise
from transformer_xl.model.kernels.sdpa import sdpa_attention
from transformer_xl.model.mask import AttentionMask
from transformer_xl.model.positions import relative_shift


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
        mask: AttentionMask,
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
    mask: AttentionMask,
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
        mask: which keys a query sees; at least one.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, T, N, H).
    """
    weight_BNTS = relative_weights(
        query_BTNH=query_BTNH,
        key_BSNH=key_BSNH,
        position_RNH=position_RNH,
        content_bias_NH=content_bias_NH,
        position_bias_NH=position_bias_NH,
        mask=mask,
    )
    weight_BNTS = torch.nn.functional.dropout(weight_BNTS, p=dropout)
    return torch.einsum("bnts,bsnh->btnh", weight_BNTS, value_BSNH)


def relative_weights(
    *,
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    position_RNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    mask: AttentionMask,
) -> Tensor:
    """Give what each key weighs to each query, (B, N, T, S); arguments as in `plain_attention`."""
    content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + content_bias_NH, key_BSNH)
    position_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH + position_bias_NH, position_RNH)
    score_BNTS = (content_BNTS + relative_shift(position_BNTR)) * query_BTNH.shape[-1] ** -0.5
    weight_BNTS: Tensor = score_BNTS.masked_fill(~mask.visible_BTS[:, None], -torch.inf).softmax(dim=-1)
    return weight_BNTS


def automatic_attention(*, query_BTNH: Tensor, **others: Any) -> Tensor:
    """Attend by the implementation that is fastest where the queries are, as far as that has been measured.

    Blockwise on a CPU; plain in a layer that is compiled, which `torch.compile` turns into fewer kernels. Elsewhere
    plain: no run on a GPU has been recorded that another could be chosen by.
    """
    attend = blockwise_attention if use_blockwise(query_BTNH) else plain_attention
    return attend(query_BTNH=query_BTNH, **others)


ATTENTION: dict[str, RelativeAttention] = {
    "auto": automatic_attention,
    "plain": plain_attention,
    "blockwise": blockwise_attention,
    "sdpa": sdpa_attention,
}
