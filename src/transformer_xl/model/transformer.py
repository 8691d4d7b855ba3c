"""A transformer whose layers attend to their own inputs of earlier segments (Dai et al., 2019, section 3.2).

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from transformer_xl.model.attention import AttentionMask, attention_mask, attention_weights
from transformer_xl.model.base import (
    AttentionWeights,
    Flops,
    LanguageModel,
    ModelOutput,
    check_lanes,
    make_dropout,
    of_kind,
)
from transformer_xl.model.embedding import AdaptiveSoftmax
from transformer_xl.model.kernels.linear import Linear, product_dtype
from transformer_xl.model.memory import HiddenMemory, Memory
from transformer_xl.model.positions import Encoding, PositionEncoding
from transformer_xl.model_config import TransformerConfig
from transformer_xl.registry import lookup, register

Past = Tensor | Callable[[Tensor], Tensor]
"""What came before a segment: a layer's inputs (B, M, D), or what puts keys and values of those before its own."""


class SelfAttention(nn.Module):
    """Projections to queries, keys and values, and of what is attended to."""

    def __init__(self, config: TransformerConfig, position: PositionEncoding) -> None:
        super().__init__()
        width = config.n_head * config.d_head
        self.n_head = config.n_head
        self.dropatt = config.dropatt
        self._position = (position,)  # in a tuple: a part of the model, and not of each layer
        self.query = Linear(config.d_model, width, bias=False)
        self.key_value = Linear(config.d_model, 2 * width, bias=False)
        position.add_to(self)
        self.output = Linear(width, config.d_model, bias=False)

    def keys_and_values(self, rows_BTD: Tensor) -> Tensor:
        """Return keys and values (2, N, B, T, H), a view of what they are projected to.

        In this order those of memory and segment can be put behind one another, and products made of a head's keys.
        """
        projected_BTC: Tensor = self.key_value(rows_BTD)
        lanes, tokens, width = projected_BTC.shape
        return projected_BTC.view(lanes, tokens, 2, self.n_head, width // (2 * self.n_head)).permute(2, 3, 0, 1, 4)

    def forward(
        self, hidden_BTD: Tensor, key_value_2NBSH: Tensor, *, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Attend from the segment to keys and values of memory and segment, at `encoding`'s positions: (B, T, D)."""
        key_NBSH, value_NBSH = key_value_2NBSH.unbind(0)
        attended_BTNH = self._position[0].attend(
            self._queries(hidden_BTD),
            key_NBSH.permute(1, 2, 0, 3),
            value_NBSH.permute(1, 2, 0, 3),
            encoding,
            mask=mask,
            dropout=self.dropatt if self.training else 0.0,
        )
        attended_BTD: Tensor = self.output(attended_BTNH.flatten(-2))
        return attended_BTD

    def weights(
        self, hidden_BTD: Tensor, key_value_2NBSH: Tensor, *, mask: AttentionMask, encoding: Encoding
    ) -> Tensor:
        """Return what each key weighs to each query, (B, N, T, S), before dropout; arguments as in `forward`."""
        key_BSNH = key_value_2NBSH[0].permute(1, 2, 0, 3)
        return attention_weights(self._position[0].scores(self._queries(hidden_BTD), key_BSNH, encoding), mask)

    def _queries(self, hidden_BTD: Tensor) -> Tensor:
        query_BTNH: Tensor = self.query(hidden_BTD).unflatten(-1, (self.n_head, -1))
        return query_BTNH


def make_norm(config: TransformerConfig) -> nn.Module:
    """Make a norm over D; the smallest root mean square of RMSNorm is the same at every precision."""
    return nn.RMSNorm(config.d_model, eps=1e-6) if config.norm == "rms" else nn.LayerNorm(config.d_model)


def relu_network(config: TransformerConfig) -> nn.Sequential:
    """Make the published feed-forward network: two matrices with biases, dropout inside and after it."""
    return nn.Sequential(
        Linear(config.d_model, config.d_inner),
        nn.ReLU(inplace=True),
        make_dropout(config),
        Linear(config.d_inner, config.d_model),
        make_dropout(config),
    )


class SwiGlu(nn.Module):
    """A feed-forward network with a gate: down(silu(gate x) * up x) (Shazeer, 2020), dropout after it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.d_model, 2 * config.d_inner, bias=False)
        self.down = Linear(config.d_inner, config.d_model, bias=False)
        self.dropout = make_dropout(config)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Return (B, T, D)."""
        gate, up = self.gate_up(hidden_BTD).chunk(2, dim=-1)
        fed_BTD: Tensor = self.dropout(self.down(functional.silu(gate) * up))
        return fed_BTD


class DecoderLayer(nn.Module):
    """Post-norm as published; `pre_norm` normalises what goes into each half instead."""

    def __init__(self, config: TransformerConfig, position: PositionEncoding) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = SelfAttention(config, position)
        self.attention_norm = make_norm(config)
        self.feed_forward = SwiGlu(config) if config.feed_forward == "swiglu" else relu_network(config)
        self.feed_forward_norm = make_norm(config)
        self.dropout = make_dropout(config)

    def memory_dtype(self, rows_BTD: Tensor) -> torch.dtype:
        """Return the type in which memory can keep layer inputs, to the bit: that to which a product rounds them.

        With `pre_norm` it is not a product that reads them, and they stay as they are.
        """
        return rows_BTD.dtype if self.pre_norm else product_dtype(rows_BTD)

    def key_value(self, rows_BTD: Tensor) -> Tensor:
        """Project layer inputs to keys and values (2, N, B, T, H)."""
        return self.attention.keys_and_values(self._normed(rows_BTD))

    def forward(self, hidden_BTD: Tensor, past: Past, *, mask: AttentionMask, encoding: Encoding) -> Tensor:
        """Run the layer over one segment, of whose keys' positions `encoding` is: (B, T, D)."""
        normed_BTD = self._normed(hidden_BTD)
        key_value_2NBTH = self.attention.keys_and_values(normed_BTD)
        if isinstance(past, Tensor):
            key_value_2NBSH = torch.cat([self.key_value(past), key_value_2NBTH], dim=3)
        else:
            key_value_2NBSH = past(key_value_2NBTH)
        attended_BTD = self.attention(normed_BTD, key_value_2NBSH, mask=mask, encoding=encoding)
        hidden_BTD = hidden_BTD + self.dropout(attended_BTD)
        if self.pre_norm:
            hidden_BTD = hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        else:
            hidden_BTD = self.attention_norm(hidden_BTD)
            hidden_BTD = self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
        return hidden_BTD

    def _normed(self, hidden_BTD: Tensor) -> Tensor:
        normed_BTD: Tensor = self.attention_norm(hidden_BTD) if self.pre_norm else hidden_BTD
        return normed_BTD


class SegmentRead(NamedTuple):
    """The last hidden states of a segment (B, T, D), and what each layer read."""

    hidden_BTD: Tensor
    inputs_LBTD: list[Tensor]


@register("model", "transformer", config=TransformerConfig)
class Transformer(LanguageModel):
    """Transformer-XL, and what differs from it in positions, norms and feed-forward networks.

    With RMSNorm what is added to the hidden states is drawn sqrt(2 L) times smaller, as in GPT-2 (Radford et al.,
    2019), so that their sum does not grow with the layers; before each half (`pre_norm`) it has a last norm after the
    layers too. LayerNorm has neither, as published.
    """

    config: TransformerConfig
    attends: ClassVar[bool] = True
    compiles: ClassVar[bool] = True
    _run_layer: Callable[..., Tensor] = staticmethod(DecoderLayer.__call__)

    def __init__(self, config: TransformerConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.softmax = AdaptiveSoftmax(self.clusters, embedding=self.embedding, tie_weights=config.tie_weights)
        self.position: PositionEncoding = self.position_class(config)(config.position, config)
        self.relative = self.position.relative
        self.position.move_parameters_to(self)
        layers = nn.ModuleList(DecoderLayer(config, self.position) for _ in range(config.n_layer))
        self.layers = cast("Sequence[DecoderLayer]", layers)
        self.last_norm = make_norm(config) if config.norm == "rms" and config.pre_norm else nn.Identity()
        self.dropout = make_dropout(config)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        super().init_weights()
        if self.config.norm == "layer":
            return
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith(("attention.output.weight", "feed_forward.down.weight", "feed_forward.3.weight")):
                parameter.mul_((2 * self.config.n_layer) ** -0.5)

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

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> HiddenMemory:
        weight = self.embedding.weights[0]
        return HiddenMemory(
            hidden_LBMD=weight.new_zeros(len(self.layers), batch_size, 0, self.config.d_model),
            length_B=torch.zeros(batch_size, dtype=torch.int64, device=weight.device),
            mem_len=self.mem_len if mem_len is None else mem_len,
        )

    def zero_memory(self, batch_size: int, mem_len: int | None = None) -> HiddenMemory:
        empty = self.empty_memory(batch_size, mem_len)
        return replace(empty.with_slots(empty.mem_len), length_B=torch.full_like(empty.length_B, empty.mem_len))

    def encodings(self, *, keys: int, like: Tensor) -> list[Encoding]:
        """Return each layer's encoding of the positions of memory's and the segment's keys, S in all."""
        encoding = self.position.encode(keys=keys, clamp_len=self.clamp_len, like=like)
        return [self.position.project(encoding, layer.attention, index) for index, layer in enumerate(self.layers)]

    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        memory = of_kind(HiddenMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        memory = memory.zeroed()
        memory = memory.detach() if detach else memory
        read = self.read(
            tokens_BT,
            memory.hidden_LBMD.unbind(0),
            slots=memory.slots,
            length_B=memory.length_B,
            mem_len=memory.mem_len,
            resets_BT=resets_BT,
            detach=detach,
        )
        return ModelOutput(read.hidden_BTD, memory.after(read.inputs_LBTD, resets_BT=resets_BT))

    def read(
        self,
        tokens_BT: Tensor,
        past_L: Sequence[Past],
        *,
        slots: int,
        length_B: Tensor,
        mem_len: int,
        resets_BT: Tensor | None,
        encodings: Callable[..., Sequence[Encoding]] | None = None,
        detach: bool = False,
    ) -> SegmentRead:
        """Run all layers over one segment.

        For each layer `past_L` says what came before: M = `slots` keys, of which a lane may look at the newest
        `length_B`; `encodings` may stand for the method of that name. `detach`: layer inputs come out without a graph,
        and of the type in which memory can keep them.
        """
        segment_len = tokens_BT.shape[1]
        self.check_context(segment_len=segment_len, mem_len=mem_len)
        mask = attention_mask(
            length_B=length_B,
            slots=slots,
            segment_len=segment_len,
            mem_len=mem_len,
            same_length=self.same_length,
            resets_BT=resets_BT,
        )
        return self.run_layers(self.embedding(tokens_BT), past_L, mask=mask, encodings=encodings, detach=detach)

    def run_layers(
        self,
        embedded_BTD: Tensor,
        past_L: Sequence[Past],
        *,
        mask: AttentionMask,
        encodings: Callable[..., Sequence[Encoding]] | None = None,
        detach: bool = False,
    ) -> SegmentRead:
        """Run all layers over rows that are embedded; `mask` says which keys of past and rows each sees; see `read`."""
        hidden_BTD: Tensor = self.dropout(self.position.embed(embedded_BTD))
        encoding_L = (encodings or self.encodings)(keys=mask.visible_BTS.shape[2], like=hidden_BTD)
        run_layer = self._run_layer
        if self.config.recompute == "layers" and torch.is_grad_enabled():
            run_layer = partial(checkpoint, run_layer, use_reentrant=False)  # with the same random numbers
        inputs_LBTD = []
        for index, layer in enumerate(self.layers):
            hidden_BTD = self.position.layer_input(hidden_BTD, index)
            dtype, past = layer.memory_dtype(hidden_BTD), past_L[index]
            inputs_LBTD.append(hidden_BTD.detach().to(dtype) if detach else hidden_BTD)
            past = past.to(dtype) if isinstance(past, Tensor) else past
            hidden_BTD = run_layer(layer, hidden_BTD, past, mask=mask, encoding=encoding_L[index])
        return SegmentRead(self.dropout(self.last_norm(hidden_BTD)), inputs_LBTD)

    def attention_weights(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> AttentionWeights:
        """Return what each key weighs to each token, before dropout, computed as the equation reads."""
        weights: list[Tensor] = []

        def note(attention: Any, args: Any, kwargs: Any) -> None:
            weights.append(attention.weights(*args, **kwargs))

        hooks = [layer.attention.register_forward_pre_hook(note, with_kwargs=True) for layer in self.layers]
        try:
            after = self(tokens_BT, memory, resets_BT).memory
        finally:
            for hook in hooks:
                hook.remove()
        return AttentionWeights(torch.stack(weights), after)

    def flops(self, *, batch_size: int, segment_len: int, cluster_shares: Sequence[float]) -> Flops:
        of_matrices = super().flops(batch_size=batch_size, segment_len=segment_len, cluster_shares=cluster_shares)
        config, mem_len, tokens = self.config, self.mem_len, batch_size * segment_len
        heads = config.n_head * config.d_head
        of_memory = 2 * batch_size * mem_len * config.d_model * 2 * heads  # keys and values
        layer = of_memory + self.position.scored * tokens * heads * (2 * mem_len + segment_len + 1)
        if hasattr(self.layers[0].attention, "position"):  # the distances' projections: once, and not of each token
            layer += 2 * (mem_len + segment_len - tokens) * config.d_model * heads
        return Flops(of_matrices.forward + config.n_layer * layer, config.n_layer * of_memory)
