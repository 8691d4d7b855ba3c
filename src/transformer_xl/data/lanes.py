"""Lanes: the parallel strands into which one ordered stream of tokens is laid out.

A lane has `lane_len` positions (p); lane numbers are global, over all ranks. The stream is a split's tokens in the
order of their file, or document by document in another order each epoch. Letters: B lanes, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from transformer_xl.errors import UserError
from transformer_xl.scores import BITS_PER_BYTE, PERPLEXITY, Unit

if TYPE_CHECKING:
    from transformer_xl.data.tokenizer import Tokenizer

SPLITS = ("train", "valid", "test")
NOT_COUNTED = -100
"""The target of a position that no loss counts."""


class Segment(NamedTuple):
    """Positions of some lanes: inputs, next tokens (or `NOT_COUNTED`), and where a document begins."""

    tokens_BT: NDArray[np.int64]
    targets_BT: NDArray[np.int64]
    resets_BT: NDArray[np.bool_]


class LaneSource(Protocol):
    """Lanes that can be read at any position."""

    @property
    def batch_size(self) -> int:
        """Number of lanes, over all ranks together."""

    @property
    def lane_len(self) -> int:
        """Positions in a lane."""

    @property
    def predictions(self) -> int:
        """Positions that an epoch reads over all lanes, without the padding at the end of an evaluation."""

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        """Read positions [start, stop) of contiguous lanes, 0 <= start < stop <= lane_len, into arrays of their own."""

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        """Count the targets of positions [start, stop) that are not `NOT_COUNTED`, over ALL lanes."""


class Fingerprint(NamedTuple):
    """What a score was measured on: number of source files, their bytes, and one sha256 (hex) over all of them."""

    files: int
    bytes: int
    sha256: str


class Dataset(Protocol):
    """What a corpus on disk and a made-up task have in common."""

    @property
    def name(self) -> str:
        """The choice of `data=`."""

    @property
    def vocabulary(self) -> Tokenizer:
        """The symbols of all splits."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What the text was made of."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """Count the words of each split that the vocabulary lacks."""

    @property
    def text_bytes(self) -> Mapping[str, int]:
        """Count the bytes of UTF-8 that each split's text has; of no split where the data is no text."""

    @property
    def read_as(self) -> Mapping[str, str]:
        """Settings, by name, that must stand beside every score of this corpus."""

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> LaneSource:
        """Lay a split out in lanes; `UserError` where it is too short."""


