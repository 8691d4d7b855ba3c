"""Which keys a query may look at: causality, memory's length, documents, and `same_length`."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_keys(
    *,
    length_B: Tensor,
    slots: int,
    segment_len: int,
    mem_len: int,
    same_length: bool,
    resets_BT: Tensor | None,
) -> Tensor:
    """Say for each query of the segment which keys of memory and segment it sees; itself always.

    Args:
        length_B: valid slots of each lane's memory, the newest ones.
        slots: M, the memory's slots; the keys are these followed by the segment's T tokens.
        segment_len: T.
        mem_len: with `same_length`, a query sees the last `mem_len` keys, itself included.
        same_length: whether that limit holds.
        resets_BT: tokens that begin a document: nothing before them is seen from there on.

    Returns:
        Booleans (B, T, S) with S = M + T.
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
    return visible_BTS
