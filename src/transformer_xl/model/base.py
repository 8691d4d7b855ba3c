"""What every language model with recurrent memory offers, whatever it is made of.

Letters: B lanes, T tokens, D width, V vocabulary; of attention: L layers, N heads, S keys.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_xl.model.embedding import AdaptiveEmbedding, AdaptiveSoftmax, Clusters
from transformer_xl.model.memory import Memory
from transformer_xl.model_config import ModelConfig
from transformer_xl.registry import lookup

MemoryType = TypeVar("MemoryType", bound=Memory)


@dataclass(frozen=True)
class Context:
    """How a text is read, whatever the model was trained with.

    Attributes:
        segment_len: tokens of a segment, T.
        mem_len: how many tokens from before a segment are kept; None: the model's own.
        clamp_len: distances above it count as it; None: no limit.
        same_length: whether each query sees at most `mem_len` keys, itself included.
        stride: None: memory goes from segment to segment; else windows without memory, each so many tokens further.
    """

    segment_len: int
    mem_len: int | None
    clamp_len: int | None
    same_length: bool
    stride: int | None = None

    @property
    def lengths(self) -> dict[str, Any]:
        """What a session is told: `mem_len`, `clamp_len`, `same_length`."""
        return {"mem_len": self.mem_len, "clamp_len": self.clamp_len, "same_length": self.same_length}

    def resolved(self, **asked: object) -> Context:
        """Return this context with the values that are asked for; "own" leaves this one's."""
        return replace(self, **{name: value for name, value in asked.items() if value != "own"})  # type: ignore[arg-type]


class ModelOutput(NamedTuple):
    """Last hidden states; the memory after the segment, here and in the next three."""

    hidden_BTD: Tensor
    memory: Memory


class LogProbs(NamedTuple):
    """Log-probabilities of the token after each position."""

    log_probs_BTV: Tensor
    memory: Memory


class TokenLosses(NamedTuple):
    """Losses in nats in token order, 0 where the target is -100."""

    nll_BT: Tensor
    memory: Memory


class AttentionWeights(NamedTuple):
    """What each key (the slots of the memory that was given, oldest first, and the tokens) weighs to each token."""

    weights_LBNTS: Tensor
    memory: Memory


class Flops(NamedTuple):
    """Useful operations of reading one segment in every lane, and of the gradients that would flow into memory.

    Matrix products only, a multiplication and an addition each. A query's keys are counted as M + (T + 1) / 2, what
    causality leaves; a tail of an adaptive softmax counts for the tokens that visit it; recomputation does not.
    """

    forward: int
    into_memory: int

    @property
    def step(self) -> int:
        """Operations of a training step: backward costs twice forward, less what would flow into memory."""
        return 3 * self.forward - self.into_memory


