"""The recurrent memory: what every layer read in earlier segments, as a value that goes in and comes out.

Letters: L layers, B lanes, M slots, T tokens of a segment, D width, K states of a recurrent cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor
from torch.nn import functional

from transformer_xl.registry import lookup, register


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a model remembers of each lane: a frozen dataclass of tensors and plain values.

    The name of each tensor ends with the letters of its axes, B being the lanes. A class is registered as
    `@register("memory", KIND)`, by which a checkpoint finds it again. `mem_len` is its capacity in tokens, which the
    model reads from here; a ValueError if it is negative.
    """

    kind: ClassVar[str]
    mem_len: int

    def __post_init__(self) -> None:
        if self.mem_len < 0:
            raise ValueError(f"mem_len is {self.mem_len}, and must be at least 0")

    @property
    def batch_size(self) -> int:
        """Number of lanes."""
        name, tensor = next(iter(self._tensors().items()))
        return tensor.shape[_lane_axis(name)]

    def lanes(self, lanes: slice) -> Self:
        """Return the memory of some lanes, as a copy of its own."""
        return self._changed(lambda name, tensor: tensor[(slice(None),) * _lane_axis(name) + (lanes,)].clone())

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        """Put the lanes of several memories of one model beside each other, in order."""
        tensors = [memory._tensors() for memory in memories]
        return memories[0]._changed(lambda name, _: torch.cat([each[name] for each in tensors], dim=_lane_axis(name)))

    def to(self, device: torch.device | str) -> Self:
        return self._changed(lambda _, tensor: tensor.to(device))

    def detach(self) -> Self:
        """Return the same memory, through which no gradient flows."""
        return self._changed(lambda _, tensor: tensor.detach())

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers and tensors, `kind` among them, for a checkpoint."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(name, tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)


def _lane_axis(name: str) -> int:
    letters = name.rpartition("_")[2]
    if "B" not in letters:
        raise ValueError(
            f"{name} is a memory's tensor, and must end with the letters of its axes, B for lanes: {name}_LBD"
        )
    return letters.index("B")


def memory_from_state_dict(state: Mapping[str, Any]) -> Memory:
    """Return the memory of any kind of which `Memory.state_dict` gave this."""
    cls = cast("type[Memory]", lookup("memory", state["kind"]).factory)
    return cls(**{name: value for name, value in state.items() if name != "kind"})


@register("memory", "hidden")
@dataclass(frozen=True, kw_only=True)
class HiddenMemory(Memory):
    """Layer inputs of the tokens before the segment.

    Attributes:
        hidden_LBMD: layer inputs, newest last; M grows up to `mem_len`, and slots beyond a lane's length are zero.
        length_B: how many of the newest slots each lane may look at, int64.
    """

    kind = "hidden"
    hidden_LBMD: Tensor
    length_B: Tensor
    _is_zeroed: ClassVar[bool] = False  # whether it is known to be zero beyond the lengths

    @property
    def slots(self) -> int:
        return self.hidden_LBMD.shape[2]

    @classmethod
    def join(cls, memories: Sequence[Self]) -> Self:
        slots = max(memory.slots for memory in memories)
        return super().join([memory.with_slots(slots) for memory in memories])

    def with_slots(self, slots: int) -> Self:
        """Return the same memory with so many slots, the further ones empty."""
        if slots == self.slots:
            return self
        return replace(self, hidden_LBMD=functional.pad(self.hidden_LBMD, (0, 0, slots - self.slots, 0)))

    def zeroed(self) -> Self:
        """Return the same memory with everything beyond the lanes' lengths set to zero.

        What is masked out has weight 0 in attention, and 0 times an infinity or NaN would still spoil the sum. What
        `after` returns is so already.
        """
        if self._is_zeroed:
            return self
        return replace(self, hidden_LBMD=self.hidden_LBMD.masked_fill(beyond(self.length_B, slots=self.slots), 0))

    def after(self, inputs_LBTD: Sequence[Tensor], *, resets_BT: Tensor | None) -> Self:
        """Return the newest layer inputs of memory and segment, those before a lane's last reset forgotten."""
        lanes, segment_len, width = inputs_LBTD[0].shape
        slots = min(self.mem_len, self.slots + segment_len)
        new = min(slots, segment_len)
        hidden_LBMD = inputs_LBTD[0].new_empty(len(inputs_LBTD), lanes, slots, width)
        hidden_LBMD[:, :, : slots - new] = self.hidden_LBMD[:, :, self.slots - (slots - new) :]
        for layer, inputs_BTD in enumerate(inputs_LBTD):
            hidden_LBMD[layer, :, slots - new :] = inputs_BTD[:, segment_len - new :]
        length_B = length_after(self.length_B, segment_len=segment_len, mem_len=self.mem_len, resets_BT=resets_BT)
        after = replace(self, hidden_LBMD=hidden_LBMD.masked_fill_(beyond(length_B, slots=slots), 0), length_B=length_B)
        object.__setattr__(after, "_is_zeroed", True)
        return after


@register("memory", "state")
@dataclass(frozen=True, kw_only=True)
class StateMemory(Memory):
    """The state of a recurrent network after the last token; with `mem_len` 0 it is forgotten after each segment.

    Attributes:
        state_KLBD: K states of each layer; an LSTM has two.
    """

    kind = "state"
    state_KLBD: Tensor


def length_after(length_B: Tensor, *, segment_len: int, mem_len: int, resets_BT: Tensor | None) -> Tensor:
    """Count the valid slots of each lane after a segment of T tokens, of which `resets_BT` begin a document."""
    after_B = (length_B + segment_len).clamp(max=mem_len)
    if resets_BT is None:
        return after_B
    position_T = torch.arange(1, segment_len + 1, device=resets_BT.device)
    last_border_B = (resets_BT * position_T).amax(dim=1)
    since_border_B = (segment_len + 1 - last_border_B).clamp(max=mem_len)
    return torch.where(last_border_B > 0, since_border_B, after_B)


def beyond(length_B: Tensor, *, slots: int) -> Tensor:
    """Return which slots are not valid: (B, M, 1)."""
    slot_M = torch.arange(slots, device=length_B.device)
    return (slot_M < slots - length_B[:, None])[..., None]
