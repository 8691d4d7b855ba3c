"""What makes the model fast, each beside the plain equation that it is tested against; here: which one is taken.

Letters: B lanes, T queries, S keys, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_xl.model.attention import plain_attention, plain_content_attention
from transformer_xl.model.kernels.blockwise import blockwise_attention, blockwise_content_attention
from transformer_xl.model.kernels.sdpa import sdpa_attention, sdpa_content_attention
from transformer_xl.model.mask import AttentionMask


def use_blockwise(query_BTNH: Tensor) -> bool:
    """Return whether to attend blockwise: on a CPU, but not in a layer that is compiled."""
    return query_BTNH.device.type == "cpu" and not torch.compiler.is_compiling()


def automatic_attention(*, query_BTNH: Tensor, **others: Any) -> Tensor:
    """Attend by the implementation that is fastest where the queries are, as far as that has been measured.

    Blockwise on a CPU; plain in a layer that is compiled, which `torch.compile` turns into fewer kernels. Elsewhere
    plain: no run on a GPU has been recorded that another could be chosen by.
    """
    attend = blockwise_attention if use_blockwise(query_BTNH) else plain_attention
    return attend(query_BTNH=query_BTNH, **others)


def automatic_content_attention(*, query_BTNH: Tensor, **others: Any) -> Tensor:
    """Attend by contents alone: blockwise on a CPU, elsewhere by torch's own implementation."""
    attend = blockwise_content_attention if use_blockwise(query_BTNH) else sdpa_content_attention
    return attend(query_BTNH=query_BTNH, **others)


ATTENTION: dict[str, Callable[..., Tensor]] = {
    "auto": automatic_attention,
    "plain": plain_attention,
    "blockwise": blockwise_attention,
    "sdpa": sdpa_attention,
}
"""The implementations of `plain_attention`, whose arguments all of them have."""

CONTENT_ATTENTION: dict[str, Callable[..., Tensor]] = {
    "auto": automatic_content_attention,
    "plain": plain_content_attention,
    "blockwise": blockwise_content_attention,
    "sdpa": sdpa_content_attention,
}
"""The implementations of `plain_content_attention`."""


def relative_attention(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_SNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    *,
    causal: Tensor | bool = True,
    dropout: float = 0.0,
) -> Tensor:
    """Return Transformer-XL's attention by itself, (B, T, N, H), by the fastest kernel; it has gradients.

    The score of query i for key j is ((q_i + u)·k_j + (q_i + v)·r_{i-j}) / sqrt(H); the queries are the last T of the S
    positions, and none sees a later key.

    Args:
        query_BTNH: queries.
        key_BSNH: keys of memory and segment.
        value_BSNH: their values.
        position_SNH: projected encodings of the distances S-1 ... 0, in this order.
        content_bias_NH: u.
        position_bias_NH: v.
        causal: True, or which of the keys that are not later each query sees (B, T, S), itself always.
        dropout: probability with which an attention weight is dropped.

    Raises:
        ValueError: `causal` is False, for which there are no distances.
    """
    if causal is False:
        raise ValueError("causal is False, and the score knows distances from 0 on alone")
    (lanes, queries), keys = query_BTNH.shape[:2], key_BSNH.shape[1]
    visible_TS = torch.ones(queries, keys, dtype=torch.bool, device=query_BTNH.device).tril(keys - queries)
    visible_BTS = visible_TS.expand(lanes, -1, -1) if causal is True else visible_TS & causal
    return automatic_attention(
        query_BTNH=query_BTNH,
        key_BSNH=key_BSNH,
        value_BSNH=value_BSNH,
        position_RNH=functional.pad(position_SNH, (0, 0, 0, 0, 0, 1)),
        content_bias_NH=content_bias_NH,
        position_bias_NH=position_bias_NH,
        mask=AttentionMask(visible_BTS),
        dropout=dropout,
    )
