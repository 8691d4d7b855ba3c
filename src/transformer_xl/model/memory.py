"""The recurrent memory: what every layer read in earlier segments, as a value that goes in and comes out.

Letters: L layers, B lanes, M slots, T tokens of a segment, D width, K states of a recurrent cell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor

from transformer_xl.registry import lookup, register

MemoryType = TypeVar("MemoryType", bound="Memory")
SlotMemoryType = TypeVar("SlotMemoryType", bound="SlotMemory")


class Memory(ABC):
    """What a model remembers of each lane; every model has its own kind, and gives it by `empty_memory`."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Number of lanes."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Give the same memory on another device."""

    @abstractmethod
    def lanes(self, lanes: slice) -> Self:
        """Give the memory of some lanes, as a copy of its own."""

    @abstractmethod
    def detach(self) -> Self:
        """Return the same memory, through which no gradient flows."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return plain containers and tensors, `kind` among them, for a checkpoint."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the memory of which `state_dict` gave this."""

    @classmethod
    @abstractmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        """Put the lanes of several memories of one model beside each other, in order."""


@dataclass(frozen=True, kw_only=True)
class SlotMemory(Memory):
    """A row for each token before the segment and each layer, newest last; a subclass says what a row is.

    Attributes:
        length_B: how many of the newest slots each lane may look at, int64; rows of the others are zero.
        mem_len: capacity; M grows up to it.
    """

    length_B: Tensor
    mem_len: int

    @property
    @abstractmethod
    def rows(self) -> Tensor:
        """Rows (L, B, M, D), detached."""

    @abstractmethod
    def with_rows(self, rows_LBMD: Tensor, *, length_B: Tensor) -> Self:
        """Give a memory of the same kind and capacity that holds other rows."""

    @property
    def batch_size(self) -> int:
        """Number of lanes."""
        return self.length_B.shape[0]

    def zeroed(self) -> Self:
        """Return the same memory with everything beyond the lanes' lengths set to zero.

        What is masked out has weight 0 in attention, and 0 times an infinity or NaN would still spoil the sum.
        """
        beyond_BM1 = beyond(self.length_B, slots=self.rows.shape[2])
        return self.with_rows(self.rows.masked_fill(beyond_BM1, 0), length_B=self.length_B)

    def with_all_slots(self) -> Self:
        """Give the same memory with `mem_len` slots, the further ones empty: its shape no longer grows."""
        missing = self.mem_len - self.rows.shape[2]
        if missing == 0:
            return self
        return self.with_rows(torch.nn.functional.pad(self.rows, (0, 0, missing, 0)), length_B=self.length_B)

    def to(self, device: torch.device | str) -> Self:
        """Give the same memory on another device."""
        return self.with_rows(self.rows.to(device), length_B=self.length_B.to(device))

    def detach(self) -> Self:
        return self.with_rows(self.rows.detach(), length_B=self.length_B)

    def lanes(self, lanes: slice) -> Self:
        """Give the memory of some lanes, as a copy of its own."""
        return self.with_rows(self.rows[:, lanes].clone(), length_B=self.length_B[lanes].clone())

    def state_dict(self) -> dict[str, Any]:
        """Give plain containers and tensors, for a checkpoint."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        return cls(**{name: value for name, value in state.items() if name != "kind"})

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        """Put the lanes of several memories beside each other; shorter ones get empty slots."""
        slots = max(memory.rows.shape[2] for memory in memories)
        padded = [torch.nn.functional.pad(memory.rows, (0, 0, slots - memory.rows.shape[2], 0)) for memory in memories]
        length_B = torch.cat([memory.length_B for memory in memories])
        return memories[0].with_rows(torch.cat(padded, dim=1), length_B=length_B)


@register("memory", "hidden")
@dataclass(frozen=True, kw_only=True)
class HiddenMemory(SlotMemory):
    """Layer inputs of the tokens before the segment.

    Attributes:
        hidden_LBMD: layer inputs, newest last, detached; slots beyond a lane's length are zero.
    """

    kind = "hidden"
    hidden_LBMD: Tensor

    @property
    def rows(self) -> Tensor:
        """Layer inputs (L, B, M, D)."""
        return self.hidden_LBMD

    def with_rows(self, rows_LBMD: Tensor, *, length_B: Tensor) -> Self:
        """Give a memory of other layer inputs."""
        return replace(self, hidden_LBMD=rows_LBMD, length_B=length_B)


