"""Lanes, contiguous parts of one ordered stream of tokens, read in parallel; and the segments they are read in.

A lane has `lane_len` positions (p); lane numbers are global, over all ranks. The stream is a split's tokens in the
order of their file, or document by document in another order each epoch. Letters: B lanes, T positions.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
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

_SHORTEST = 5  # as in the published code
_DRAWN_TOGETHER = 256


class Segment(NamedTuple):
    """Positions of some lanes: inputs, next tokens (or `NOT_COUNTED`), and where memory is reset."""

    tokens_BT: NDArray[np.int64]
    targets_BT: NDArray[np.int64]
    resets_BT: NDArray[np.bool_]


class LaneSource(Protocol):
    """Lanes that can be read at any position.

    Attributes:
        batch_size: number of lanes, over all ranks together.
        lane_len: positions in a lane.
        predictions: positions that an epoch reads over all lanes, without the padding at the end of an evaluation.
    """

    batch_size: int
    lane_len: int
    predictions: int

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
    def answers(self) -> bool:
        """Whether its targets are answers, of which each is right or wrong."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """Words of each split that the vocabulary lacks."""

    @property
    def text_bytes(self) -> Mapping[str, int]:
        """Bytes of UTF-8 of each split's text; empty where the data is no text."""

    @property
    def read_as(self) -> Mapping[str, str]:
        """Settings, by name, that must stand beside every score."""

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> LaneSource:
        """Lay a split out in lanes; `UserError` where it is too short."""


# ---- lanes of a corpus


class CorpusLanes:
    """A stream of N tokens, hence P = N - 1 predictions, in B lanes of p positions: lane b reads token b·p + t at t.

    Training drops the P mod B last predictions (`left_over`): p = floor(P / B). Evaluation pads the last lanes with
    targets that count for nothing: p = ceil(P / B).

    Args:
        tokens: ids.
        starts: ascending places in `tokens` where documents begin; None: nowhere.
        split: its name.
        batch_size: lanes.
        segment_len: of training, which needs one whole segment.
        evaluation: see above.
        resets: whether the first token of every document carries a reset; that of a lane always does.
        shuffle_seed: whole documents come in an order that follows from it and the epoch alone, what stands before the
            first as one of them; None: in the order of the file.

    Raises:
        UserError: there are fewer than B·T + 1 tokens for training, or 2 for an evaluation.
    """

    def __init__(
        self,
        tokens: Any,
        starts: Any,
        *,
        split: str,
        batch_size: int,
        segment_len: int,
        evaluation: bool,
        resets: bool,
        shuffle_seed: int | None = None,
    ) -> None:
        available, needed = len(tokens) - 1, batch_size * segment_len
        if evaluation and available < 1:
            raise UserError(f"the {split} split has {len(tokens)} tokens, and an evaluation needs at least 2")
        if not evaluation and available < needed:
            raise UserError(
                f"data.batch_size is {batch_size} and data.segment_len is {segment_len}, which need at least "
                f"{needed + 1} training tokens, but the training split has {len(tokens)}: give smaller ones"
            )
        self.batch_size = batch_size
        self.left_over = 0 if evaluation else available % batch_size
        self.lane_len = -(-available // batch_size) if evaluation else available // batch_size
        self.predictions = available - self.left_over
        self._tokens, self._starts, self._resets, self._shuffle_seed = tokens, starts, resets, shuffle_seed
        self._drawn: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        lane_len, count, length = self.lane_len, len(self._tokens), stop - start
        assert 0 <= start < stop <= lane_len
        # One more than the inputs: the last target, which at a lane's end is the next lane's first token.
        window = np.zeros((len(lanes), length + 1), np.int64)
        firsts = [min(lane * lane_len + start, count) for lane in lanes]
        lengths = [min(length + 1, count - first) for first in firsts]
        for inputs, first, found in zip(window, firsts, lengths, strict=True):
            self._read_into(inputs[:found], epoch, first)
        targets = window[:, 1:].copy()
        for nexts, found in zip(targets, lengths, strict=True):
            if found <= length:
                nexts[max(0, found - 1) :] = NOT_COUNTED
        resets = np.zeros(targets.shape, np.bool_)
        if self._resets and self._starts is not None:
            borders = self._starts if self._shuffle_seed is None else self._order(epoch)[0]
            # all lanes in two searches: each costs more than a lane's own
            begins = np.searchsorted(borders, firsts).tolist()
            ends = np.searchsorted(borders, [min(first + length, count) for first in firsts]).tolist()
            for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                resets[row, np.asarray(borders[begin:end]) - firsts[row]] = True
        resets[:, : max(0, 1 - start)] = True
        return Segment(tokens_BT=np.ascontiguousarray(window[:, :-1]), targets_BT=targets, resets_BT=resets)

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        firsts = np.arange(self.batch_size, dtype=np.int64) * self.lane_len + start
        return int(np.clip(len(self._tokens) - 1 - firsts, 0, stop - start).sum())

    def _read_into(self, found: NDArray[np.int64], epoch: int, first: int) -> None:
        if self._shuffle_seed is None:
            found[:] = self._tokens[first : first + len(found)]
            return
        borders, places = self._order(epoch)
        document, read = int(np.searchsorted(borders, first, side="right")) - 1, 0
        while read < len(found):
            position = first + read
            taken = min(int(borders[document + 1]) - position, len(found) - read)
            place = int(places[document]) + position - int(borders[document])
            found[read : read + taken] = self._tokens[place : place + taken]
            read, document = read + taken, document + 1

    def _order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each document begins in an epoch's stream, and its length behind them; and where in the file."""
        if self._drawn is None or self._drawn[0] != epoch:
            places = np.asarray(self._starts)
            if not len(places) or places[0] > 0:
                places = np.append(0, places)
            lengths = np.diff(places, append=len(self._tokens))
            permutation = _generator(self._shuffle_seed, epoch).permutation(len(places))
            self._drawn = epoch, np.append(0, lengths[permutation].cumsum()), places[permutation]
        return self._drawn[1:]


def _generator(seed: int | None, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))))