class Order(Protocol):
    """A stream of tokens that can be read at any position in any epoch."""

    def __len__(self) -> int:
        """Count the tokens."""

    def read(self, *, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Return the tokens at positions [start, stop) of an epoch's stream; start <= stop <= len."""

    def borders(self, *, epoch: int, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
        """Return the positions at which documents begin, for each of the ranges [start, stop) of an epoch's stream."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequential:
    """Tokens in the order of their file, the same in every epoch.

    Attributes:
        tokens: ids.
        starts: ascending places in `tokens` where documents begin; None: nowhere.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, *, epoch: int, start: int, stop: int) -> NDArray[Any]:
        return self.tokens[start:stop]

    def borders(self, *, epoch: int, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
        if self.starts is None:
            return [np.zeros(0, np.int64)] * len(starts)
        return _within(self.starts, starts=starts, stops=stops)


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """Whole documents, in an order that follows from (seed, epoch) alone.

    Attributes:
        tokens: ids.
        starts: ascending places in `tokens` where documents begin; what stands before the first counts as one.
        seed: of the order.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.int64]
    seed: int

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, *, epoch: int, start: int, stop: int) -> NDArray[Any]:
        layout = _lay_out(self, epoch)
        found = np.empty(stop - start, self.tokens.dtype)
        document = int(np.searchsorted(layout.starts, start, side="right")) - 1
        position = start
        while position < stop:
            end = int(layout.starts[document + 1])
            taken = min(end, stop) - position
            first = int(layout.first_tokens[document]) + position - int(layout.starts[document])
            found[position - start : position - start + taken] = self.tokens[first : first + taken]
            position += taken
            document += 1
        return found

    def borders(self, *, epoch: int, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
        return _within(_lay_out(self, epoch).starts, starts=starts, stops=stops)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Layout(NamedTuple):
    """An epoch's stream.

    Attributes:
        starts: where each document begins in the stream, and the stream's length behind them.
        first_tokens: where it begins in the file.
    """

    starts: NDArray[np.int64]
    first_tokens: NDArray[np.int64]


@lru_cache(maxsize=2)
def _lay_out(order: Shuffled, epoch: int) -> _Layout:
    first_tokens = np.asarray(order.starts)
    if not len(first_tokens) or first_tokens[0] > 0:
        first_tokens = np.append(0, first_tokens)
    lengths = np.diff(first_tokens, append=len(order.tokens))
    drawn = np.random.Generator(np.random.PCG64(np.random.SeedSequence(order.seed, spawn_key=(epoch,))))
    permutation = drawn.permutation(len(first_tokens))
    starts = np.append(0, lengths[permutation].cumsum())
    return _Layout(starts=starts, first_tokens=first_tokens[permutation])


def _within(borders: NDArray[np.int64], *, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
    # all ranges in two searches: each costs more than a range's own
    firsts, lasts = np.searchsorted(borders, starts), np.searchsorted(borders, stops)
    return [np.asarray(borders[first:last]) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusLanes:
    """A stream of N tokens, hence P = N - 1 predictions, in B lanes of p positions.

    Training drops the P mod B last predictions (`left_over`): p = floor(P / B). Evaluation pads the last lanes with
    targets that count for nothing: p = ceil(P / B).

    Attributes:
        order: the stream.
        batch_size: lanes.
        evaluation: see above.
        resets: whether the first token of every document carries a reset; that of a lane always does.
    """

    order: Order
    batch_size: int
    evaluation: bool
    resets: bool

    @property
    def lane_len(self) -> int:
        available = len(self.order) - 1
        return -(-available // self.batch_size) if self.evaluation else available // self.batch_size

    @property
    def predictions(self) -> int:
        return len(self.order) - 1 - self.left_over

    @property
    def left_over(self) -> int:
        """Predictions at the end of the tokens that no lane holds."""
        return 0 if self.evaluation else (len(self.order) - 1) % self.batch_size

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        lane_len, count, length = self.lane_len, len(self.order), stop - start
        assert 0 <= start < stop <= lane_len
        # One more than the inputs: the last target, which at a lane's end is the next lane's first token.
        window = np.zeros((len(lanes), length + 1), np.int64)
        firsts = [min(lane * lane_len + start, count) for lane in lanes]
        lengths = [min(length + 1, count - first) for first in firsts]
        for inputs, first, found in zip(window, firsts, lengths, strict=True):
            inputs[:found] = self.order.read(epoch=epoch, start=first, stop=first + found)
        targets = window[:, 1:].copy()
        for nexts, found in zip(targets, lengths, strict=True):
            if found <= length:
                nexts[max(0, found - 1) :] = NOT_COUNTED
        resets = np.zeros(targets.shape, np.bool_)
        if self.resets:
            lasts = [min(first + length, count) for first in firsts]
            for row, places in enumerate(self.order.borders(epoch=epoch, starts=firsts, stops=lasts)):
                resets[row, places - firsts[row]] = True
        resets[:, : max(0, 1 - start)] = True
        return Segment(tokens_BT=np.ascontiguousarray(window[:, :-1]), targets_BT=targets, resets_BT=resets)

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        firsts = np.arange(self.batch_size, dtype=np.int64) * self.lane_len + start
        return int(np.clip(len(self.order) - 1 - firsts, 0, stop - start).sum())


def training_lanes(order: Order, *, batch_size: int, segment_len: int, resets: bool) -> CorpusLanes:
    """Lay tokens out for training; `UserError` for fewer than B·T + 1 of them."""
    needed = batch_size * segment_len + 1
    available = len(order)
    if available < needed:
        fits = [f"data.batch_size={(available - 1) // segment_len}"] if available > segment_len else []
        fits += [f"data.segment_len={(available - 1) // batch_size}"] if available > batch_size else []
        raise UserError(
            f"data.batch_size is {batch_size} and data.segment_len is {segment_len}, which need at least {needed} "
            f"training tokens, but the training split has {available}: "
            + (" or ".join(fits) + " would fit" if fits else "a longer text is needed")
        )
    return CorpusLanes(order=order, batch_size=batch_size, evaluation=False, resets=resets)


def evaluation_lanes(order: Order, *, batch_size: int, split: str, resets: bool) -> CorpusLanes:
    """Lay tokens out for evaluation; `UserError` naming the split for fewer than 2 of them."""
    if len(order) < 2:
        raise UserError(
            f"the {split} split has {len(order)} token{'' if len(order) == 1 else 's'}, and an evaluation needs at "
            "least 2: a longer text, or a larger share of it for this split"
        )
    return CorpusLanes(order=order, batch_size=batch_size, evaluation=True, resets=resets)


def split_evenly(count: int, parts: int) -> list[range]:
    """Cut 0 ... count - 1 into contiguous ranges that differ by at most one, the longer ones first."""
    assert count >= 0
    assert parts >= 1
    size, longer = divmod(count, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def lanes_that_fill_memory(*, lanes: int, segment_len: int, mem_len: int, max_tokens: int) -> int:
    """Return how many lanes to read where at most `max_tokens` are: so few that most tokens find a full memory."""
    return max(1, min(lanes, max_tokens // (4 * (mem_len + segment_len))))


def unit_of(data: Dataset, split: str) -> Unit:
    """Return the unit of a split's scores: the vocabulary's, but perplexity for sub-words of what is no text."""
    name = data.vocabulary.unit
    if not data.text_bytes:
        return Unit(name=PERPLEXITY if name == BITS_PER_BYTE else name, tokens_per_byte=None)
    text_bytes = data.text_bytes[split]
    return Unit(name=name, tokens_per_byte=data.counts()[split] / text_bytes if text_bytes else math.nan)


def units_of(data: Dataset) -> dict[str, Unit]:
    """Return the units of all splits, by the split."""
    return {split: unit_of(data, split) for split in SPLITS}


def beside_scores(data: Dataset) -> str:
    """Return what must stand beside each score of this corpus, ` (newline=drop)`; nothing for most."""
    return f" ({', '.join(f'{name}={value}' for name, value in data.read_as.items())})" if data.read_as else ""
