"""What makes the model fast, each beside the plain equation that it is tested against; here: which one is taken.

Letters: B lanes, T queries, S keys, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from transformer_xl.model.attention import AttentionMask, Distances, plain_attention
from transformer_xl.model.kernels.blockwise import blockwise_attention
from transformer_xl.model.kernels.sdpa import sdpa_attention


def automatic_attention(
    query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, distances: Distances | None, **others: Any
) -> Tensor:
    """Attend by what is fastest where the queries are, as far as that has been measured; see `plain_attention`.

    Blockwise on a CPU. Elsewhere, and in a layer that is compiled, torch's own implementation where scores know no
    distances, and else plain: no run on a GPU has been recorded that another could be chosen by.
    """
    if query_BTNH.device.type == "cpu" and not torch.compiler.is_compiling():
        attend = blockwise_attention
    else:
        attend = sdpa_attention if distances is None else plain_attention
    return attend(query_BTNH, key_BSNH, value_BSNH, distances, **others)


ATTENTION: dict[str, Callable[..., Tensor]] = {
    "auto": automatic_attention,
    "plain": plain_attention,
    "blockwise": blockwise_attention,
    "sdpa": sdpa_attention,
}
"""The implementations of `plain_attention` by their names in `model.attention`."""


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
    distances = Distances(functional.pad(position_SNH, (0, 0, 0, 0, 0, 1)), content_bias_NH, position_bias_NH)
    return automatic_attention(
        query_BTNH, key_BSNH, value_BSNH, distances, mask=AttentionMask(visible_BTS), dropout=dropout
    )
