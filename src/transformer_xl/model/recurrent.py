"""Recurrent networks as language models: their state after the last token is the memory.

Letters: B lanes, T tokens, D width, K states of a cell (an LSTM has two).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from transformer_xl.model.base import Flops, LanguageModel, ModelOutput, check_lanes, make_dropout, of_kind
from transformer_xl.model.embedding import AdaptiveSoftmax
from transformer_xl.model.memory import Memory, StateMemory
from transformer_xl.model_config import RecurrentConfig
from transformer_xl.registry import register

CELLS: dict[str, type[nn.RNN | nn.GRU | nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RecurrentLayer(nn.Module):
    """One layer of cells, whatever their states."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.is_lstm = config.kind == "lstm"
        self.network = CELLS[config.kind](config.d_model, config.d_model, batch_first=True)

    def forward(
        self, input_BTD: Tensor, state_KBD: Tensor, pieces: Sequence[slice], resets_BT: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return a segment's outputs (B, T, D) and the state after it; a lane's reset always begins a piece."""
        outputs = []
        for piece in pieces:
            if resets_BT is not None:
                state_KBD = state_KBD.masked_fill(resets_BT[None, :, piece.start, None], 0)
            if self.is_lstm:
                hidden_cell = (state_KBD[:1].contiguous(), state_KBD[1:].contiguous())
                output_BTD, after = self.network(input_BTD[:, piece], hidden_cell)
                state_KBD = torch.cat(after)
            else:
                output_BTD, state_KBD = self.network(input_BTD[:, piece], state_KBD)
            outputs.append(output_BTD)
        return torch.cat(outputs, dim=1), state_KBD


@register("model", "rnn", config=RecurrentConfig)
@register("model", "gru", config=RecurrentConfig)
@register("model", "lstm", config=RecurrentConfig)
class RecurrentModel(LanguageModel):
    """Layers of tanh, GRU or LSTM cells; dropout after the embedding and after each layer.

    A memory's `mem_len` says only whether the state outlives a segment: above 0 it does.
    """

    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        layers = nn.ModuleList(RecurrentLayer(config) for _ in range(config.n_layer))
        self.layers = cast("Sequence[RecurrentLayer]", layers)
        self.softmax = AdaptiveSoftmax(self.clusters, embedding=self.embedding, tie_weights=config.tie_weights)
        self.dropout = make_dropout(config)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw cells' matrices from U(-1, 1) / sqrt(D), torch's own choice; biases are 0, an LSTM's forget gates' 1.

        A matrix of that size neither blows up nor loses a state at once at any width, as N(0, init_std) would; an open
        forget gate keeps it (Jozefowicz et al., 2015).
        """
        super().init_weights()
        for layer in self.layers:
            layer.network.reset_parameters()
            for name, parameter in layer.network.named_parameters():
                if name.startswith("bias"):
                    parameter.zero_()
            if layer.is_lstm:  # gates: input, forget, cell, output, each with a bias of the input and one of the state
                layer.network.get_parameter("bias_ih_l0").chunk(4)[1].fill_(1.0)

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> StateMemory:
        states = 2 if self.config.kind == "lstm" else 1
        shape = (states, len(self.layers), batch_size, self.config.d_model)
        return StateMemory(
            state_KLBD=self.embedding.weights[0].new_zeros(shape), mem_len=self.mem_len if mem_len is None else mem_len
        )

    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        memory = of_kind(StateMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        self.check_context(segment_len=tokens_BT.shape[1], mem_len=memory.mem_len)
        pieces = _pieces(resets_BT, segment_len=tokens_BT.shape[1])
        hidden_BTD = self.dropout(self.embedding(tokens_BT))
        if detach:
            memory = memory.detach()
        after = []
        for layer, state_KBD in zip(self.layers, memory.state_KLBD.unbind(dim=1), strict=True):
            hidden_BTD, state_KBD = layer(hidden_BTD, state_KBD.to(hidden_BTD.dtype), pieces, resets_BT)
            hidden_BTD = self.dropout(hidden_BTD)
            after.append(state_KBD.detach() if detach else state_KBD)
        state_KLBD = torch.stack(after, dim=1)
        if memory.mem_len == 0:
            state_KLBD = torch.zeros_like(state_KLBD)
        return ModelOutput(hidden_BTD, replace(memory, state_KLBD=state_KLBD))

    def flops(self, *, batch_size: int, segment_len: int, cluster_shares: Sequence[float]) -> Flops:
        flops = super().flops(batch_size=batch_size, segment_len=segment_len, cluster_shares=cluster_shares)
        # half of the matrices are of the state, and the first token's state is memory
        return flops._replace(into_memory=batch_size * self._numbers_of_matrices())


def _pieces(resets_BT: Tensor | None, *, segment_len: int) -> list[slice]:
    """Cut a segment where any lane resets.

    On a device the host waits to see where, unless the reader has left it a copy (`on_host`, an array).
    """
    known = getattr(resets_BT, "on_host", None)
    known = resets_BT if known is None else known
    begins_T = [] if known is None else known.any(0).tolist()
    edges = [0, *(place for place, begins in enumerate(begins_T) if begins and place > 0), segment_len]
    return [slice(start, stop) for start, stop in pairwise(edges)]
