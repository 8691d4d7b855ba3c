"""Attention as the equation reads, which every kernel is tested against, and the mask of what a query may look at.

Letters: B lanes, T queries, M memory slots, S = M + T keys, R = S + 1 distances, N heads, H head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Distances(NamedTuple):
    """What scores know of distances (Dai et al., 2019, section 3.3).

    Attributes:
        position_RNH: projected sinusoids W_r r of the distances S-1 ... 0, in this order, and a row of no distance,
            which `relative_shift` pushes into the corner that causality hides. Down to 1-T if later keys are seen.
        content_bias_NH: u, the global content bias.
        position_bias_NH: v, the global position bias.
    """

    position_RNH: Tensor
    content_bias_NH: Tensor
    position_bias_NH: Tensor


def attention_scores(query_BTNH: Tensor, key_BSNH: Tensor, distances: Distances | None = None) -> Tensor:
    """Return ((q_i + u)·k_j + (q_i + v)·W_r r_{i-j}) / sqrt(H), (B, N, T, S); without distances q_i·k_j / sqrt(H)."""
    scale = query_BTNH.shape[-1] ** -0.5
    if distances is None:
        return torch.einsum("btnh,bsnh->bnts", query_BTNH, key_BSNH).mul(scale)
    content_BNTS = torch.einsum("btnh,bsnh->bnts", query_BTNH + distances.content_bias_NH, key_BSNH)
    position_BNTR = torch.einsum("btnh,rnh->bntr", query_BTNH + distances.position_bias_NH, distances.position_RNH)
    return (content_BNTS + relative_shift(position_BNTR)[..., : key_BSNH.shape[1]]).mul(scale)


def relative_shift(by_distance_BNTR: Tensor) -> Tensor:
    """Turn scores by distance into scores by key, without a copy.

    Column c of row i belongs to distance S-1-c, so key j's score stands in column T-1-i+j: one column further left a
    row. In a row-major block whose rows are one longer than S, that is the same block read S at a time from T-1 on.

    Args:
        by_distance_BNTR: (B, N, T, S + 1), contiguous; the last column is of no distance.

    Returns:
        (B, N, T, S), a view. Only columns j <= S - T + i of row i mean anything; the corner beyond them holds
        neighbours' values and must be hidden. With T - 1 more columns, of the distances below 0, the first S columns
        of each row mean what they should.
    """
    batch, heads, queries, columns = by_distance_BNTR.shape
    flat = by_distance_BNTR.reshape(batch, heads, queries * columns)
    return flat[:, :, queries - 1 : -1].view(batch, heads, queries, columns - 1)


def attention_weights(score_BNTS: Tensor, mask: AttentionMask) -> Tensor:
    """Return the softmax of scores over the keys that each query sees, (B, N, T, S)."""
    return score_BNTS.masked_fill(~mask.visible_BTS[:, None], -torch.inf).softmax(dim=-1)


def weighted_values(weight_BNTS: Tensor, value_BSNH: Tensor, *, dropout: float) -> Tensor:
    """Return the sum of values by weight (B, T, N, H), weights dropped with probability `dropout`."""
    weight_BNTS = functional.dropout(weight_BNTS, p=dropout)
    return torch.einsum("bnts,bsnh->btnh", weight_BNTS, value_BSNH)


def plain_attention(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    distances: Distances | None,
    *,
    mask: AttentionMask,
    dropout: float,
) -> Tensor:
    """Attend as the equation reads; every kernel has this signature.

    Args:
        query_BTNH: queries of the segment.
        key_BSNH: keys of memory and segment.
        value_BSNH: values of memory and segment.
        distances: what scores know of distances; None: nothing.
        mask: which keys a query sees; at least one.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, T, N, H).
    """
    weight_BNTS = attention_weights(attention_scores(query_BTNH, key_BSNH, distances), mask)
    return weighted_values(weight_BNTS, value_BSNH, dropout=dropout)


QUERIES_AT_ONCE = 128
"""Most queries of a block: few enough to skip most keys that come after them, many enough for large products."""

MANY_KEYS, KEYS_ROUNDED_TO = 1024, 128
"""Of many keys a block begins at a multiple: libraries keep code, and memory, for each number that they have met."""


class QueryBlock(NamedTuple):
    """Neighbouring queries, and the keys from the first to the last one that any of them sees in any lane.

    Parts of these keys are not seen by all: `hidden` says where they are not, (B, queries, keys of the part).
    """

    queries: slice
    keys: slice
    hidden: tuple[tuple[slice, Tensor], ...]


@dataclass(frozen=True)
class AttentionMask:
    """Which keys each query sees: itself always, and no later one (but for `relative_attention(causal=False)`).

    Attributes:
        visible_BTS: True where it sees them.
        seen_BT2: the number of the first one, and of the one after the last (int32); None: there may be gaps.
    """

    visible_BTS: Tensor
    seen_BT2: Tensor | None = None

    @classmethod
    def between(cls, first_BT: Tensor, until_BT: Tensor, *, keys: int) -> AttentionMask:
        """Return the mask of queries that see all keys from a first one to the one before another, of S = `keys`."""
        key_S = torch.arange(keys, device=first_BT.device)
        visible_BTS = (key_S >= first_BT[:, :, None]) & (key_S < until_BT[:, :, None])
        return cls(visible_BTS, torch.stack([first_BT, until_BT], dim=-1).int())

    @cached_property
    def blocks(self) -> tuple[QueryBlock, ...]:
        """The queries in blocks of nearly equal length.

        On a CPU the mask is read, so that no product is made of keys that nobody sees; elsewhere the host would have to
        wait for the device, and only causality is made use of.
        """
        _, queries, keys = self.visible_BTS.shape
        count = math.ceil(queries / QUERIES_AT_ONCE)
        edges = [round(queries * block / count) for block in range(count + 1)]
        return tuple(self._block(slice(start, stop), end=keys - queries + stop) for start, stop in pairwise(edges))

    def _block(self, queries: slice, *, end: int) -> QueryBlock:
        mask_BtS = self.visible_BTS[:, queries, :end]
        if mask_BtS.device.type != "cpu":
            return QueryBlock(queries, slice(0, end), ((slice(0, end), ~mask_BtS),))
        seen_S, seen_by_all_S = mask_BtS.any(dim=(0, 1)), mask_BtS.all(dim=(0, 1))
        first = _first_true(seen_S, start=0)
        # one piece of keys that all see needs no mask; what is before and after it does
        whole = _first_true(seen_by_all_S, start=first)
        if end - first >= MANY_KEYS:
            first -= first % KEYS_ROUNDED_TO
        after = _first_true(~seen_by_all_S, start=whole)
        parts = [slice(start, stop) for start, stop in ((first, whole), (after, end)) if start < stop]
        return QueryBlock(queries, slice(first, end), tuple((part, ~mask_BtS[:, :, part]) for part in parts))


def _first_true(flags_S: Tensor, *, start: int) -> int:
    found = flags_S[start:].nonzero()
    return start + int(found[0]) if len(found) else len(flags_S)


def attention_mask(
    *,
    length_B: Tensor,
    slots: int,
    segment_len: int,
    mem_len: int,
    same_length: bool,
    resets_BT: Tensor | None,
) -> AttentionMask:
    """Return for each query of the segment which keys of memory and segment it sees; itself always.

    Of the memory's M = `slots` each lane may see the newest `length_B`, and nothing before a document's first token,
    where `resets_BT` is True. With `same_length` a query sees the last `mem_len` keys, itself included.
    """
    place_T = torch.arange(slots, slots + segment_len, device=length_B.device)
    first_BT = (slots - length_B)[:, None].expand(-1, segment_len)
    if same_length:
        first_BT = torch.maximum(first_BT, place_T - mem_len + 1)
    if resets_BT is not None:
        first_BT = torch.maximum(first_BT, torch.where(resets_BT, place_T, 0).cummax(dim=1).values)
    return AttentionMask.between(first_BT, (place_T + 1).expand_as(first_BT), keys=slots + segment_len)
