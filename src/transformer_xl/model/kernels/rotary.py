"""Rotary positions as one function, whose gradient is turned back: nothing but the angles is kept for it.

Letters: B lanes, S positions, N heads, H head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def apply_rotary(vector_BSNH: Tensor, cos_SH: Tensor, sin_SH: Tensor) -> Tensor:
    """Turn the pairs (h, h + H/2) of every head's vector by its slot's angles."""
    turned_BSNH: Tensor = _Rotary.apply(vector_BSNH, cos_SH[:, None], sin_SH[:, None])  # type: ignore[no-untyped-call]
    return turned_BSNH


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vector_BSNH: Tensor, cos_S1H: Tensor, sin_S1H: Tensor) -> Tensor:
        ctx.save_for_backward(cos_S1H, sin_S1H)
        return _turned(vector_BSNH, cos_S1H, sin_S1H)

    @staticmethod
    def backward(ctx: Any, grad_BSNH: Tensor) -> tuple[Tensor | None, ...]:
        cos_S1H, sin_S1H = ctx.saved_tensors
        return _turned(grad_BSNH, cos_S1H, -sin_S1H), None, None


def _turned(vector_BSNH: Tensor, cos_S1H: Tensor, sin_S1H: Tensor) -> Tensor:
    precise_BSNH = vector_BSNH.to(cos_S1H.dtype)
    turned_BSNH = precise_BSNH * cos_S1H
    (left, right), (sin, _) = precise_BSNH.chunk(2, dim=-1), sin_S1H.chunk(2, dim=-1)
    to_left, to_right = turned_BSNH.chunk(2, dim=-1)
    to_left.addcmul_(right, sin, value=-1)
    to_right.addcmul_(left, sin)
    return turned_BSNH.to(vector_BSNH.dtype)
