"""Training's memory in a checkpoint: every lane's, in global order, in the type that the run chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from transformer_xl.model.memory import Memory, join_lanes, memory_from_state_dict

ROUNDED_FROM = "rounded_from"
"""Where a packed memory says which type it had."""

_TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.float16)}


def packed(memory: Memory, *, rounded: bool) -> dict[str, Any]:
    """Give a memory as plain containers and tensors that hold nothing else.

    Args:
        memory: of all lanes.
        rounded: to bfloat16, from any wider type.
    """
    state = {name: _alone(value) if isinstance(value, Tensor) else value for name, value in memory.state_dict().items()}
    wide = {
        name: value for name, value in state.items() if isinstance(value, Tensor) and value.dtype in _TYPES.values()
    }
    if rounded and wide:
        state |= {name: value.to(torch.bfloat16) for name, value in wide.items()}
        state[ROUNDED_FROM] = str(next(iter(wide.values())).dtype).removeprefix("torch.")
    return state


def _alone(tensor: Tensor) -> Tensor:
    # torch.save writes the whole of what a tensor is a view of
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def unpacked(state: Mapping[str, Any]) -> Memory:
    """Undo `packed`, but for what rounding took away."""
    values = dict(state)
    name = values.pop(ROUNDED_FROM, None)
    if name is not None:
        dtype = _TYPES[name]
        values = {
            key: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for key, value in values.items()
        }
    return memory_from_state_dict(values)


def gathered(memory: Memory, *, rank: int, lanes: Sequence[int]) -> Memory | None:
    """Bring the memories of all processes together on the first one, in main memory; None on the others.

    One process sends at a time, so that the first one's device holds one process's memory more, and not all of them.

    Args:
        memory: of this process's lanes.
        rank: of this process.
        lanes: number of lanes of each process; the first has the most.
    """
    if rank > 0:
        for tensor in _tensors_of(memory):
            torch.distributed.send(tensor.contiguous(), dst=0)
        return None
    memories = [memory.to("cpu")]
    for peer in range(1, len(lanes)):
        received = memory.lanes(slice(0, lanes[peer]))  # the same shape, to be overwritten
        for tensor in _tensors_of(received):
            buffer = tensor.contiguous()
            torch.distributed.recv(buffer, src=peer)
            tensor.copy_(buffer)
        memories.append(received.to("cpu"))
    return join_lanes(memories)


def _tensors_of(memory: Memory) -> Iterator[Tensor]:
    return (value for value in memory.state_dict().values() if isinstance(value, Tensor))
