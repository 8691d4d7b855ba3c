"""Training's memory in a checkpoint: every lane's, in global order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from transformer_xl.model.memory import Memory, join_lanes


def packed(memory: Memory) -> dict[str, Any]:
    """Return a memory of all lanes as plain containers and tensors that hold nothing else."""
    return {name: _alone(value) if isinstance(value, Tensor) else value for name, value in memory.state_dict().items()}


def _alone(tensor: Tensor) -> Tensor:
    # torch.save writes the whole of what a tensor is a view of
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


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
