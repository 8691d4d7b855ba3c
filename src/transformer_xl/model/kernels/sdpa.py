"""Relative attention by torch's fused kernels: the score that depends on the distance goes in as an additive bias.

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

from transformer_xl.model.attention import relative_shift
from transformer_xl.model.mask import AttentionMask

_MULTIPLE = 8
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def sdpa_attention(
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
    """Attend; see `plain_attention`, whose arguments and result these are."""
    dtype, width = key_BSNH.dtype, query_BTNH.shape[-1]  # under autocast u and v would make queries float32
    bias_BNTS = _position_bias(
        ((query_BTNH + position_bias_NH) * width**-0.5).to(dtype),
        position_RNH=position_RNH,
        visible_BTS=mask.visible_BTS,
    )
    attended_BNTH = masked_sdpa(
        _heads_first((query_BTNH + content_bias_NH).to(dtype)),
        _heads_first(key_BSNH),
        _heads_first(value_BSNH),
        mask=bias_BNTS,
        dropout=dropout,
        scale=width**-0.5,
    )
    return attended_BNTH[..., : value_BSNH.shape[-1]].transpose(1, 2)


def sdpa_content_attention(
    *, query_BTNH: Tensor, key_BSNH: Tensor, value_BSNH: Tensor, mask: AttentionMask, dropout: float
) -> Tensor:
    """Attend by contents alone, q·k / sqrt(H); arguments and result as in `plain_attention`."""
    attended_BNTH = masked_sdpa(
        query_BTNH.transpose(1, 2),
        key_BSNH.transpose(1, 2),
        value_BSNH.transpose(1, 2),
        mask=mask.visible_BTS[:, None],
        dropout=dropout,
    )
    return attended_BNTH.transpose(1, 2)


def masked_sdpa(
    query_BNTH: Tensor,
    key_BNSH: Tensor,
    value_BNSH: Tensor,
    *,
    mask: Tensor,
    dropout: float,
    scale: float | None = None,
) -> Tensor:
    """Call torch's attention with a mask, by any of its kernels but cuDNN's.

    On recent GPUs torch prefers cuDNN's, which has no gradient of an additive mask, and whose gradient of the queries
    was NaN in some releases at the sizes of published recipes (pytorch/pytorch#196678). The mask (B, 1 or N, T, S) is
    True where a key is seen, or what is added to scores, in the queries' type; `scale` None is 1 / sqrt(H).
    """
    with sdpa_kernel(_KERNELS) if query_BNTH.is_cuda else nullcontext():
        return functional.scaled_dot_product_attention(
            query_BNTH, key_BNSH, value_BNSH, attn_mask=mask, dropout_p=dropout, scale=scale
        )


def _position_bias(scaled_BTNH: Tensor, *, position_RNH: Tensor, visible_BTS: Tensor) -> Tensor:
    """Return each key's score by distance, -inf where it is hidden: (B, N, T, S), rows Z numbers apart in memory."""
    spare = -visible_BTS.shape[-1] % _MULTIPLE
    if spare:
        position_RNH = functional.pad(position_RNH, (0, 0, 0, 0, 0, spare))
        visible_BTS = functional.pad(visible_BTS, (0, spare))
    shifted_BNTZ = relative_shift(torch.einsum("btnh,rnh->bntr", scaled_BTNH, position_RNH))
    # a copy, and not the shifted view itself, which begins in the midst of a row
    bias_BNTZ = torch.where(visible_BTS[:, None], shifted_BNTZ, -torch.inf)
    return bias_BNTZ[..., :-spare] if spare else bias_BNTZ


def _heads_first(per_head: Tensor) -> Tensor:
    """Return (B, N, length, width), the width filled up with zeros, which add nothing to a product."""
    missing = -per_head.shape[-1] % _MULTIPLE
    padded = functional.pad(per_head, (0, missing)) if missing else per_head
    return padded.transpose(1, 2)
