"""A network with a memory of its own: gated states h_t = a_t h_{t-1} + (1 - a_t) x_t (as in Bradbury et al., 2017).

python train.py plugins=[examples/parts/linear_recurrence.py] model=linear_recurrence
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from transformer_xl.model.base import LanguageModel, ModelOutput, check_lanes, of_kind
from transformer_xl.model.embedding import AdaptiveSoftmax
from transformer_xl.model.memory import Memory
from transformer_xl.model_config import ModelConfig
from transformer_xl.registry import register


@register("memory", "decay")
@dataclass(frozen=True, kw_only=True)
class DecayMemory(Memory):
    """The state of each layer after the last token; with `mem_len` 0 nothing is kept."""

    kind = "decay"
    state_BLD: Tensor


class LinearRecurrenceConfig(ModelConfig):
    """What every network has."""

    kind: Literal["linear_recurrence"]


@register("model", "linear_recurrence", config=LinearRecurrenceConfig)
class LinearRecurrence(LanguageModel):
    """Each layer adds its state to what it reads."""

    def __init__(self, config: LinearRecurrenceConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.softmax = AdaptiveSoftmax(self.clusters, embedding=self.embedding, tie_weights=config.tie_weights)
        self.layers = nn.ModuleList(nn.Linear(config.d_model, 2 * config.d_model) for _ in range(config.n_layer))
        self.init_weights()

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> DecayMemory:
        zeros_BLD = self.embedding.weights[0].new_zeros(batch_size, len(self.layers), self.config.d_model)
        return DecayMemory(state_BLD=zeros_BLD, mem_len=self.mem_len if mem_len is None else mem_len)

    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        memory = of_kind(DecayMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        self.check_context(segment_len=tokens_BT.shape[1], mem_len=memory.mem_len)
        keeps_BT = torch.ones_like(tokens_BT) if resets_BT is None else ~resets_BT
        hidden_BTD, after = self.embedding(tokens_BT), []
        for layer, state_BD in zip(self.layers, memory.state_BLD.unbind(dim=1), strict=True):
            input_BTD, gate_BTD = layer(hidden_BTD).chunk(2, dim=-1)
            states = [state_BD.detach() if detach else state_BD]
            for keep_B, input_BD, decay_BD in zip(
                keeps_BT.unbind(1), input_BTD.unbind(1), gate_BTD.sigmoid().unbind(1), strict=True
            ):
                states.append(decay_BD * keep_B[:, None] * states[-1] + (1 - decay_BD) * input_BD)
            hidden_BTD = hidden_BTD + torch.stack(states[1:], dim=1)
            after.append(states[-1])
        state_BLD = torch.stack(after, dim=1)
        if memory.mem_len == 0:
            state_BLD = torch.zeros_like(state_BLD)
        return ModelOutput(hidden_BTD, replace(memory, state_BLD=state_BLD.detach() if detach else state_BLD))
