"""Gated DeltaNet (Yang et al., 2024): heads whose state is a matrix, decayed by a gate and written by the delta rule.

S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T, and token t reads S_t q_t; a and b are sigmoids. A chunk's tokens
are read together, exactly: S_t = a_t S_{t-1} + u_t k_t^T with u_t = b_t (v_t - a_t S_{t-1} k_t), and the u of a chunk
solve a triangular system. A session that reads one token has a chunk of one.

python train.py plugins=[examples/parts/gated_delta.py] model=gated_delta

Letters: L layers, B lanes, T tokens, D width, N heads, H head width, G chunks, C tokens of a chunk, X = 3 N H features,
which are convolved over a token and the P before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize, pad, silu

from transformer_xl.model.base import LanguageModel, ModelOutput, check_lanes, make_dropout, of_kind
from transformer_xl.model.embedding import AdaptiveSoftmax
from transformer_xl.model.kernels.linear import Linear
from transformer_xl.model.memory import Memory
from transformer_xl.model.transformer import SwiGlu
from transformer_xl.model_config import ModelConfig
from transformer_xl.registry import register
from transformer_xl.settings import Width

CHUNK = 32
BEFORE = 3  # tokens that a convolution reads before the token itself


@register("memory", "gated_delta")
@dataclass(frozen=True, kw_only=True)
class GatedDeltaMemory(Memory):
    """Each layer's states, transposed, and what its convolution read last; with `mem_len` 0 nothing is kept."""

    kind = "gated_delta"
    state_LBNHH: Tensor
    tail_LBPX: Tensor


class GatedDeltaConfig(ModelConfig):
    kind: str = "gated_delta"
    n_head: Width = 4
    d_head: Width = 64
    d_inner: Width = 704


def gated_delta_rule(query, key, value, log_decay, write, resets_BT, state_BNHH):
    """Return what each token reads (B, N, T, H), and the state after the last; rates are (B, N, T, 1)."""
    tokens, chunk = resets_BT.shape[1], min(CHUNK, resets_BT.shape[1])
    query, key, value, log_decay, write, resets = (  # padded by tokens that neither write nor decay
        pad(each, (0, 0, 0, -tokens % chunk)).unflatten(2, (-1, chunk))
        for each in (query, key, value, log_decay, write, resets_BT[:, None, :, None])
    )
    document_B1GC1 = resets.cumsum(dim=3)
    # what is left of token j at i: decays of j + 1 to i, added up, as differences of longer sums are less exact
    decays_BNGCC = log_decay.expand(-1, -1, -1, -1, chunk).tril(-1).cumsum(dim=3)
    left_BNGCC = decays_BNGCC.masked_fill(document_B1GC1 != document_B1GC1.mT, -torch.inf).exp().tril()
    kept_BNGC1 = log_decay.cumsum(dim=3).masked_fill(document_B1GC1 > 0, -torch.inf).exp()  # of the state before
    below = write * left_BNGCC * (key @ key.mT)  # the diagonal, which is 1
    sides = torch.cat([write * value, write * kept_BNGC1 * key], dim=-1)
    written, erased = torch.linalg.solve_triangular(below, sides, upper=False, unitriangular=True).chunk(2, dim=-1)
    reads_BNGCC, outputs = left_BNGCC * (query @ key.mT), []
    parts = (kept_BNGC1 * query, reads_BNGCC, key, written, erased, left_BNGCC[..., -1:, :].mT, kept_BNGC1[..., -1:, :])
    for query, reads, key, written, erased, left, kept in zip(*(part.unbind(2) for part in parts), strict=True):
        written = written - erased @ state_BNHH
        outputs.append(query @ state_BNHH + reads @ written)
        state_BNHH = kept * state_BNHH + key.mT @ (left * written)
    return torch.cat(outputs, dim=2)[:, :, :tokens], state_BNHH


