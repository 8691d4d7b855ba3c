"""What all transformers with a memory of layer inputs have in common; how positions enter is each one's own.

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from transformer_xl.config import TransformerConfig
from transformer_xl.model.base import AttentionWeights, LanguageModel, ModelOutput, check_lanes, of_kind
from transformer_xl.model.embedding import AdaptiveEmbedding, AdaptiveSoftmax
from transformer_xl.model.flops import LayerProducts, step_flops
from transformer_xl.model.init import init_weights
from transformer_xl.model.kernels.linear import prepack
from transformer_xl.model.layers import Encoding, Layer, WithMemory, make_dropout
from transformer_xl.model.mask import AttentionMask, attention_mask
from transformer_xl.model.memory import HiddenMemory, Memory, check_mem_len, next_memory


class LayerRun(NamedTuple):
    """The last hidden states of a segment (B, T, D), and what each layer read."""

    hidden_BTD: Tensor
    inputs_LBTD: list[Tensor]


@dataclass(frozen=True)
class ConcatMemory:
    """Puts a segment's keys and values behind those that a layer makes of its inputs of earlier segments."""

    layer: Layer
    memory_BMD: Tensor

    def __call__(self, key_value_2NBTH: Tensor) -> Tensor:
        """Give keys and values of memory and segment (2, N, B, S, H)."""
        return torch.cat([self.layer.key_value(self.memory_BMD), key_value_2NBTH], dim=3)


def call_layer(layer: Layer, **arguments: Any) -> Tensor:
    """Run a layer, as `torch.compile` takes it: a function of the layer and its arguments."""
    return layer(**arguments)


