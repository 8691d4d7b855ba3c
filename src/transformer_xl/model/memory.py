"""The recurrent memory: what every layer read in earlier segments, as a value that goes in and comes out.

Letters: L layers, B lanes, M slots, T tokens of a segment, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Layer inputs of the tokens before the segment, newest last.

    Attributes:
        hidden_LBMD: layer inputs, detached; slots beyond a lane's length are zero.
        length_B: how many of the newest slots each lane may look at, int64.
        mem_len: capacity; M grows up to it.
    """

    hidden_LBMD: Tensor
    length_B: Tensor
    mem_len: int

    @property
    def batch_size(self) -> int:
        """Number of lanes."""
        return self.length_B.shape[0]

    def zeroed(self) -> Memory:
        """Give the same memory with everything beyond the lanes' lengths set to zero.

        What is masked out has weight 0 in attention, and 0 times an infinity or NaN would still spoil the sum.
        """
        slots = self.hidden_LBMD.shape[2]
        slot_M = torch.arange(slots, device=self.length_B.device)
        beyond_BM = slot_M < slots - self.length_B[:, None]
        return replace(self, hidden_LBMD=self.hidden_LBMD.masked_fill(beyond_BM[None, :, :, None], 0))

    def to(self, device: torch.device | str) -> Memory:
        """Give the same memory on another device."""
        return replace(self, hidden_LBMD=self.hidden_LBMD.to(device), length_B=self.length_B.to(device))

    def lanes(self, lanes: slice) -> Memory:
        """Give the memory of some lanes, as a copy of its own."""
        return replace(self, hidden_LBMD=self.hidden_LBMD[:, lanes].clone(), length_B=self.length_B[lanes].clone())

    def state_dict(self) -> dict[str, Any]:
        """Give plain containers and tensors, for a checkpoint."""
        return {"hidden_LBMD": self.hidden_LBMD, "length_B": self.length_B, "mem_len": self.mem_len}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Memory:
        """Undo `state_dict`."""
        return cls(hidden_LBMD=state["hidden_LBMD"], length_B=state["length_B"], mem_len=state["mem_len"])


def join_lanes(memories: Sequence[Memory]) -> Memory:
    """Put the lanes of several memories of one model beside each other, in order."""
    slots = max(memory.hidden_LBMD.shape[2] for memory in memories)
    padded = [
        torch.nn.functional.pad(memory.hidden_LBMD, (0, 0, slots - memory.hidden_LBMD.shape[2], 0))
        for memory in memories
    ]
    return Memory(
        hidden_LBMD=torch.cat(padded, dim=1),
        length_B=torch.cat([memory.length_B for memory in memories]),
        mem_len=memories[0].mem_len,
    )


def next_memory(
    *, memory: Memory, context_LBSD: Sequence[Tensor], resets_BT: Tensor | None, segment_len: int
) -> Memory:
    """Keep the newest layer inputs of memory and segment.

    Args:
        memory: what the segment was read with.
        context_LBSD: for each layer, its memory followed by the segment's layer inputs, (B, M + T, D).
        resets_BT: tokens that begin a document; what lies before a lane's last one is forgotten.
        segment_len: T.
    """
    mem_len = memory.mem_len
    slots = min(mem_len, context_LBSD[0].shape[1])
    newest = slice(context_LBSD[0].shape[1] - slots, None)
    hidden_LBMD = torch.stack([context_BSD[:, newest].detach() for context_BSD in context_LBSD])
    length_B = (memory.length_B + segment_len).clamp(max=mem_len)
    if resets_BT is not None:
        position_T = torch.arange(1, segment_len + 1, device=resets_BT.device)
        last_border_B = (resets_BT * position_T).amax(dim=1)
        since_border_B = (segment_len + 1 - last_border_B).clamp(max=mem_len)
        length_B = torch.where(last_border_B > 0, since_border_B, length_B)
    return Memory(hidden_LBMD=hidden_LBMD, length_B=length_B, mem_len=mem_len).zeroed()
