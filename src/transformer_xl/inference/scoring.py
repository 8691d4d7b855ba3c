"""What texts cost: the loss of each token, read alone or on from the texts before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.errors import UserError
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.streaming import Stream, stream

_NONE: NDArray[np.int64] = np.zeros(0, np.int64)
_LARGEST_EXPONENT = 700.0


class TokenCosts(NamedTuple):
    """What neighbouring tokens of a text cost.

    Attributes:
        position: of the first of them in the text, from 0.
        ids: theirs, int64.
        nats: the loss of each, float64.
    """

    position: int
    ids: NDArray[np.int64]
    nats: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """What a text cost, or several together.

    Attributes:
        nats: sum of losses.
        predictions: tokens that were predicted; one less than `tokens` where nothing preceded the first.
        tokens: of the text.
        text_bytes: of UTF-8 that they stand for; 0 where they stand for no text.
        unknown: tokens that are `<unk>`, whatever the text has there.
    """

    nats: float = 0.0
    predictions: int = 0
    tokens: int = 0
    text_bytes: int = 0
    unknown: int = 0

    def __add__(self, other: TextScore) -> TextScore:
        return TextScore(
            nats=self.nats + other.nats,
            predictions=self.predictions + other.predictions,
            tokens=self.tokens + other.tokens,
            text_bytes=self.text_bytes + other.text_bytes,
            unknown=self.unknown + other.unknown,
        )

    @property
    def nats_per_token(self) -> float | None:
        """Give the mean loss; None where nothing was predicted."""
        return self.nats / self.predictions if self.predictions else None

    @property
    def bits_per_byte(self) -> float | None:
        """Give bits a byte of UTF-8, as for a corpus: a first token that nothing precedes counts as the mean does.

        None where nothing was predicted, or tokens stand for no text.
        """
        mean = self.nats_per_token
        return mean / math.log(2) * self.tokens / self.text_bytes if mean is not None and self.text_bytes else None

    @property
    def perplexity(self) -> float | None:
        """Give the perplexity a token; None where nothing was predicted, or no number can say it."""
        mean = self.nats_per_token
        return math.exp(mean) if mean is not None and mean < _LARGEST_EXPONENT else None


@dataclass(frozen=True, kw_only=True)
class ReadingLengths:
    """How texts are read.

    Attributes:
        segment_len: most tokens read at once, counted from where a text begins.
        mem_len: tokens from before these that are seen.
        clamp_len: distances above it count as it; None: no limit.
        same_length: whether every token sees `mem_len` keys.
    """

    segment_len: int
    mem_len: int
    clamp_len: int | None
    same_length: bool


class Scorer:
    """Reads texts token by token, and says what each token cost.

    A text alone has a session of its own, so that no other text changes its score by a bit. Texts that read on from
    each other share one, and the last token of each precedes the next. A model without memory, or one that knows the
    place of a token in its segment, reads anew every `segment_len` tokens from where a text begins.
    """

    def __init__(self, model: LanguageModel, *, lengths: ReadingLengths, start: int | None, reads_on: bool) -> None:
        """Begin to read.

        Args:
            model: in evaluation mode.
            lengths: how to read.
            start: the id that precedes a text; None: nothing does, and its first token is not predicted.
            reads_on: whether each text but the first goes on from the one before.

        Raises:
            UserError: the model cannot be read with such lengths.
        """
        self._model = model
        self._lengths = lengths
        self._start = start
        self._reads_on = reads_on
        self._device = next(model.parameters()).device
        self._require_readable()
        self._session = self._new_session()
        self._last = start
        self._unread = _NONE
        self._position = 0

    def read(self, ids: NDArray[np.int64], *, begins: bool, ends: bool) -> Iterator[TokenCosts]:
        """Read more of a text, and yield what its tokens cost, a segment at a time.

        Args:
            ids: any number of them.
            begins: whether a text begins with them; one that has not ended before is given up.
            ends: whether it ends with them; before its end some of its last tokens may be kept back.

        Raises:
            UserError: a loss is no number.
        """
        if begins:
            self._position, self._unread = 0, _NONE
            if not self._reads_on:
                self._session, self._last = self._new_session(), self._start
        self._unread = np.concatenate([self._unread, ids])
        if self._last is None and len(self._unread):
            self._last, self._unread, self._position = int(self._unread[0]), self._unread[1:], 1
        while len(self._unread) >= (1 if ends else self._lengths.segment_len):
            yield self._read_segment(self._unread[: self._lengths.segment_len])

    @property
    def last(self) -> int | None:
        """Give the id that precedes what is read next, where texts read on from each other; None: nothing does."""
        return self._last

    def _read_segment(self, targets: NDArray[np.int64]) -> TokenCosts:
        assert self._last is not None
        inputs = np.concatenate([np.array([self._last], np.int64), targets[:-1]])
        nll = self._session.nll(self._on_device(inputs), self._on_device(targets))[0]
        costs = TokenCosts(self._position, targets, nll.cpu().double().numpy())
        for place in np.flatnonzero(~np.isfinite(costs.nats)).tolist():
            raise UserError(
                f"the model gives token {self._position + place} of the text, counted from 0, a loss of "
                f"{costs.nats[place]}, which is no score: its weights are broken, or need precision=32-true"
            )
        self._last, self._unread = int(targets[-1]), self._unread[len(targets) :]
        self._position += len(targets)
        return costs

    def _on_device(self, ids: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids))[None].to(self._device)

    def _new_session(self) -> Stream:
        return stream(
            self._model,
            batch_size=1,
            mem_len=self._lengths.mem_len,
            clamp_len=self._lengths.clamp_len,
            same_length=self._lengths.same_length,
        )

    def _require_readable(self) -> None:
        longest = self._model.max_segment_len
        if longest is not None and self._lengths.segment_len > longest:
            raise UserError(
                f"segment_len is {self._lengths.segment_len}, and the model can read at most {longest} tokens at once"
            )
        token = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
        try:
            self._new_session().nll(token, token)
        except ValueError as error:
            raise UserError(f"the model cannot be read so: {error}") from error


def resolved_lengths(
    model: LanguageModel,
    *,
    segment_len: int,
    mem_len: int | Literal["own"],
    clamp_len: int | Literal["own"] | None,
    same_length: bool | Literal["own"],
) -> ReadingLengths:
    """Put a model's own lengths where none are given."""
    return ReadingLengths(
        segment_len=segment_len,
        mem_len=model.mem_len if mem_len == "own" else mem_len,
        clamp_len=model.clamp_len if clamp_len == "own" else clamp_len,
        same_length=model.same_length if same_length == "own" else same_length,
    )
