"""Reading lanes of text piece by piece under weights that stay as they are; `stream` begins a session.

A model's memory holds layer inputs, whose keys and values every segment computes anew, as training must: weights have
changed since. Here they are computed once, so that a token costs its own projections and not those of its memory.

Letters: B lanes, T tokens, D width, V vocabulary, M memory slots, S = M + T keys, N heads, H head width, C room for
tokens, K kept tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from transformer_xl.model.base import LanguageModel, ModelOutput, check_lanes, of_kind
from transformer_xl.model.kernels.linear import prepack
from transformer_xl.model.memory import HiddenMemory, Memory, length_after
from transformer_xl.model.positions import Encoding
from transformer_xl.model.transformer import Transformer


class KVCache:
    """Keys and values of one layer, newest last, in memory with room for more.

    New ones are written behind the others, and all are read where they lie. When the room is used up, those that are
    still wanted move to a new place with room for half as many: a text costs a few copies of each token, however long
    it is, and a short one no more memory than its own.
    """

    def __init__(self) -> None:
        self._buffer_2NBCH = torch.empty(2, 0, 0, 0, 0)
        self._end = 0

    def append(self, key_value_2NBTH: Tensor, *, keep: int) -> Tensor:
        """Write keys and values of new tokens; return them with the `keep` before them, a view."""
        *outer, tokens, width = key_value_2NBTH.shape
        start, self._end = self._end, self._end + tokens
        if self._end > self._buffer_2NBCH.shape[3]:
            room = keep + tokens + max(tokens, keep // 2)
            with torch.inference_mode(False):  # a normal tensor, which can be written to after that mode as well
                larger_2NBCH = key_value_2NBTH.new_empty(*outer, room, width)
            if keep:
                larger_2NBCH[:, :, :, :keep] = self._buffer_2NBCH[:, :, :, start - keep : start]
            self._buffer_2NBCH, start, self._end = larger_2NBCH, keep, keep + tokens
        self._buffer_2NBCH[:, :, :, start : self._end] = key_value_2NBTH
        return self.newest(keep + tokens)

    def newest(self, count: int) -> Tensor:
        """Return the last `count` keys and values (2, N, B, K, H), a view."""
        return self._buffer_2NBCH[:, :, :, self._end - count : self._end]


class Stream:
    """A session that reads lanes piece by piece, and remembers what each has read in a memory of the model's own.

    Results are those of the model's own functions over its memory, as tensors without a graph. Weights must stay as
    they are from the first piece to the last, and so must precision. Pieces may differ in length; a ValueError says
    what the model cannot read, or that it is in training mode.
    """

    def __init__(self, model: LanguageModel, *, batch_size: int, mem_len: int) -> None:
        self.batch_size = batch_size
        self.mem_len = mem_len
        self._model = model
        self.start_from(model.empty_memory(batch_size, mem_len))

    @torch.no_grad()
    def log_probs(self, tokens_BT: Tensor, resets_BT: Tensor | None = None) -> Tensor:
        """Read the next tokens, and return log-probabilities (B, T, V) of the token after each.

        `resets_BT` is True where a token begins a document and must see nothing before it.
        """
        return self._model.softmax.log_probs(self._hidden(tokens_BT, resets_BT))

    @torch.no_grad()
    def next_log_probs(self, tokens_BT: Tensor, resets_BT: Tensor | None = None) -> Tensor:
        """Read the next tokens, and return log-probabilities (B, V) of the token after the last of them."""
        return self._model.softmax.log_probs(self._hidden(tokens_BT, resets_BT)[:, -1:])[:, 0]

    @torch.no_grad()
    def nll(self, tokens_BT: Tensor, targets_BT: Tensor, resets_BT: Tensor | None = None) -> Tensor:
        """Read the next tokens, and return losses (B, T) in nats, 0 where the target is -100."""
        return self._model.softmax.nll(self._hidden(tokens_BT, resets_BT), targets_BT)

    @torch.no_grad()
    def answers(self, tokens_BT: Tensor, targets_BT: Tensor, resets_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read the next tokens, and return what `nll` does and whether each target is the most probable token."""
        hidden_BTD, softmax = self._hidden(tokens_BT, resets_BT), self._model.softmax
        return softmax.nll(hidden_BTD, targets_BT), softmax.log_probs(hidden_BTD).argmax(dim=-1) == targets_BT

    def reset(self, lanes: Sequence[int] | None = None) -> None:
        """Forget what lanes have read, named by their numbers; None: all."""
        self._forgotten += range(self.batch_size) if lanes is None else lanes

    @torch.no_grad()
    def start_from(self, memory: Memory) -> None:
        """Take what lanes have read from a memory of the model's own, in place of all that they read here."""
        self._forgotten: list[int] = []
        self._remember(memory)

    def _remember(self, memory: Memory) -> None:
        self._memory = memory

    def _hidden(self, tokens_BT: Tensor, resets_BT: Tensor | None) -> Tensor:
        check_lanes(tokens_BT, self.batch_size)
        # the layers' own flag: models that share them, see `with_context`, each have one of their own besides
        if any(module.training for module in self._model.children()):
            raise ValueError("a session needs weights that stay as they are: call eval() on the model first")
        if self._forgotten:
            resets_BT = torch.zeros_like(tokens_BT, dtype=torch.bool) if resets_BT is None else resets_BT.clone()
            resets_BT[self._forgotten, 0] = True
            self._forgotten = []
        return self._read(tokens_BT, resets_BT)

    def _read(self, tokens_BT: Tensor, resets_BT: Tensor | None) -> Tensor:
        output: ModelOutput = self._model(tokens_BT, self._memory, resets_BT)
        self._memory = output.memory
        return output.hidden_BTD


