"""Which positions of the lanes a segment holds, in training (equal or drawn lengths) and in evaluation.

Every count of segments, steps and tokens of a run follows from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SHORTEST = 5  # as in the published code
_DRAWN_TOGETHER = 256


class Span(NamedTuple):
    """Positions [start, stop) of every lane in an epoch; those before `counts_from` are read and not counted."""

    epoch: int
    start: int
    counts_from: int
    stop: int


class Segments(ABC):
    """The segments of a training run, numbered from 0 over all its epochs, the same for all lanes."""

    def __init__(self, *, half_loss: bool) -> None:
        self._half_loss = half_loss

    @abstractmethod
    def before(self, epoch: int) -> int:
        """Count the segments of all epochs before this one."""

    @abstractmethod
    def locate(self, number: int) -> tuple[int, int]:
        """Return the epoch of a segment and its place there, both from 0."""

    @abstractmethod
    def _stop(self, epoch: int, place: int) -> int:
        """Return the position after a segment's last."""

    @abstractmethod
    def _positions_before(self, epoch: int) -> int: ...

    def count(self, epoch: int) -> int:
        """Count the segments of an epoch."""
        return self.before(epoch + 1) - self.before(epoch)

    def span(self, number: int) -> Span:
        """Return the positions of a segment."""
        epoch, place = self.locate(number)
        start, stop = self._start(epoch, place), self._stop(epoch, place)
        skipped = (stop - start) // 2 if self._half_loss else 0
        return Span(epoch=epoch, start=start, counts_from=start + skipped, stop=stop)

    def positions(self, number: int) -> int:
        """Count the positions of a lane that the run's first `number` segments hold."""
        epoch, place = self.locate(number)
        return self._positions_before(epoch) + self._start(epoch, place)

    def epochs(self, number: int) -> float:
        """Count the epochs that the run's first `number` segments make."""
        epoch, place = self.locate(number)
        return epoch + place / self.count(epoch)

    def _start(self, epoch: int, place: int) -> int:
        return self._stop(epoch, place - 1) if place else 0


class EqualSegments(Segments):
    """Segments of one length; only the last of an epoch may be shorter."""

    def __init__(self, *, lane_len: int, segment_len: int, limit: int | None, half_loss: bool) -> None:
        super().__init__(half_loss=half_loss)
        self._lane_len = lane_len
        self._segment_len = segment_len
        whole = -(-lane_len // segment_len)
        self._count = whole if limit is None else min(whole, limit)
        assert self._count >= 1

    def before(self, epoch: int) -> int:
        return epoch * self._count

    def locate(self, number: int) -> tuple[int, int]:
        return divmod(number, self._count)

    def _stop(self, epoch: int, place: int) -> int:
        return min((place + 1) * self._segment_len, self._lane_len)

    def _positions_before(self, epoch: int) -> int:
        return epoch * self._stop(0, self._count - 1)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How the lengths of segments are distributed: normally around `segment_len`, or around half of it.

    Attributes:
        segment_len: mean.
        sd: standard deviation.
        half_share: probability of half the mean.
    """

    segment_len: int
    sd: float
    half_share: float

    @property
    def longest(self) -> int:
        """The length at which drawn ones are cut: three deviations above the mean, as published."""
        return int(self.segment_len + 3 * self.sd)

    def draw(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw whole lengths, cut as in the published code to at least 5 and at most `longest`.

        They are rounded; that code rounds down, which would make them shorter than their mean by half a token.
        """
        is_half = generator.random(count) < self.half_share
        means = np.where(is_half, self.segment_len / 2, self.segment_len)
        drawn = np.rint(generator.normal(means, self.sd))
        return np.clip(drawn, min(_SHORTEST, self.segment_len), self.longest).astype(np.int64)


class DrawnSegments(Segments):
    """Segments of varying length, drawn anew for each epoch from (seed, epoch); the last of a lane may be shorter."""

    def __init__(self, *, lane_len: int, lengths: Lengths, seed: int, limit: int | None, half_loss: bool) -> None:
        super().__init__(half_loss=half_loss)
        self._lane_len = lane_len
        self._lengths = lengths
        self._seed = seed
        self._limit = limit
        # sums over the epochs before each; an epoch is drawn when it is first asked for
        self._before = [0]
        self._positions = [0]

    def before(self, epoch: int) -> int:
        while len(self._before) <= epoch:
            self._add_epoch()
        return self._before[epoch]

    def locate(self, number: int) -> tuple[int, int]:
        while self._before[-1] <= number:
            self._add_epoch()
        epoch = bisect_right(self._before, number) - 1
        return epoch, number - self._before[epoch]

    def _stop(self, epoch: int, place: int) -> int:
        return int(self._stops(epoch)[place])

    def _positions_before(self, epoch: int) -> int:
        return self._positions[epoch]

    def _add_epoch(self) -> None:
        stops = self._stops(len(self._before) - 1)
        self._before.append(self._before[-1] + len(stops))
        self._positions.append(self._positions[-1] + int(stops[-1]))

    def _stops(self, epoch: int) -> NDArray[np.int64]:
        return _draw_stops(self._lengths, lane_len=self._lane_len, seed=self._seed, epoch=epoch, limit=self._limit)


@lru_cache(maxsize=4)
def _draw_stops(lengths: Lengths, *, lane_len: int, seed: int, epoch: int, limit: int | None) -> NDArray[np.int64]:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))))
    parts = [np.zeros(1, np.int64)]
    while parts[-1][-1] < lane_len:
        parts.append(parts[-1][-1] + lengths.draw(generator, _DRAWN_TOGETHER).cumsum())
    stops = np.concatenate(parts)[1:].clip(max=lane_len)
    return stops[: 1 + int(np.searchsorted(stops, lane_len))][:limit]