def split_evenly(count: int, parts: int) -> list[range]:
    """Cut 0 ... count - 1 into contiguous ranges that differ by at most one, the longer ones first."""
    size, longer = divmod(count, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def lanes_that_fill_memory(*, lanes: int, segment_len: int, mem_len: int, max_tokens: int) -> int:
    """Return how many lanes to read where at most `max_tokens` are: so few that most tokens find a full memory."""
    return max(1, min(lanes, max_tokens // (4 * (mem_len + segment_len))))


# ---- segments


class Span(NamedTuple):
    """Positions [start, stop) of every lane in an epoch; those before `counts_from` are read and not counted."""

    epoch: int
    start: int
    counts_from: int
    stop: int


class Segments:
    """The segments of a training run in groups, numbered from 0 over all its epochs, the same for all lanes.

    A micro-batch holds a group. Every count of steps and tokens of a run follows from here. Lengths are equal, or drawn
    for each epoch from (seed, epoch): normally around `segment_len`, or around half of it, and cut as in the published
    code to at least 5 and at most three deviations above the mean. They are rounded; that code rounds down, which makes
    them shorter than their mean by half a token. The last segment of an epoch may be shorter, and its last group may
    hold fewer segments.

    Args:
        lane_len: positions in a lane.
        segment_len: T, or the mean of drawn lengths.
        segment_len_sd: standard deviation of drawn lengths.
        half_segments: share of segments around half the length.
        half_loss: whether only the second half of each segment counts.
        bptt_segments: segments of a group.
        seed: of drawn lengths.
        limit: the first groups that make an epoch; None: all.
    """

    def __init__(
        self,
        *,
        lane_len: int,
        segment_len: int,
        segment_len_sd: float = 0.0,
        half_segments: float = 0.0,
        half_loss: bool = False,
        bptt_segments: int = 1,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self._lane_len, self._segment_len = lane_len, segment_len
        self._sd, self._half_share, self._half_loss = segment_len_sd, half_segments, half_loss
        self._group, self._seed = bptt_segments, seed
        self._end = None if limit is None else limit * bptt_segments + 1
        self._is_drawn = segment_len_sd > 0 or half_segments > 0
        self._edges = lru_cache(maxsize=4)(self._edges_of)
        # sums over the epochs before each, as far as they were asked for
        self._groups_before, self._positions_before = [0], [0]

    def before(self, epoch: int) -> int:
        """Count the groups of all epochs before this one."""
        while len(self._groups_before) <= epoch:
            self._add_epoch()
        return self._groups_before[epoch]

    def count(self, epoch: int) -> int:
        """Count the groups of an epoch."""
        return self.before(epoch + 1) - self.before(epoch)

    def locate(self, number: int) -> tuple[int, int]:
        """Return the epoch of a group and its place there, both from 0."""
        while self._groups_before[-1] <= number:
            self._add_epoch()
        epoch = bisect_right(self._groups_before, number) - 1
        return epoch, number - self._groups_before[epoch]

    def spans(self, number: int) -> list[Span]:
        """Return the positions of each segment of a group, which follow one another in an epoch."""
        epoch, place = self.locate(number)
        edges = pairwise(self._edges(epoch)[place * self._group :][: self._group + 1].tolist())
        return [Span(epoch, start, (start + stop) // 2 if self._half_loss else start, stop) for start, stop in edges]

    def positions(self, number: int) -> int:
        """Count the positions of a lane that the run's first `number` groups hold."""
        epoch, place = self.locate(number)
        return self._positions_before[epoch] + int(self._edges(epoch)[place * self._group])

    def epochs(self, number: int) -> float:
        """Count the epochs that the run's first `number` groups make."""
        epoch, place = self.locate(number)
        return epoch + place / self.count(epoch)

    def _add_epoch(self) -> None:
        edges = self._edges(len(self._groups_before) - 1)
        self._groups_before.append(self._groups_before[-1] - (1 - len(edges)) // self._group)
        self._positions_before.append(self._positions_before[-1] + int(edges[-1]))

    def _edges_of(self, epoch: int) -> NDArray[np.int64]:
        """Return 0 and the position after each segment of an epoch."""
        length = self._segment_len
        if not self._is_drawn:
            return np.append(np.arange(0, self._lane_len, length), self._lane_len)[: self._end]
        generator, parts = _generator(self._seed, epoch), [np.zeros(1, np.int64)]
        while parts[-1][-1] < self._lane_len:
            is_half = generator.random(_DRAWN_TOGETHER) < self._half_share
            drawn = np.rint(generator.normal(np.where(is_half, length / 2, length), self._sd))
            lengths = np.clip(drawn, min(_SHORTEST, length), int(length + 3 * self._sd)).astype(np.int64)
            parts.append(parts[-1][-1] + lengths.cumsum())
        edges = np.concatenate(parts).clip(max=self._lane_len)
        return edges[: 1 + int(np.searchsorted(edges, self._lane_len))][: self._end]


def eval_starts(*, lane_len: int, segment_len: int, stride: int | None) -> range:
    """Return where the windows begin in which an evaluation reads lanes, each position counted in exactly one of them.

    Without a stride they are segments, one after another. With one, each window starts so many positions after the
    last and counts what that one did not hold. The window at a lane's end is shorter, not earlier: what a prediction
    sees depends on its own place alone, and a stride of `segment_len` equals segments read without memory.
    """
    step = segment_len if stride is None else stride
    return range(0, max(0, lane_len - segment_len) + step, step)


# ---- units of scores


def unit_of(data: Dataset, split: str) -> Unit:
    """Return the unit of a split's scores: the vocabulary's, but perplexity for sub-words of what is no text."""
    name = data.vocabulary.unit
    if not data.text_bytes:
        return Unit(name=PERPLEXITY if name == BITS_PER_BYTE else name, tokens_per_byte=None)
    text_bytes = data.text_bytes[split]
    return Unit(name=name, tokens_per_byte=data.counts()[split] / text_bytes if text_bytes else math.nan)


def beside_scores(data: Dataset) -> str:
    """Return what must stand beside each score of this corpus, ` (newline=drop)`; nothing for most."""
    return f" ({', '.join(f'{name}={value}' for name, value in data.read_as.items())})" if data.read_as else ""
