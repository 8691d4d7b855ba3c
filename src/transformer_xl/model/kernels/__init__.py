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

ON_CUDA = "plain"
"""What `auto` takes on CUDA where scores know distances, as decided on 2026-12-01: no run of `tests.benchmarks.gpu` on
a GPU, which checks numbers and times, has been recorded that another could be chosen by."""


def automatic_attention(
    query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, distances: Distances | None, **others: Any
) -> Tensor:
    """Attend by what is fastest where the queries are, as far as that has been measured; see `plain_attention`.

    Blockwise on a CPU. Elsewhere, and in a layer that is compiled, torch's own implementation where scores know no
    distances, and else `ON_CUDA`.
    """
    if query_BTNH.device.type == "cpu" and not torch.compiler.is_compiling():
        attend = blockwise_attention
    else:
        attend = sdpa_attention if distances is None else ATTENTION[ON_CUDA]
    return attend(query_BTNH, key_BSNH, value_BSNH, distances, **others)


def fused_attention(*given: Any, **others: Any) -> Tensor:
    """Attend by kernels in Triton, which takes half a second to import; see `plain_attention`."""
    from transformer_xl.model.kernels import fused

    return fused.fused_attention(*given, **others)


ATTENTION: dict[str, Callable[..., Tensor]] = {
    "auto": automatic_attention,
    "plain": plain_attention,
    "blockwise": blockwise_attention,
    "sdpa": sdpa_attention,
    "fused": fused_attention,
}
"""The implementations of `plain_attention` by their names in `model.attention`."""


def relative_attention(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_RNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    *,
    causal: Tensor | bool = True,
    seen_BT2: Tensor | None = None,
    dropout: float = 0.0,
    attention: str = "auto",
) -> Tensor:
    """Return Transformer-XL's attention by itself, (B, T, N, H); it has gradients.

    The score of query i for key j is ((q_i + u)·k_j + (q_i + v)·r_{i-j}) / sqrt(H); the queries are the last T of the S
    positions.

    Args:
        query_BTNH: queries.
        key_BSNH: keys of memory and segment.
        value_BSNH: their values.
        position_RNH: projected encodings of the distances S-1 ... 0, in this order; where later keys are seen, of S-1
            ... 1-T.
        content_bias_NH: u.
        position_bias_NH: v.
        causal: whether no query sees a later key, or which of the others each sees (B, T, S), itself always.
        seen_BT2: of these keys the first that each query sees, and the one after the last; None: it sees all.
        dropout: probability with which an attention weight is dropped.
        attention: by its name in `model.attention`. `fused` takes no (B, T, S), `blockwise` no later keys.

    Raises:
        ValueError: the kernel cannot do what is asked for, or there are other distances than these.
    """
    (lanes, queries), keys = query_BTNH.shape[:2], key_BSNH.shape[1]
    distances = Distances(functional.pad(position_RNH, (0, 0, 0, 0, 0, 1)), content_bias_NH, position_bias_NH)
    expected = keys + queries - 1 if causal is False else keys
    if len(position_RNH) != expected:
        raise ValueError(f"position_RNH has {len(position_RNH)} rows, and must have {expected}, one for each distance")
    attentions = ATTENTION if causal is not False else {**ATTENTION, "auto": plain_attention}
    if attention not in attentions or (causal is False and attention == "blockwise"):
        raise ValueError(f"attention is {attention!r}, and must be auto, plain, sdpa or fused, or blockwise if causal")
    until_T = torch.arange(keys - queries, keys, device=query_BTNH.device) + 1
    if causal is False:
        until_T = torch.full_like(until_T, keys)
    first_BT, until_BT = torch.zeros_like(until_T).expand(lanes, -1), until_T.expand(lanes, -1)
    if seen_BT2 is not None:
        first_BT, until_BT = seen_BT2[..., 0].clamp(min=0), torch.minimum(until_BT, seen_BT2[..., 1])
    mask = AttentionMask.between(first_BT, until_BT, keys=keys)
    if isinstance(causal, Tensor):
        mask = AttentionMask(mask.visible_BTS & causal)
    return attentions[attention](query_BTNH, key_BSNH, value_BSNH, distances, mask=mask, dropout=dropout)
