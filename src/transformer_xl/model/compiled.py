"""Training by layers that `torch.compile` has translated.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_xl.model.base import TokenLosses, of_kind
from transformer_xl.model.memory import HiddenMemory, Memory
from transformer_xl.model.transformer import DecoderLayer, Transformer


def compiled_losses(
    model: Transformer, *, segment_len: int, backend: str | Callable[..., Any]
) -> Callable[..., tuple[TokenLosses, Tensor | None]]:
    """Return the model's `training_losses`, by layers that `torch.compile` has translated.

    A layer at a time and of fixed shapes: all of them share one graph, which takes a fraction of the time to compile
    that the whole network would, and what makes the host wait or has other shapes in each step (an adaptive softmax)
    stays outside of it. Segments of another length, as the last of an epoch, are read by the model itself. The memory
    that comes out has all its slots.
    """
    reader = copy.copy(model)
    reader._run_layer = torch.compile(DecoderLayer.forward, backend=backend, dynamic=False)

    def training_losses(
        tokens_BT: Tensor, targets_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> tuple[TokenLosses, Tensor | None]:
        if tokens_BT.shape[1] != segment_len:
            return model.training_losses(tokens_BT, targets_BT, memory, resets_BT, detach=detach)
        memory = of_kind(HiddenMemory, memory).with_slots(memory.mem_len)
        return reader.training_losses(tokens_BT, targets_BT, memory, resets_BT, detach=detach)

    return training_losses