class MemoryTransformer(LanguageModel):
    """Layers that attend to their own inputs of earlier segments (paper, section 3.2).

    A subclass makes its layers in `make_layer` and its other parameters in `make_positions`, and names the matrix
    products of a layer in `products`.

    Attributes:
        products: which matrix products a layer has.
        clamps_distances: whether a distance can count as another, as `clamp_len` asks.
    """

    config: TransformerConfig
    products: ClassVar[LayerProducts]
    clamps_distances: ClassVar[bool] = False

    def __init__(self, config: TransformerConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.set_context(config, vocab_size=vocab_size)
        self._call_layer: Callable[..., Tensor] = call_layer
        self.embedding = AdaptiveEmbedding(self.clusters)
        self.softmax = AdaptiveSoftmax(self.clusters, embedding=self.embedding, tie_weights=config.tie_weights)
        self.layers = nn.ModuleList(self.make_layer() for _ in range(config.n_layer))
        self.make_positions()
        self.dropout = make_dropout(config.dropout, variational=config.variational_dropout)
        init_weights(self)

    @abstractmethod
    def make_layer(self) -> nn.Module:
        """Make one layer; it is called as a `DecoderLayer` is."""

    def make_positions(self) -> None:
        """Make the parameters of positions that belong to no layer."""

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Give the first layer's input (B, T, D)."""
        embedded_BTD: Tensor = self.dropout(self.embedding(tokens_BT))
        return embedded_BTD

    def last_hidden(self, hidden_BTD: Tensor) -> Tensor:
        """Give what the softmax reads, but for dropout, from the output of the last layer."""
        return hidden_BTD

    def layer_input(self, index: int, hidden_BTD: Tensor) -> Tensor:
        """Give what a layer reads of the segment, and leaves in memory, from the output of the one below."""
        return hidden_BTD

    @abstractmethod
    def encodings(self, *, segment_len: int, slots: int, like: Tensor) -> Sequence[Encoding]:
        """Give each layer's encoding of positions.

        Args:
            segment_len: T.
            slots: M.
            like: a tensor of the device and dtype to use.
        """

    def cached_encodings(self, *, keys: int, like: Tensor) -> Sequence[Encoding]:
        """Give each layer's encoding for so many keys of memory and segment, in the order that is read fastest."""
        return self.encodings(segment_len=1, slots=keys - 1, like=like)

    def newest_encoding(self, encoding: Encoding, *, keys: int) -> Encoding:
        """Give a layer's encoding for fewer keys than it was made for, as views."""
        return encoding

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> HiddenMemory:
        """Give the memory of lanes that have read nothing: hidden (L, B, 0, D), lengths 0."""
        return self._memory(batch_size=batch_size, slots=0, mem_len=self.mem_len if mem_len is None else mem_len)

    def zero_memory(self, batch_size: int, mem_len: int | None = None) -> HiddenMemory:
        """Give a memory of `mem_len` zeros that are attended to, as the TensorFlow code starts."""
        mem_len = self.mem_len if mem_len is None else mem_len
        return self._memory(batch_size=batch_size, slots=mem_len, mem_len=mem_len)

    def _memory(self, *, batch_size: int, slots: int, mem_len: int) -> HiddenMemory:
        check_mem_len(mem_len)
        weight = self.embedding.weights[0]
        return HiddenMemory(
            hidden_LBMD=weight.new_zeros(len(self.layers), batch_size, slots, self.config.d_model),
            length_B=torch.full((batch_size,), slots, device=weight.device),
            mem_len=mem_len,
        )

    def memory_size(self, mem_len: int) -> int:
        """Count the numbers that a full memory holds for one lane."""
        return len(self.layers) * mem_len * self.config.d_model

    def forward(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> ModelOutput:
        """Read one segment; see `LanguageModel.forward`.

        Raises:
            ValueError: lanes, segment length, `same_length` or `clamp_len` that the model or memory cannot take.
        """
        memory = of_kind(HiddenMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        segment_len, slots = tokens_BT.shape[1], memory.rows.shape[2]
        self.check_context(segment_len=segment_len, mem_len=memory.mem_len)
        memory = memory.zeroed()
        mask = attention_mask(
            length_B=memory.length_B,
            slots=slots,
            segment_len=segment_len,
            mem_len=memory.mem_len,
            same_length=self.same_length,
            resets_BT=resets_BT,
        )
        embedded_BTD = self.embed(tokens_BT)

        def with_memory(index: int, layer: Layer) -> WithMemory:
            return ConcatMemory(layer, memory.rows[index].to(embedded_BTD.dtype))

        encodings = self.encodings(segment_len=segment_len, slots=slots, like=embedded_BTD)
        hidden_BTD, inputs_LBTD = self.run_layers(embedded_BTD, with_memory=with_memory, mask=mask, encodings=encodings)
        after = next_memory(memory=memory, rows_LBTD=inputs_LBTD, resets_BT=resets_BT, segment_len=segment_len)
        return ModelOutput(hidden_BTD, after)

    def run_layers(
        self,
        hidden_BTD: Tensor,
        *,
        with_memory: Callable[[int, Layer], WithMemory],
        mask: AttentionMask,
        encodings: Sequence[Encoding],
    ) -> LayerRun:
        """Run all layers over one segment.

        Args:
            hidden_BTD: what `embed` gave.
            with_memory: for a layer's number and itself, gives what puts memory's keys and values before its own.
            mask: which keys each query sees.
            encodings: of positions, for each layer.
        """
        inputs_LBTD = []
        for index, layer in enumerate(cast("Sequence[Layer]", self.layers)):
            hidden_BTD = self.layer_input(index, hidden_BTD)
            inputs_LBTD.append(hidden_BTD)
            hidden_BTD = self._call_layer(
                layer,
                hidden_BTD=hidden_BTD,
                with_memory=with_memory(index, layer),
                mask=mask,
                encoding=encodings[index],
            )
        return LayerRun(self.dropout(self.last_hidden(hidden_BTD)), inputs_LBTD)

    def with_layers_called_by(self, call: Callable[..., Tensor]) -> Self:
        """Give the same model, its parameters shared, whose layers run by a function that stands for `call_layer`."""
        twin = copy.copy(self)
        twin._call_layer = call
        return twin

    def with_prepacked_layers(self) -> Self:
        """Give the same model, its parameters shared, with layers for few tokens at a time; see `prepack`."""
        twin = copy.copy(self)
        twin._modules = {**self._modules, "layers": nn.ModuleList(prepack(layer) for layer in self.layers)}
        return twin

    def attention_weights(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> AttentionWeights:
        """Give what each key weighs to each token; see `LanguageModel.attention_weights`.

        Computed as the equation reads, beside the attention that the model runs: a tensor of all layers, heads,
        queries and keys, which `with_layers_called_by` can avoid where a layer at a time is enough.

        Raises:
            ValueError: as in `forward`.
        """
        weights: list[Tensor] = []

        def call(layer: Layer, **arguments: Any) -> Tensor:
            weights.append(layer.attention_weights(**arguments))
            return layer(**arguments)

        after = self.with_layers_called_by(call)(tokens_BT, memory, resets_BT).memory
        return AttentionWeights(torch.stack(weights), after)

    def check_context(self, *, segment_len: int, mem_len: int) -> None:
        """Refuse what the model cannot read.

        Raises:
            ValueError: segment length, `same_length` or `clamp_len` that the model or memory cannot take.
        """
        if self.same_length and mem_len == 0:
            raise ValueError("same_length is true with mem_len 0, and needs a mem_len of at least 1")
        if self.clamp_len is not None and not self.clamps_distances:
            raise ValueError(f"clamp_len is {self.clamp_len}, and must be None for {self.config.kind}")
        if self.max_segment_len is not None and segment_len > self.max_segment_len:
            raise ValueError(
                f"the segment has {segment_len} tokens, and the model can read at most {self.max_segment_len} at once"
            )

    def head_log_probs(self, hidden_BTD: Tensor) -> Tensor:
        """Give log-probabilities (B, T, V)."""
        return self.softmax.log_probs(hidden_BTD)

    def head_nll(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Give losses (B, T) in nats."""
        return self.softmax.nll(hidden_BTD, targets_BT)

    def step_flops(self, *, batch_size: int, segment_len: int, cluster_shares: Sequence[float]) -> int:
        """Count the useful operations of a training step; see `flops.py`."""
        return step_flops(
            self.config,
            self.products,
            clusters=self.clusters,
            batch_size=batch_size,
            segment_len=segment_len,
            mem_len=self.mem_len,
            cluster_shares=cluster_shares,
        )