class KeyValueStream(Stream):
    """A session that keeps each layer's keys and values, and projected positions."""

    _model: Transformer

    def __init__(self, model: Transformer, *, batch_size: int, mem_len: int) -> None:
        super().__init__(model, batch_size=batch_size, mem_len=mem_len)
        self._reader = prepack(model)
        self._encoding_L: Sequence[Encoding] = ()  # of `_encoded` keys
        self._encoded = 0
        self._newest_L: Sequence[Encoding] = ()  # of `_keys` keys
        self._keys = 0

    def _remember(self, memory: Memory) -> None:
        memory = of_kind(HiddenMemory, memory)
        self._slots = min(memory.slots, self.mem_len)
        self._length_B = memory.length_B.clamp(max=self.mem_len)
        self._caches = [KVCache() for _ in self._model.layers]
        if self._slots:
            for cache, layer, hidden_BMD in zip(self._caches, self._model.layers, memory.hidden_LBMD, strict=True):
                rows_BKD = hidden_BMD[:, -self._slots :].to(layer.attention.key_value.weight.dtype)
                cache.append(layer.key_value(rows_BKD), keep=0)

    def _read(self, tokens_BT: Tensor, resets_BT: Tensor | None) -> Tensor:
        segment_len = tokens_BT.shape[1]
        # the first query is one of the `mem_len` keys that it sees
        slots = min(self._slots, self.mem_len - 1) if self._model.same_length else self._slots
        hidden_BTD = self._reader.read(
            tokens_BT,
            [partial(cache.append, keep=slots) for cache in self._caches],
            slots=slots,
            length_B=self._length_B,
            mem_len=self.mem_len,
            resets_BT=resets_BT,
            encodings=self._encodings,
        ).hidden_BTD
        self._slots = min(slots + segment_len, self.mem_len)
        self._length_B = length_after(
            self._length_B, segment_len=segment_len, mem_len=self.mem_len, resets_BT=resets_BT
        )
        return hidden_BTD

    def _encodings(self, *, keys: int, like: Tensor) -> Sequence[Encoding]:
        if keys > self._encoded:  # more than ever before
            self._encoded = min(keys + keys // 2, self.mem_len + 2 * like.shape[1])
            self._encoding_L = self._model.encodings(keys=self._encoded, like=like)
        if keys != self._keys:
            newest = [self._model.position.newest(encoding, keys=keys) for encoding in self._encoding_L]
            kept = [encoding for encoding in newest if encoding is not None]
            self._newest_L = kept if len(kept) == len(newest) else self._model.encodings(keys=keys, like=like)
            self._keys = keys
        return self._newest_L


def stream(
    model: LanguageModel,
    *,
    batch_size: int,
    mem_len: int | None = None,
    clamp_len: int | Literal["model"] | None = "model",
    same_length: bool | None = None,
) -> Stream:
    """Begin to read lanes of text under weights that stay as they are, each as if from its beginning.

    Args:
        model: in evaluation mode.
        batch_size: number of lanes.
        mem_len: how many tokens from before a piece are seen; None: as many as the model's own memory holds.
        clamp_len: distances above it count as it; None: no limit; "model": the model's own.
        same_length: whether every query sees `mem_len` keys; None: the model's own.

    Returns:
        A session: see `Stream`. Attention keeps keys and values, a recurrent network its state; on a CPU, layers that
        read few tokens at a time keep a copy of their weights besides, in the order that these read fastest.

    Raises:
        ValueError: `mem_len` is negative.
    """
    reader = model.with_context(
        clamp_len=model.clamp_len if clamp_len == "model" else clamp_len,
        same_length=model.same_length if same_length is None else same_length,
    )
    mem_len = model.mem_len if mem_len is None else mem_len
    if isinstance(reader, Transformer) and type(reader).forward is Transformer.forward:  # else its memory is another
        return KeyValueStream(reader, batch_size=batch_size, mem_len=mem_len)
    return Stream(reader, batch_size=batch_size, mem_len=mem_len)
