"""Transformer-XL (Dai et al., 2019): relative attention over the segment and a memory of earlier segments.

Letters: L layers, B lanes, T tokens, M memory slots, S = M + T keys, D width, N heads, H head width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transformer_xl.config import ModelConfig
from transformer_xl.model.attention import ATTENTION
from transformer_xl.model.flops import step_flops
from transformer_xl.model.heads import TiedEmbedding
from transformer_xl.model.interface import Hidden, LanguageModel, check_lanes
from transformer_xl.model.layers import TransformerXLLayer
from transformer_xl.model.memory import Memory, next_memory
from transformer_xl.model.positions import descending_distances, sinusoids
from transformer_xl.model.visibility import visible_keys


class TransformerXL(LanguageModel):
    """The published model: embedding scaled by sqrt(D) and tied to the output, L layers, one sinusoid for all."""

    def __init__(self, config: ModelConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.mem_len = config.mem_len
        self.clamp_len = config.clamp_len
        self.same_length = config.same_length
        self.embedding = TiedEmbedding(vocab_size=vocab_size, d_model=config.d_model)
        self.layers = nn.ModuleList(
            TransformerXLLayer(
                d_model=config.d_model,
                n_head=config.n_head,
                d_head=config.d_head,
                d_inner=config.d_inner,
                dropout=config.dropout,
                dropatt=config.dropatt,
                pre_norm=config.pre_norm,
                attention=ATTENTION[config.attention],
            )
            for _ in range(config.n_layer)
        )
        pairs = config.n_layer if config.untie_r else 1
        self.content_bias = nn.Parameter(torch.empty(pairs, config.n_head, config.d_head))
        self.position_bias = nn.Parameter(torch.empty(pairs, config.n_head, config.d_head))
        self.dropout = nn.Dropout(config.dropout)
        self._initialize(config.init_std)

    @torch.no_grad()
    def _initialize(self, std: float) -> None:
        """Draw weights as published: N(0, std), layer-norm gains N(1, std), biases 0, u and v N(0, std)."""
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.normal_(1.0, std)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, std)

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> Memory:
        """Give the memory of lanes that have read nothing: hidden (L, B, 0, D), lengths 0."""
        return self._memory(batch_size=batch_size, slots=0, mem_len=self.mem_len if mem_len is None else mem_len)

    def zero_memory(self, batch_size: int) -> Memory:
        """Give a memory of `mem_len` zeros that are attended to, as the TensorFlow code starts."""
        return self._memory(batch_size=batch_size, slots=self.mem_len, mem_len=self.mem_len)

    def _memory(self, *, batch_size: int, slots: int, mem_len: int) -> Memory:
        if mem_len < 0:
            raise ValueError(f"mem_len is {mem_len}, and must be at least 0")
        weight = self.embedding.weight
        return Memory(
            hidden_LBMD=weight.new_zeros(len(self.layers), batch_size, slots, self.config.d_model),
            length_B=torch.full((batch_size,), slots, device=weight.device),
            mem_len=mem_len,
        )

    def forward(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> Hidden:
        """Read one segment; see `LanguageModel.forward`."""
        check_lanes(tokens_BT, memory.batch_size)
        if self.same_length and memory.mem_len == 0:
            raise ValueError("same_length is true with mem_len 0, and needs a mem_len of at least 1")
        memory = memory.zeroed()
        segment_len, slots = tokens_BT.shape[1], memory.hidden_LBMD.shape[2]
        visible_BTS = visible_keys(
            length_B=memory.length_B,
            slots=slots,
            segment_len=segment_len,
            mem_len=memory.mem_len,
            same_length=self.same_length,
            resets_BT=resets_BT,
        )
        hidden_BTD = self.dropout(self.embedding(tokens_BT))
        distance_S = descending_distances(keys=slots + segment_len, clamp_len=self.clamp_len, device=tokens_BT.device)
        sinusoid_SD = self.dropout(sinusoids(distance_S, d_model=self.config.d_model, dtype=hidden_BTD.dtype))
        context_LBSD = []
        for index, layer in enumerate(self.layers):
            pair = index if self.config.untie_r else 0
            hidden_BTD, context_BSD = layer(
                hidden_BTD=hidden_BTD,
                memory_BMD=memory.hidden_LBMD[index],
                sinusoid_SD=sinusoid_SD,
                content_bias_NH=self.content_bias[pair],
                position_bias_NH=self.position_bias[pair],
                visible_BTS=visible_BTS,
            )
            context_LBSD.append(context_BSD)
        after = next_memory(memory=memory, context_LBSD=context_LBSD, resets_BT=resets_BT, segment_len=segment_len)
        return Hidden(self.dropout(hidden_BTD), after)

    def head_log_probs(self, hidden_BTD: Tensor) -> Tensor:
        """Give log-probabilities (B, T, V)."""
        return self.embedding.log_probs(hidden_BTD)

    def head_nll(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Give losses (B, T) in nats."""
        return self.embedding.nll(hidden_BTD, targets_BT)

    def step_flops(self, *, batch_size: int, segment_len: int) -> int:
        """Count the useful operations of a training step; see `flops.py`."""
        return step_flops(
            self.config,
            vocab_size=self.vocab_size,
            batch_size=batch_size,
            segment_len=segment_len,
            mem_len=self.mem_len,
        )