class GatedDeltaLayer(nn.Module):
    """The rule, and a feed-forward network; a norm before each."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.heads, width = config.n_head, config.n_head * config.d_head
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.project = Linear(config.d_model, 4 * width, bias=False)  # to queries, keys, values, and a gate after them
        self.taps_XP = nn.Parameter(torch.empty(3 * width, BEFORE + 1))
        self.rates = nn.Linear(config.d_model, 2 * config.n_head)  # of a head: of decay, of writing
        self.head_norm = nn.RMSNorm(config.d_head, eps=1e-6)
        self.output = Linear(width, config.d_model, bias=False)
        self.dropout = make_dropout(config)
        self.feed_forward_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.feed_forward = SwiGlu(config)

    def forward(self, hidden_BTD: Tensor, resets_BT: Tensor, state_BNHH: Tensor, tail_BPX: Tensor):
        """Return (B, T, D), and the state and tail after the segment."""
        normed_BTD = self.norm(hidden_BTD)
        rates_BTNR = self.rates(normed_BTD).unflatten(-1, (self.heads, 2))
        features_BTX, gate_BTC = self.project(normed_BTD).tensor_split([len(self.taps_XP)], dim=-1)
        with torch.autocast(hidden_BTD.device.type, enabled=False):  # what is added up over many tokens stays precise
            rows_BSX = torch.cat([tail_BPX, features_BTX.to(tail_BPX.dtype)], dim=1)
            document_BS1 = pad(resets_BT, (BEFORE, 0)).cumsum(dim=1)[..., None]
            convolved_BTX, tokens = 0.0, resets_BT.shape[1]
            for first, tap_X in enumerate(self.taps_XP.unbind(dim=1)):
                same_BT1 = document_BS1[:, first : first + tokens] == document_BS1[:, BEFORE:]
                convolved_BTX = convolved_BTX + tap_X * same_BT1 * rows_BSX[:, first : first + tokens]
            query, key, value = silu(convolved_BTX).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(3, dim=-1)
            decay, write = rates_BTNR.to(state_BNHH.dtype).transpose(1, 2).chunk(2, dim=-1)
            query, key, rates = normalize(query, dim=-1), normalize(key, dim=-1), (logsigmoid(decay), write.sigmoid())
            read_BNTH, state_BNHH = gated_delta_rule(query, key, value, *rates, resets_BT, state_BNHH)
        read_BTC = self.head_norm(read_BNTH.to(hidden_BTD.dtype)).transpose(1, 2).flatten(2)
        hidden_BTD = hidden_BTD + self.dropout(self.output(read_BTC * silu(gate_BTC)))
        tail_BPX = (rows_BSX * (document_BS1 == document_BS1[:, -1:]))[:, tokens:]
        return hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD)), state_BNHH, tail_BPX


@register("model", "gated_delta", config=GatedDeltaConfig)
class GatedDelta(LanguageModel):
    def __init__(self, config: GatedDeltaConfig, *, vocab_size: int) -> None:
        super().__init__(config, vocab_size=vocab_size)
        self.softmax = AdaptiveSoftmax(self.clusters, embedding=self.embedding, tie_weights=config.tie_weights)
        self.layers = nn.ModuleList(GatedDeltaLayer(config) for _ in range(config.n_layer))
        self.last_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.dropout = make_dropout(config)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        super().init_weights()
        for layer in self.layers:
            layer.taps_XP.uniform_(-0.5, 0.5)
            layer.rates.bias[::2].uniform_(2, 7)  # decays of 0.88 to 0.999 a token

    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> GatedDeltaMemory:
        config, weight = self.config, self.embedding.weights[0]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        state = weight.new_zeros(config.n_layer, batch_size, config.n_head, config.d_head, config.d_head, dtype=dtype)
        tail = weight.new_zeros(config.n_layer, batch_size, BEFORE, 3 * config.n_head * config.d_head, dtype=dtype)
        return GatedDeltaMemory(state_LBNHH=state, tail_LBPX=tail, mem_len=self.mem_len if mem_len is None else mem_len)

    def forward(self, tokens_BT, memory, resets_BT=None, *, detach=True) -> ModelOutput:
        memory = of_kind(GatedDeltaMemory, memory)
        check_lanes(tokens_BT, memory.batch_size)
        self.check_context(segment_len=tokens_BT.shape[1], mem_len=memory.mem_len)
        memory = memory.detach() if detach else memory
        resets_BT = torch.zeros_like(tokens_BT, dtype=torch.bool) if resets_BT is None else resets_BT
        hidden_BTD, after = self.dropout(self.embedding(tokens_BT)), []
        for layer, state_BNHH, tail_BPX in zip(self.layers, memory.state_LBNHH, memory.tail_LBPX, strict=True):
            hidden_BTD, *states = layer(hidden_BTD, resets_BT, state_BNHH, tail_BPX)
            after.append(states)
        state_LBNHH, tail_LBPX = (torch.stack(states) for states in zip(*after, strict=True))
        memory = replace(memory, state_LBNHH=state_LBNHH, tail_LBPX=tail_LBPX)
        memory = memory if memory.mem_len else self.empty_memory(memory.batch_size, mem_len=0)
        return ModelOutput(self.dropout(self.last_norm(hidden_BTD)), memory.detach() if detach else memory)