class LanguageModel(nn.Module, ABC):
    """A model that reads a lane segment by segment and carries a memory from one to the next.

    One's own is registered as `@register("model", KIND, config=SETTINGS)`, SETTINGS a `ModelConfig`, makes `layers` and
    a `softmax`, and defines `empty_memory` and `forward`.
    """

    softmax: AdaptiveSoftmax
    relative: bool = True  # predictions depend on distances alone, not on a token's place within its segment
    attends: ClassVar[bool] = False  # to single tokens: longer memories and `same_length` then mean something
    compiles: ClassVar[bool] = False  # `compiled_losses` takes it
    vocabulary: Any = None  # set by `load_model` where the source has one

    def __init__(self, config: ModelConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.clusters = Clusters(config, vocab_size=vocab_size)
        self.mem_len = config.mem_len  # of the memory that `empty_memory` makes unless told otherwise
        self.clamp_len = config.clamp_len  # distances above it count as it; None: no limit
        self.same_length = config.same_length  # whether each query sees at most `mem_len` keys
        self.max_segment_len = self.longest_segment(config)
        self.embedding = AdaptiveEmbedding(self.clusters)

    @classmethod
    def clamps(cls, config: Any) -> bool:
        """Return whether distances above a `clamp_len` can count as it."""
        return False

    @classmethod
    def longest_segment(cls, config: Any) -> int | None:
        """Return the length of the longest segment that such a model can read; None: any."""
        return None

    @classmethod
    def refusals(cls, config: ModelConfig, lengths: Any, *, group: str = "") -> Iterator[str]:
        """Yield a part of a sentence for each of a `Context`'s lengths that such a model cannot read with.

        `group` goes before their names.
        """
        if lengths.same_length and lengths.mem_len == 0:
            yield f"{group}same_length is true with {group}mem_len 0, and needs a mem_len of at least 1"
        if lengths.clamp_len is not None and not cls.clamps(config):
            yield f"{group}clamp_len is {lengths.clamp_len}, and must be null for {config.label}"
        if lengths.same_length and not cls.attends:
            yield f"{group}same_length is true, and must be false for {config.label}"

    @classmethod
    def too_long(cls, config: ModelConfig, segment_len: int, name: str = "segment_len") -> Iterator[str]:
        """Yield a part of a sentence for a segment that is longer than such a model can read."""
        longest = cls.longest_segment(config)
        if longest is not None and segment_len > longest:
            yield f"{name} is {segment_len}, and must be at most {longest} for {config.label}"

    def check_context(self, *, segment_len: int, mem_len: int) -> None:
        """Refuse, by a ValueError, a segment length, `clamp_len` or `same_length` that the model cannot read with."""
        context = replace(self.own_context(segment_len=segment_len), mem_len=mem_len)
        for problem in (*self.refusals(self.config, context), *self.too_long(self.config, segment_len)):
            raise ValueError(problem)

    @abstractmethod
    def empty_memory(self, batch_size: int, mem_len: int | None = None) -> Memory:
        """Return the memory of lanes that have read nothing: length 0."""

    def zero_memory(self, batch_size: int, mem_len: int | None = None) -> Memory:
        """Return a memory of `mem_len` zeros that are attended to, as the TensorFlow code starts."""
        return self.empty_memory(batch_size, mem_len)

    @abstractmethod
    def forward(
        self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None, *, detach: bool = True
    ) -> ModelOutput:
        """Read one segment.

        Args:
            tokens_BT: token ids, int64.
            memory: of the same lanes; unchanged.
            resets_BT: True where a token begins a document and must see nothing before it.
            detach: whether no gradient flows into this memory, nor through the one that comes out.

        Raises:
            ValueError: the lanes of tokens and memory differ; lengths that the model cannot read with.
        """

    def log_probs(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> LogProbs:
        """Predict the token after each position; arguments as in `forward`."""
        hidden_BTD, memory = self(tokens_BT, memory, resets_BT)
        return LogProbs(self.softmax.log_probs(hidden_BTD), memory)

    def nll(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        memory: Memory,
        resets_BT: Tensor | None = None,
        *,
        detach: bool = True,
    ) -> TokenLosses:
        """Return each target's loss in nats; `targets_BT` is the next token of the same lane, -100: not counted."""
        with self.embedding.sharing_tables():
            hidden_BTD, memory = self(tokens_BT, memory, resets_BT, detach=detach)
            return TokenLosses(self.softmax.nll(hidden_BTD, targets_BT), memory)

    def training_losses(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        memory: Memory,
        resets_BT: Tensor | None = None,
        *,
        detach: bool = True,
    ) -> tuple[TokenLosses, Tensor | None]:
        """Return what `nll` does, and what training minimizes beside it: a scalar, summed over tokens; None: nothing.

        It is divided by the same count as the targets' losses, and is part of no reported loss.
        """
        return self.nll(tokens_BT, targets_BT, memory, resets_BT, detach=detach), None

    def attention_weights(self, tokens_BT: Tensor, memory: Memory, resets_BT: Tensor | None = None) -> AttentionWeights:
        """Return what each key weighs to each token, before dropout; a ValueError where there is no attention."""
        raise ValueError(f"{self.config.label} has no attention, and so no weights of it")

    def flops(self, *, batch_size: int, segment_len: int, cluster_shares: Sequence[float]) -> Flops:
        """Count useful operations; `cluster_shares`: of each of `clusters` among the tokens.

        By the layers' matrices alone, where a network does not know better.
        """
        tokens = batch_size * segment_len
        vocabulary = self.clusters.flops(tokens=tokens, shares=cluster_shares)
        return Flops(2 * tokens * self._numbers_of_matrices() + vocabulary, into_memory=0)

    def _numbers_of_matrices(self) -> int:
        layers = [(name, weight) for name, weight in self.named_parameters() if name.startswith("layers.")]
        return sum(weight.numel() for name, weight in layers if weight.dim() == 2 and not name.endswith("bias"))

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw from torch's global generator, as published: N(0, init_std), layer-norm gains N(1, init_std), biases 0.

        Projections of an adaptive vocabulary are N(0, proj_init_std); u and v are weights.
        """
        for name, parameter in self.named_parameters():
            owner, _, own = name.rpartition(".")
            if own in ("bias", "cluster_bias") or owner.endswith("biases"):
                parameter.zero_()
            else:
                std = self.config.proj_init_std if owner.endswith("projections") else self.config.init_std
                parameter.normal_(1.0 if owner.endswith("norm") else 0.0, std)

    def own_context(self, *, segment_len: int) -> Context:
        """Return the context of the model's own lengths, with segments no longer than it can read."""
        return Context(
            segment_len=min(segment_len, self.max_segment_len or segment_len),
            mem_len=self.mem_len,
            clamp_len=self.clamp_len,
            same_length=self.same_length,
        )

    def with_context(self, *, clamp_len: int | None, same_length: bool) -> Self:
        """Return the same model, its parameters shared, that looks at its context by another rule."""
        twin = copy.copy(self)
        twin.clamp_len, twin.same_length = clamp_len, same_length
        return twin


class VariationalDropout(nn.Module):
    """Drops the same features at every position of a lane's segment (Gal and Ghahramani, 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Drop features of (B, T, D)."""
        mask_B1D = functional.dropout(hidden_BTD.new_ones(hidden_BTD[:, :1].shape), self.p, training=self.training)
        return hidden_BTD * mask_B1D


def make_dropout(config: ModelConfig) -> nn.Module:
    """Make the dropout of hidden states (B, T, D)."""
    return VariationalDropout(config.dropout) if config.variational_dropout else nn.Dropout(config.dropout)


def make_model(config: ModelConfig, *, vocab_size: int) -> LanguageModel:
    """Make the model that `config.kind` names, its weights drawn from torch's global generator."""
    model: LanguageModel = lookup("model", config.kind).factory(config, vocab_size=vocab_size)
    return model


def check_lanes(tokens_BT: Tensor, batch_size: int) -> None:
    """Refuse, by a ValueError, tokens whose lanes are not those of a memory or session."""
    if tokens_BT.dim() != 2 or tokens_BT.shape[1] == 0:
        raise ValueError(f"tokens have shape {tuple(tokens_BT.shape)}, and must have two axes: lanes, tokens")
    if tokens_BT.shape[0] != batch_size:
        raise ValueError(f"tokens have {tokens_BT.shape[0]} lanes and the memory has {batch_size}")


def of_kind(kind: type[MemoryType], memory: Memory) -> MemoryType:
    """Return a memory if it is of the kind that a model keeps; a TypeError if it is another model's."""
    if not isinstance(memory, kind):
        raise TypeError(f"memory is a {type(memory).__name__}, and must be one of this model's: see empty_memory()")
    return memory
