"""A compressive memory (Rae et al., 2020): the oldest rows of the memory are compressed instead of forgotten.

python train.py plugins=[examples/parts/compressive.py] model=compressive model.rate=4 model.compressed_len=16

Groups of rows are counted from a document's first token, so that the text alone says what is compressed together. While
nothing is compressed yet, up to `mem_len` tokens, a text cut into any pieces equals one pass. Beyond that, as in
Transformer-XL, what a query sees depends on where its piece begins: the groups that were complete there are compressed.

Letters: L layers, B lanes, T tokens, M slots, S rows, K groups of rows, D width, N heads, H head width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transformer_xl.model.attention import AttentionMask, plain_attention
from transformer_xl.model.base import Flops, ModelOutput, TokenLosses, check_lanes, of_kind
from transformer_xl.model.kernels.linear import Linear, linear
from transformer_xl.model.memory import HiddenMemory, Memory, length_after
from transformer_xl.model.transformer import DecoderLayer, Transformer
from transformer_xl.model_config import TransformerConfig
from transformer_xl.registry import register
from transformer_xl.settings import Width


@register("memory", "compressive")
@dataclass(frozen=True, kw_only=True)
class CompressiveMemory(HiddenMemory):
    """Layer inputs, newest last; of each lane's `length_B` rows the oldest `compressed_B` stand for a group each.

    `mem_len` rows are never compressed, and up to rate - 1 more wait for the rest of their group; 0 keeps nothing.
    """

    kind = "compressive"
    compressed_B: Tensor


class CompressiveConfig(TransformerConfig):
    kind: Literal["compressive"]
    rate: Width = 4  # rows of a group, which become one
    compressed_len: Width = 16  # compressed rows that are kept


@register("model", "compressive", config=CompressiveConfig)
class Compressive(Transformer):
    """Each layer attends to compressed rows, rows and the segment, as if each were one token further.

    A convolution of width and stride `rate` compresses. It learns to keep what attention to the rows gives, by a loss
    beside that of the targets, from which nothing else gets a gradient.
    """

    config: CompressiveConfig
    attends = False  # not to single tokens alone
    compiles = False

    def __init__(self, config: CompressiveConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.convolutions = nn.ModuleList(Linear(config.rate * config.d_model, config.d_model) for _ in self.layers)
        self.init_weights()

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> CompressiveMemory:
        empty = super().empty_memory(batch_size, mem_len)
        return CompressiveMemory(**vars(empty), compressed_B=torch.zeros_like(empty.length_B))

    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        return self._read(tokens_BT, memory, resets_BT, detach=detach)[0]

    def training_losses(
        self, tokens_BT: Tensor, targets_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, **others: bool
    ) -> tuple[TokenLosses, Tensor]:
        with self.embedding.sharing_tables():
            output, *compressed = self._read(tokens_BT, memory, resets_BT, **others)
            losses = TokenLosses(self.softmax.nll(output.hidden_BTD, targets_BT), output.memory)
        return losses, self._error(*(tensor.detach() for tensor in compressed))

    def _read(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None, *, detach: bool = True
    ) -> tuple[ModelOutput, Tensor, Tensor, Tensor]:
        """Return layer inputs, the oldest rows, and how many groups of these each lane compresses, besides."""
        memory, config, (lanes, segment_len) = of_kind(CompressiveMemory, memory), self.config, tokens_BT.shape
        check_lanes(tokens_BT, memory.batch_size)
        memory = (memory.detach() if detach else memory).zeroed()
        past: Any = {"slots": memory.slots, "length_B": memory.length_B, "mem_len": memory.mem_len}
        read = self.read(tokens_BT, memory.hidden_LBMD.unbind(0), resets_BT=resets_BT, **past)
        inputs_LBTD = torch.stack(read.inputs_LBTD)
        rows_LBSD = torch.cat([memory.hidden_LBMD, inputs_LBTD.detach() if detach else inputs_LBTD], dim=2)
        lane_B1, rows = torch.arange(lanes, device=tokens_BT.device)[:, None], rows_LBSD.shape[2]
        before_2B = torch.stack([memory.length_B, memory.length_B - memory.compressed_B])
        after_2B = length_after(before_2B, segment_len=segment_len, mem_len=rows, resets_BT=resets_BT)
        length_B1, plain_B1 = after_2B[..., None]
        groups_B1 = (plain_B1 - memory.mem_len).clamp(min=0) // config.rate
        left_B1 = plain_B1 - groups_B1 * config.rate
        most_S = torch.arange((segment_len + config.rate - 1) // config.rate * config.rate, device=lane_B1.device)
        oldest_LBSD = rows_LBSD[:, lane_B1, (rows - plain_B1 + most_S).clamp(max=rows - 1)]
        slots = config.compressed_len + memory.mem_len + config.rate - 1 if memory.mem_len else 0
        back_M = torch.arange(slots - 1, -1, -1, device=lane_B1.device)
        group_BM = back_M - left_B1  # from 0 on compressed, and these groups before older ones
        old_BM = rows - 1 - torch.where(group_BM < 0, back_M, group_BM - groups_B1 + plain_B1).clamp(max=rows - 1)
        is_new_BM = (group_BM >= 0) & (group_BM < groups_B1)
        place_BM = torch.where(is_new_BM, rows + groups_B1 - 1 - group_BM, old_BM)
        compressed_B1 = (length_B1 - plain_B1 + groups_B1).clamp(max=config.compressed_len)
        after = replace(
            memory,
            hidden_LBMD=torch.cat([rows_LBSD, self._compressed(oldest_LBSD)], dim=2)[:, lane_B1, place_BM],
            length_B=(compressed_B1 + left_B1)[:, 0].clamp(max=slots),
            compressed_B=compressed_B1[:, 0].clamp(max=slots),
        ).zeroed()
        return ModelOutput(read.hidden_BTD, after.detach() if detach else after), inputs_LBTD, oldest_LBSD, groups_B1

    def _compressed(self, rows_LBSD: Tensor) -> Tensor:
        group_LBKD = rows_LBSD.unflatten(2, (-1, self.config.rate)).flatten(3)
        return torch.stack([conv(group_BKD) for conv, group_BKD in zip(self.convolutions, group_LBKD, strict=True)])

    def _error(self, inputs_LBTD: Tensor, rows_LBSD: Tensor, groups_B1: Tensor) -> Tensor:
        """Compare attention from the segment to rows with that to what they become; a sum over layers and tokens."""
        group_S = torch.arange(rows_LBSD.shape[2], device=groups_B1.device) // self.config.rate
        seen_BTS = (group_S < groups_B1.clamp(min=1))[:, None].expand(-1, inputs_LBTD.shape[2], -1)
        error_B = torch.zeros_like(groups_B1[:, 0], dtype=torch.float32)
        layers = zip(self.layers, inputs_LBTD, rows_LBSD, self._compressed(rows_LBSD), strict=True)
        for layer, input_BTD, rows_BSD, compressed_BKD in layers:
            expected_BTNH = _attended(layer, input_BTD, rows_BSD, seen_BTS)
            actual_BTNH = _attended(layer, input_BTD, compressed_BKD, seen_BTS[..., :: self.config.rate])
            error_B = error_B + (actual_BTNH - expected_BTNH).square().mean(dim=(2, 3)).sum(dim=1)
        return (error_B * (groups_B1[:, 0] > 0)).sum()  # of lanes that compress any

    def flops(self, **sizes: Any) -> Flops:
        longer: Any = copy.copy(self)
        longer.mem_len += self.config.compressed_len
        read = Transformer.flops(longer, **sizes)
        convolved = 2 * sizes["batch_size"] * sizes["segment_len"] * self.config.n_layer * self.config.d_model**2
        return read._replace(forward=read.forward + convolved)


def _attended(layer: DecoderLayer, input_BTD: Tensor, rows_BSD: Tensor, seen_BTS: Tensor) -> Tensor:
    """Attend by contents, (B, T, N, H), with the layer's weights as they are."""
    norm, attention = layer.attention_norm if layer.pre_norm else nn.Identity(), layer.attention
    gains = {name: gain.detach() for name, gain in norm.named_parameters()}
    input_BTD, rows_BSD = (functional_call(norm, gains, (each,)) for each in (input_BTD, rows_BSD))
    query_BTNH = linear(input_BTD, attention.query.weight.detach(), None).unflatten(-1, (attention.n_head, -1))
    key_value_BSC = linear(rows_BSD, attention.key_value.weight.detach(), None)
    key_value = key_value_BSC.unflatten(-1, (2, attention.n_head, -1)).unbind(2)
    return plain_attention(query_BTNH, *key_value, None, mask=AttentionMask(seen_BTS), dropout=0.0)
