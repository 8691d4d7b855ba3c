"""Attention by torch's fused kernels: a score that depends on the distance goes in as an additive bias.

Made for CUDA's memory-efficient kernel, the one that has a gradient for its bias: it reads rows of the bias that begin
at multiples of eight numbers, and heads whose width is a multiple of eight. Where a kernel takes no such bias, torch
computes what the kernel would: on a CPU in training, and in float64.

Letters: B lanes, T queries, S keys, Z = S rounded up to a multiple of eight, R distances, N heads, H head width.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformer_xl.model.attention import AttentionMask, Distances, relative_shift

_MULTIPLE = 8
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN's, which torch prefers on recent GPUs: it has no gradient of an additive mask, and its gradient of the
queries was NaN in some releases at the sizes of published recipes (pytorch/pytorch#196678)."""


def sdpa_attention(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    distances: Distances | None,
    *,
    mask: AttentionMask,
    dropout: float,
) -> Tensor:
    """Attend; see `plain_attention`, whose arguments and result these are."""
    dtype, scale = key_BSNH.dtype, query_BTNH.shape[-1] ** -0.5  # under autocast u and v would make queries float32
    bias_BNTS = mask.visible_BTS[:, None]
    if distances is not None:
        scaled_BTNH = ((query_BTNH + distances.position_bias_NH) * scale).to(dtype)
        bias_BNTS = _position_bias(scaled_BTNH, position_RNH=distances.position_RNH, visible_BTS=mask.visible_BTS)
        query_BTNH = (query_BTNH + distances.content_bias_NH).to(dtype)
    with sdpa_kernel(_KERNELS) if query_BTNH.is_cuda else nullcontext():
        attended_BNTH = functional.scaled_dot_product_attention(
            _heads_first(query_BTNH),
            _heads_first(key_BSNH),
            _heads_first(value_BSNH),
            attn_mask=bias_BNTS,
            dropout_p=dropout,
            scale=scale,
        )
    return attended_BNTH[..., : value_BSNH.shape[-1]].transpose(1, 2)


def _position_bias(scaled_BTNH: Tensor, *, position_RNH: Tensor, visible_BTS: Tensor) -> Tensor:
    """Return each key's score by distance, -inf where it is hidden: (B, N, T, S), rows Z numbers apart in memory."""
    spare = -visible_BTS.shape[-1] % _MULTIPLE
    if spare:
        position_RNH = functional.pad(position_RNH, (0, 0, 0, 0, 0, spare))
        visible_BTS = functional.pad(visible_BTS, (0, spare))
    shifted_BNTZ = relative_shift(torch.einsum("btnh,rnh->bntr", scaled_BTNH, position_RNH))
    # a copy, and not the shifted view itself, which begins in the midst of a row
    bias_BNTZ = torch.where(visible_BTS[:, None], shifted_BNTZ[..., : visible_BTS.shape[-1]], -torch.inf)
    return bias_BNTZ[..., :-spare] if spare else bias_BNTZ


def _heads_first(per_head: Tensor) -> Tensor:
    """Return (B, N, length, width), the width filled up with zeros, which add nothing to a product."""
    missing = -per_head.shape[-1] % _MULTIPLE
    padded = functional.pad(per_head, (0, missing)) if missing else per_head
    return padded.transpose(1, 2)
