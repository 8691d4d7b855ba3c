"""A recurrent memory of tokens (RMT, Bulatov et al., 2022, as a decoder): what a segment leaves goes before the next.

python train.py plugins=[examples/parts/memory_tokens.py] model=memory_tokens data.bptt_segments=4

Each call reads one segment: memory tokens to read, its tokens, memory tokens to write. What to write is learned only in
steps of two segments and more (`data.bptt_segments`). A text that is cut into other segments is read otherwise, so that
`relative` is False: generation reads an unfinished segment again with each token. `txl.generate` needs the training's
`segment_len`, and a session (`txl.stream`) pieces of this length; the commands know it from the run.

Letters: B lanes, T tokens, M memory tokens, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.attention import attention_mask
from transformer_xl.model.base import AttentionWeights, Flops, ModelOutput, check_lanes, of_kind
from transformer_xl.model.memory import Memory
from transformer_xl.model.transformer import Transformer, make_norm
from transformer_xl.model_config import TransformerConfig
from transformer_xl.registry import register
from transformer_xl.settings import Width


@register("memory", "memory_tokens")
@dataclass(frozen=True, kw_only=True)
class TokenMemory(Memory):
    """What the last segment wrote; `mem_len` says only whether it outlives a segment: above 0 it does.

    Attributes:
        written_BMD: last hidden states of the memory tokens.
        is_written_B: whether the lane has read anything.
    """

    kind = "memory_tokens"
    written_BMD: Tensor
    is_written_B: Tensor


class MemoryTokensConfig(TransformerConfig):
    """A transformer whose memory is a few tokens."""

    kind: Literal["memory_tokens"]
    n_memory: Width = 8  # memory tokens


@register("model", "memory_tokens", config=MemoryTokensConfig)
class MemoryTokens(Transformer):
    """Tokens see what is before them: the tokens to read too, unless their document began later.

    The tokens to write begin as what was read; as parameters where a document begins in the segment.
    """

    config: MemoryTokensConfig
    attends = False
    compiles = False

    def __init__(self, config: MemoryTokensConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.relative = False
        self.first_memory = nn.Parameter(torch.empty(config.n_memory, config.d_model))
        self.memory_norm = make_norm(config)
        self.init_weights()

    @classmethod
    def longest_segment(cls, config: MemoryTokensConfig) -> int | None:
        places = super().longest_segment(config)
        return None if places is None else places - 2 * config.n_memory

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> TokenMemory:
        written_BMD = self.first_memory.new_zeros(batch_size, *self.first_memory.shape)
        return TokenMemory(
            written_BMD=written_BMD,
            is_written_B=torch.zeros(batch_size, dtype=torch.bool, device=written_BMD.device),
            mem_len=self.mem_len if mem_len is None else mem_len,
        )

    def zero_memory(self, batch_size: int, mem_len: int | None = None) -> TokenMemory:
        return self.empty_memory(batch_size, mem_len)

    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        memory = of_kind(TokenMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        (lanes, segment_len), slots = tokens_BT.shape, self.config.n_memory
        self.check_context(segment_len=segment_len, mem_len=memory.mem_len)
        if detach:
            memory = memory.detach()
        # a lane without a memory begins a document with the segment
        begins_BT = torch.zeros_like(tokens_BT, dtype=torch.bool) if resets_BT is None else resets_BT.clone()
        begins_BT[:, 0] |= ~memory.is_written_B
        first_BMD = self.memory_norm(self.first_memory).expand(lanes, -1, -1)
        read_BMD = torch.where(memory.is_written_B[:, None, None], self.memory_norm(memory.written_BMD), first_BMD)
        write_BMD = torch.where(begins_BT.any(dim=1)[:, None, None], first_BMD, read_BMD)
        mask = attention_mask(
            length_B=torch.zeros_like(memory.is_written_B, dtype=torch.int64),
            slots=0,
            segment_len=segment_len + 2 * slots,
            mem_len=0,
            same_length=False,
            resets_BT=functional.pad(begins_BT, (slots, slots)),
        )
        rows_BTD = torch.cat([read_BMD, self.embedding(tokens_BT), write_BMD], dim=1)
        past_L = [rows_BTD[:, :0]] * len(self.layers)
        hidden_BTD = self.run_layers(rows_BTD, past_L, mask=mask).hidden_BTD
        after = replace(
            memory,
            written_BMD=hidden_BTD[:, -slots:],
            is_written_B=torch.full_like(memory.is_written_B, memory.mem_len > 0),
        )
        return ModelOutput(hidden_BTD[:, slots:-slots], after.detach() if detach else after)

    def attention_weights(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> AttentionWeights:
        weights_LBNTS, after = super().attention_weights(tokens_BT, memory, resets_BT)
        slots = self.config.n_memory
        return AttentionWeights(weights_LBNTS[..., slots:-slots, :-slots], after)

    def flops(self, *, batch_size: int, segment_len: int, cluster_shares: Sequence[float]) -> Flops:
        plain: Any = copy.copy(self)
        plain.mem_len, rows = 0, 2 * self.config.n_memory  # which are read as tokens are, but predict nothing
        sizes: Any = {"batch_size": batch_size, "segment_len": segment_len + rows, "cluster_shares": cluster_shares}
        predicted = self.clusters.flops(tokens=batch_size * rows, shares=cluster_shares)
        return Flops(Transformer.flops(plain, **sizes).forward - predicted, into_memory=0)
