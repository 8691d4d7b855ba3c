"""A transformer whose layers attend to their own inputs of earlier segments (Dai et al., 2019, section 3.2).

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from transformer_xl.model.base import AttentionWeights, LanguageModel, ModelOutput, check_lanes, of_kind
from transformer_xl.model.embedding import AdaptiveSoftmax
from transformer_xl.model.flops import Flops, LayerProducts, transformer_flops
from transformer_xl.model.init import init_weights, shrink_residual_weights
from transformer_xl.model.kernels.linear import prepack
from transformer_xl.model.layers import FEED_FORWARD, DecoderLayer, ExtendKeyValue, make_dropout, make_norm
from transformer_xl.model.mask import AttentionMask, attention_mask
from transformer_xl.model.memory import HiddenMemory, Memory, check_mem_len
from transformer_xl.model.positions import Encoding, PositionEncoding
from transformer_xl.model_config import TransformerConfig
from transformer_xl.registry import lookup, register


class LayerRun(NamedTuple):
    """The last hidden states of a segment (B, T, D), and what each layer read."""

    hidden_BTD: Tensor
    inputs_LBTD: list[Tensor]


@dataclass(frozen=True)
class ConcatMemory:
    """Puts a segment's keys and values behind those that a layer makes of its inputs of earlier segments."""

    layer: DecoderLayer
    memory_BMD: Tensor

    def __call__(self, key_value_2NBTH: Tensor) -> Tensor:
        """Return keys and values of memory and segment (2, N, B, S, H)."""
        return torch.cat([self.layer.key_value(self.memory_BMD), key_value_2NBTH], dim=3)


def call_layer(layer: DecoderLayer, **arguments: Any) -> Tensor:
    """Run a layer, as `torch.compile` takes it: a function of the layer and its arguments."""
    output_BTD: Tensor = layer(**arguments)
    return output_BTD


