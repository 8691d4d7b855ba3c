"""Training's segments read through compiled layers, of fixed shapes, so that one graph serves the whole run.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from transformer_xl.model.base import TokenLosses, of_kind
from transformer_xl.model.memory import HiddenMemory, Memory
from transformer_xl.model.transformer import Transformer, call_layer


class CompiledTraining:
    """A model's losses by layers that `torch.compile` has translated.

    A layer at a time: all of them share one graph, which takes a fraction of the time to compile that the whole network
    would, and what makes the host wait or has other shapes in each step (an adaptive softmax) stays outside of it. The
    model itself, and the names of its weights, stay what they are: evaluation goes on through the model. Segments of
    another length than `segment_len`, as the last of an epoch, are read by the model.
    """

    def __init__(self, model: Transformer, *, segment_len: int, backend: str | Callable[..., Any]) -> None:
        self._model = model
        self._segment_len = segment_len
        self._call = torch.compile(call_layer, backend=backend, dynamic=False)

    def nll(
        self, tokens_BT: Tensor, targets_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None
    ) -> TokenLosses:
        """Return each target's loss in nats; see `LanguageModel.nll`. The memory that comes out has all its slots."""
        if tokens_BT.shape[1] != self._segment_len:
            return self._model.nll(tokens_BT, targets_BT, memory, resets_BT)
        memory = of_kind(HiddenMemory, memory).with_slots(memory.mem_len)
        return self._model.with_layers_called_by(self._call).nll(tokens_BT, targets_BT, memory, resets_BT)