@register("memory", "state")
@dataclass(frozen=True, kw_only=True)
class StateMemory(Memory):
    """The state of a recurrent network after the last token.

    Attributes:
        state_KLBD: K states of each layer (an LSTM has two), detached.
        mem_len: 0: the state is forgotten after each segment.
    """

    kind = "state"
    state_KLBD: Tensor
    mem_len: int

    @property
    def batch_size(self) -> int:
        """Number of lanes."""
        return self.state_KLBD.shape[2]

    def to(self, device: torch.device | str) -> StateMemory:
        """Give the same memory on another device."""
        return replace(self, state_KLBD=self.state_KLBD.to(device))

    def detach(self) -> StateMemory:
        return replace(self, state_KLBD=self.state_KLBD.detach())

    def lanes(self, lanes: slice) -> StateMemory:
        """Give the memory of some lanes, as a copy of its own."""
        return replace(self, state_KLBD=self.state_KLBD[:, :, lanes].clone())

    def state_dict(self) -> dict[str, Any]:
        """Give plain containers and tensors, for a checkpoint."""
        return {"kind": self.kind, "state_KLBD": self.state_KLBD, "mem_len": self.mem_len}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StateMemory:
        return cls(state_KLBD=state["state_KLBD"], mem_len=state["mem_len"])

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        """Put the lanes of several memories beside each other."""
        states = torch.cat([memory.state_KLBD for memory in memories], dim=2)
        return cls(state_KLBD=states, mem_len=memories[0].mem_len)


def memory_from_state_dict(state: Mapping[str, Any]) -> Memory:
    """Undo `Memory.state_dict`."""
    memory: Memory = cast("type[Memory]", lookup("memory", state["kind"]).factory).from_state(state)
    return memory


def join_lanes(memories: Sequence[MemoryType]) -> MemoryType:
    """Put the lanes of several memories of one model beside each other, in order."""
    return type(memories[0]).join(memories)


def next_memory(
    *, memory: SlotMemoryType, rows_LBTD: Sequence[Tensor], resets_BT: Tensor | None, segment_len: int
) -> SlotMemoryType:
    """Keep the newest rows of memory and segment.

    Args:
        memory: what the segment was read with.
        rows_LBTD: for each layer, the segment's rows.
        resets_BT: tokens that begin a document; what lies before a lane's last one is forgotten.
        segment_len: T.
    """
    mem_len = memory.mem_len
    layers, lanes, old_slots, width = memory.rows.shape
    slots = min(mem_len, old_slots + segment_len)
    new = min(slots, segment_len)
    new_rows_LBMD = rows_LBTD[0].new_empty(layers, lanes, slots, width)
    new_rows_LBMD[:, :, : slots - new] = memory.rows[:, :, old_slots - (slots - new) :]
    for layer, rows_BTD in enumerate(rows_LBTD):
        new_rows_LBMD[layer, :, slots - new :] = rows_BTD[:, segment_len - new :]
    length_B = length_after(memory.length_B, segment_len=segment_len, mem_len=mem_len, resets_BT=resets_BT)
    return memory.with_rows(new_rows_LBMD.masked_fill_(beyond(length_B, slots=slots), 0), length_B=length_B)


def length_after(length_B: Tensor, *, segment_len: int, mem_len: int, resets_BT: Tensor | None) -> Tensor:
    """Count the valid slots of each lane after a segment of T tokens; arguments as in `next_memory`."""
    after_B = (length_B + segment_len).clamp(max=mem_len)
    if resets_BT is None:
        return after_B
    position_T = torch.arange(1, segment_len + 1, device=resets_BT.device)
    last_border_B = (resets_BT * position_T).amax(dim=1)
    since_border_B = (segment_len + 1 - last_border_B).clamp(max=mem_len)
    return torch.where(last_border_B > 0, since_border_B, after_B)


def beyond(length_B: Tensor, *, slots: int) -> Tensor:
    """Say which slots are not valid: (B, M, 1)."""
    slot_M = torch.arange(slots, device=length_B.device)
    return (slot_M < slots - length_B[:, None])[..., None]


def check_mem_len(mem_len: int) -> None:
    """Refuse a capacity that no memory can have.

    Raises:
        ValueError: it is negative.
    """
    if mem_len < 0:
        raise ValueError(f"mem_len is {mem_len}, and must be at least 0")
