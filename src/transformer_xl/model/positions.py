"""Fixed sinusoids of the distance between a query and a key (paper, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

_WAVELENGTH_BASE = 10000.0


def sinusoids(distance_S: Tensor, *, d_model: int, dtype: torch.dtype) -> Tensor:
    """Encode distances: half sines, half cosines, wavelengths from 2 pi to 10000 * 2 pi.

    Args:
        distance_S: distances in tokens.
        d_model: D, even.
        dtype: of the result; the arithmetic is at least float32, in which distances are exact.

    Returns:
        (S, D).
    """
    precise = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, d_model, 2, device=distance_S.device, dtype=precise) / d_model
    angle = torch.outer(distance_S.to(precise), 1 / _WAVELENGTH_BASE**exponent)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


def descending_distances(*, keys: int, clamp_len: int | None, device: torch.device) -> Tensor:
    """Give the distances S-1 ... 0, those above `clamp_len` (null: none) replaced by it."""
    distance_S = torch.arange(keys - 1, -1, -1, device=device)
    return distance_S if clamp_len is None else distance_S.clamp(max=clamp_len)
