"""Fixed sinusoids of the distance between a query and a key (paper, section 3.3), and scores by distance, by key.

Letters: B lanes, T queries, S = M + T keys, N heads.
"""

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
