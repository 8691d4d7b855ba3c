"""Which keys a query may look at: causality, memory's length, documents, and `same_length`.

Letters: B lanes, T queries, M memory slots, S = M + T keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

QUERIES_AT_ONCE = 128
"""Most queries of a block: few enough to skip most keys that come after them, many enough for large products."""


MANY_KEYS, KEYS_ROUNDED_TO = 1024, 128
"""Of many keys a block begins at a multiple: libraries keep code, and memory, for each number that they have met."""


class QueryBlock(NamedTuple):
    """Neighbouring queries and what they see.

    Attributes:
        queries: which ones, of T.
        keys: from the first to the last one that any of them sees in any lane, of S; of many, some before the first.
        hidden: parts of these keys that not all of them see, and where they do not, (B, queries, keys of the part).
    """

    queries: slice
    keys: slice
    hidden: tuple[tuple[slice, Tensor], ...]


@dataclass(frozen=True)
class AttentionMask:
    """Which keys each query sees: itself always, never a later one.

    Attributes:
        visible_BTS: True where it does.
    """

    visible_BTS: Tensor

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
    """Find the first True from `start` on; the end where there is none."""
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

    Args:
        length_B: valid slots of each lane's memory, the newest ones.
        slots: M, the memory's slots; the keys are these followed by the segment's T tokens.
        segment_len: T.
        mem_len: with `same_length`, a query sees the last `mem_len` keys, itself included.
        same_length: whether that limit holds.
        resets_BT: tokens that begin a document: nothing before them is seen from there on.
    """
    device = length_B.device
    key_S = torch.arange(slots + segment_len, device=device)
    distance_TS = key_S[slots:, None] - key_S[None, :]
    visible_TS = distance_TS >= 0
    if same_length:
        visible_TS = visible_TS & (distance_TS < mem_len)
    valid_BS = key_S >= slots - length_B[:, None]
    visible_BTS = visible_TS & valid_BS[:, None, :]
    if resets_BT is not None:
        document_BT = resets_BT.cumsum(dim=1)
        document_BS = torch.nn.functional.pad(document_BT, (slots, 0))
        visible_BTS = visible_BTS & (document_BT[:, :, None] == document_BS[:, None, :])
    return AttentionMask(visible_BTS)