@register("model", "transformer", config=TransformerConfig)
class Transformer(LanguageModel):
    """Transformer-XL, and what differs from it in positions, norms and feed-forward networks.

    With RMSNorm before each half there is a last norm after the layers (none with LayerNorm, as published), and initial
    weights are GPT-2's; see `shrink_residual_weights`.

    Attributes:
        position: how positions enter.
    """

    config: TransformerConfig
    attends: ClassVar[bool] = True
    compiles: ClassVar[bool] = True

    def __init__(self, config: TransformerConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self._call_layer: Callable[..., Tensor] = call_layer
        self.softmax = AdaptiveSoftmax(self.clusters, embedding=self.embedding, tie_weights=config.tie_weights)
        self.position: PositionEncoding = self.position_class(config)(config.position, config)
        self.relative = self.position.relative
        self.position.move_parameters_to(self)
        self.layers = nn.ModuleList(DecoderLayer(config, self.position) for _ in range(config.n_layer))
        self.last_norm = make_norm(config) if config.norm == "rms" and config.pre_norm else nn.Identity()
        self.dropout = make_dropout(config.dropout, variational=config.variational_dropout)
        init_weights(self)
        if config.norm == "rms":
            shrink_residual_weights(self)

    @staticmethod
    def position_class(config: TransformerConfig) -> type[PositionEncoding]:
        """Return the class of a model's position encoding."""
        return cast("type[PositionEncoding]", lookup("position", config.position.kind).factory)

    @classmethod
    def clamps(cls, config: TransformerConfig) -> bool:
        return cls.position_class(config).clamps

    @classmethod
    def longest_segment(cls, config: TransformerConfig) -> int | None:
        return cls.position_class(config).longest_segment(config.position)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Return the first layer's input (B, T, D)."""
        embedded_BTD: Tensor = self.dropout(self.position.embed(self.embedding(tokens_BT)))
        return embedded_BTD

    def encodings(self, *, keys: int, like: Tensor) -> list[Encoding]:
        """Return each layer's encoding of the positions of memory's and the segment's keys, S in all."""
        encoding = self.position.encode(keys=keys, clamp_len=self.clamp_len, like=like)
        return [
            self.position.project(encoding, layer.attention, index)
            for index, layer in enumerate(cast("Sequence[DecoderLayer]", self.layers))
        ]

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> HiddenMemory:
        return self._memory(batch_size=batch_size, slots=0, mem_len=self.mem_len if mem_len is None else mem_len)

    def zero_memory(self, batch_size: int, mem_len: int | None = None) -> HiddenMemory:
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
        return len(self.layers) * mem_len * self.config.d_model

    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        memory = of_kind(HiddenMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        segment_len, slots = tokens_BT.shape[1], memory.slots
        self.check_context(segment_len=segment_len, mem_len=memory.mem_len)
        memory = (memory.detach() if detach else memory).zeroed()
        mask = attention_mask(
            length_B=memory.length_B,
            slots=slots,
            segment_len=segment_len,
            mem_len=memory.mem_len,
            same_length=self.same_length,
            resets_BT=resets_BT,
        )
        embedded_BTD = self.embed(tokens_BT)

        def extend_kv(index: int, layer: DecoderLayer) -> ExtendKeyValue:
            return ConcatMemory(layer, memory.hidden_LBMD[index].to(embedded_BTD.dtype))

        encodings = self.encodings(keys=slots + segment_len, like=embedded_BTD)
        hidden_BTD, inputs_LBTD = self.run_layers(embedded_BTD, extend_kv=extend_kv, mask=mask, encodings=encodings)
        if detach:
            inputs_LBTD = [rows_BTD.detach() for rows_BTD in inputs_LBTD]
        return ModelOutput(hidden_BTD, memory.after(inputs_LBTD, resets_BT=resets_BT))

    def run_layers(
        self,
        hidden_BTD: Tensor,
        *,
        extend_kv: Callable[[int, DecoderLayer], ExtendKeyValue],
        mask: AttentionMask,
        encodings: Sequence[Encoding],
    ) -> LayerRun:
        """Run all layers over one segment.

        Args:
            hidden_BTD: what `embed` returned.
            extend_kv: for a layer's number and itself, returns what puts memory's keys and values before its own.
            mask: which keys each query sees.
            encodings: of positions, for each layer.
        """
        inputs_LBTD = []
        for index, layer in enumerate(cast("Sequence[DecoderLayer]", self.layers)):
            hidden_BTD = self.position.layer_input(hidden_BTD, index)
            inputs_LBTD.append(hidden_BTD)
            hidden_BTD = self._call_layer(
                layer,
                hidden_BTD=hidden_BTD,
                extend_kv=extend_kv(index, layer),
                mask=mask,
                encoding=encodings[index],
            )
        return LayerRun(self.dropout(self.last_norm(hidden_BTD)), inputs_LBTD)

    def with_layers_called_by(self, call: Callable[..., Tensor]) -> Self:
        """Return the same model, its parameters shared, whose layers run by a function that stands for `call_layer`."""
        twin = copy.copy(self)
        twin._call_layer = call
        return twin

    def with_prepacked_layers(self) -> Self:
        """Return the same model, its parameters shared, with layers for few tokens at a time; see `prepack`."""
        twin = copy.copy(self)
        twin._modules = {**self._modules, "layers": nn.ModuleList(prepack(layer) for layer in self.layers)}
        return twin

    def attention_weights(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> AttentionWeights:
        """Return what each key weighs to each token; see `LanguageModel.attention_weights`.

        Computed as the equation reads, beside the attention that the model runs: a tensor of all layers, heads,
        queries and keys, which `with_layers_called_by` can avoid where a layer at a time is enough.
        """
        weights: list[Tensor] = []

        def call(layer: DecoderLayer, **arguments: Any) -> Tensor:
            weights.append(layer.attention_weights(**arguments))
            return call_layer(layer, **arguments)

        after = self.with_layers_called_by(call)(tokens_BT, memory, resets_BT).memory
        return AttentionWeights(torch.stack(weights), after)

    @property
    def products(self) -> LayerProducts:
        """Which matrix products a layer has."""
        feed_forward = FEED_FORWARD[self.config.feed_forward].matrices
        return LayerProducts(self.position.scored, self.position.projects, feed_forward)

    def flops(self, *, batch_size: int, segment_len: int, cluster_shares: Sequence[float]) -> Flops:
        return transformer_flops(
            self.config,
            self.products,
            self.clusters,
            batch_size=batch_size,
            segment_len=segment_len,
            mem_len=self.mem_len,
            cluster_shares=cluster_shares,
        )
