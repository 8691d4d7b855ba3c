"""Lanes: the parallel strands into which one ordered stream of tokens is laid out.

A lane has `lane_len` positions (p); lane numbers are global, over all ranks. Letters: B lanes, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.tokenizer import Vocabulary
from transformer_xl.errors import UserError

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
    def vocabulary(self) -> Vocabulary:
        """The symbols of all splits."""

    @property
    def fingerprint(self) -> Fingerprint:
        """What the text was made of."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """Count the words of each split that the vocabulary lacks."""

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> LaneSource:
        """Lay a split out in lanes; `UserError` where it is too short."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusLanes:
    """A flat array of N tokens, hence P = N - 1 predictions, in B lanes of p positions.

    Training drops the P mod B last predictions (`left_over`): p = floor(P / B). Evaluation pads the last lanes with
    targets that count for nothing: p = ceil(P / B).
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    batch_size: int
    evaluation: bool

    @property
    def lane_len(self) -> int:
        """Positions in a lane."""
        available = len(self.tokens) - 1
        return -(-available // self.batch_size) if self.evaluation else available // self.batch_size

    @property
    def predictions(self) -> int:
        """Positions that an epoch reads over all lanes, padding left out."""
        return len(self.tokens) - 1 - self.left_over

    @property
    def left_over(self) -> int:
        """Predictions at the end of the tokens that no lane holds."""
        return 0 if self.evaluation else (len(self.tokens) - 1) % self.batch_size

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        """Read positions [start, stop) of contiguous lanes; every epoch reads the same."""
        assert 0 <= start < stop <= self.lane_len
        last = len(self.tokens) - 1
        # One more than the inputs: the last target, which at a lane's end is the next lane's first token.
        window = np.zeros((len(lanes), stop - start + 1), np.int64)
        targets = np.full((len(lanes), stop - start), NOT_COUNTED, np.int64)
        for row, lane in enumerate(lanes):
            first = lane * self.lane_len + start
            found = self.tokens[first : first + stop - start + 1]
            window[row, : len(found)] = found
            here = min(stop - start, max(0, last - first))
            targets[row, :here] = window[row, 1 : here + 1]
        resets = np.zeros(targets.shape, np.bool_)
        resets[:, : max(0, 1 - start)] = True
        return Segment(tokens_BT=np.ascontiguousarray(window[:, :-1]), targets_BT=targets, resets_BT=resets)

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        """Count the targets of positions [start, stop) that are not `NOT_COUNTED`, over all lanes."""
        firsts = np.arange(self.batch_size, dtype=np.int64) * self.lane_len + start
        return int(np.clip(len(self.tokens) - 1 - firsts, 0, stop - start).sum())


def training_lanes(tokens: NDArray[np.unsignedinteger[Any]], *, batch_size: int, segment_len: int) -> CorpusLanes:
    """Lay tokens out for training; `UserError` for fewer than B·T + 1 of them."""
    needed = batch_size * segment_len + 1
    if len(tokens) < needed:
        fits = [f"data.batch_size={(len(tokens) - 1) // segment_len}"] if len(tokens) > segment_len else []
        fits += [f"data.segment_len={(len(tokens) - 1) // batch_size}"] if len(tokens) > batch_size else []
        raise UserError(
            f"data.batch_size is {batch_size} and data.segment_len is {segment_len}, which need at least {needed} "
            f"training tokens, but the training split has {len(tokens)}: "
            + (" or ".join(fits) + " would fit" if fits else "a longer text is needed")
        )
    return CorpusLanes(tokens=tokens, batch_size=batch_size, evaluation=False)


def evaluation_lanes(tokens: NDArray[np.unsignedinteger[Any]], *, batch_size: int, split: str) -> CorpusLanes:
    """Lay tokens out for evaluation; `UserError` naming the split for fewer than 2 of them."""
    if len(tokens) < 2:
        raise UserError(
            f"the {split} split has {len(tokens)} token{'' if len(tokens) == 1 else 's'}, and an evaluation needs at "
            "least 2: a longer text, or a larger share of it for this split"
        )
    return CorpusLanes(tokens=tokens, batch_size=batch_size, evaluation=True)


def split_evenly(count: int, parts: int) -> list[range]:
    """Cut 0 ... count - 1 into contiguous ranges that differ by at most one, the longer ones first."""
    assert count >= 0
    assert parts >= 1
    size, longer = divmod(count, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