def training_segments(
    *,
    lane_len: int,
    segment_len: int,
    segment_len_sd: float = 0.0,
    half_segments: float = 0.0,
    half_loss: bool = False,
    seed: int = 0,
    limit: int | None = None,
) -> Segments:
    """Lay out the segments of a run.

    Args:
        lane_len: positions in a lane.
        segment_len: T, or the mean of drawn lengths.
        segment_len_sd: standard deviation of drawn lengths.
        half_segments: share of segments around half the length.
        half_loss: whether only the second half of each segment counts.
        seed: of drawn lengths.
        limit: the first segments that make an epoch; None: all.
    """
    if segment_len_sd == 0 and half_segments == 0:
        return EqualSegments(lane_len=lane_len, segment_len=segment_len, limit=limit, half_loss=half_loss)
    lengths = Lengths(segment_len=segment_len, sd=segment_len_sd, half_share=half_segments)
    return DrawnSegments(lane_len=lane_len, lengths=lengths, seed=seed, limit=limit, half_loss=half_loss)


@dataclass(frozen=True, kw_only=True)
class EvalWindows:
    """The windows in which an evaluation reads lanes, so that each position is counted in exactly one of them.

    Without a stride they are segments, one after another. With one, each window starts so many positions after the
    last and counts what that one did not hold. The window at a lane's end is shorter, not earlier: what a prediction
    sees depends on its own place alone, and a stride of `segment_len` equals segments read without memory.
    """

    lane_len: int
    segment_len: int
    stride: int | None

    def __len__(self) -> int:
        """Count the windows."""
        return 1 + -(-max(0, self.lane_len - self.segment_len) // self._step)

    def __iter__(self) -> Iterator[Span]:
        """Return the windows in order."""
        counted = 0
        for number in range(len(self)):
            start = number * self._step
            stop = min(start + self.segment_len, self.lane_len)
            yield Span(epoch=0, start=start, counts_from=counted, stop=stop)
            counted = stop

    @property
    def _step(self) -> int:
        step = self.segment_len if self.stride is None else self.stride
        assert 1 <= step <= self.segment_len
        return step
