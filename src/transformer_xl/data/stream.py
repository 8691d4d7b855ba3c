"""The order in which a run reads its lanes: segments, epochs, micro-batches, and the position to resume at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_xl.data.lanes import LaneSource, split_evenly
from transformer_xl.errors import UserError

_FORMAT = 1


class Batch(NamedTuple):
    """One micro-batch: T positions of B lanes, and its place in the run.

    Args:
        tokens_BT: Inputs, int64.
        targets_BT: The next token of the same lane, int64; -100 is not counted.
        resets_BT: True where a document begins, bool.
        counted: Targets that the whole optimizer step counts, over all ranks and micro-batches.
        step: Optimizer step, from 1; in an evaluation the segment, from 1.
        micro: Place within the step, from 0.
        chunk: Which chunk of this rank's lanes, from 0.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    resets_BT: Tensor
    counted: int
    step: int
    micro: int
    chunk: int


class _Span(NamedTuple):
    """Positions [start, stop) of every lane, in an epoch."""

    epoch: int
    start: int
    stop: int


def segments_per_epoch(*, lane_len: int, segment_len: int, limit: int | None) -> int:
    """Count the segments of an epoch: ceil(lane_len / segment_len), or `limit` where that is less."""
    segments = -(-lane_len // segment_len)
    return segments if limit is None else min(segments, limit)


def steps_per_epoch(*, segments: int, accumulate: int) -> int:
    """Count the optimizer steps that read at least one epoch: ceil(segments / accumulate)."""
    return -(-segments // accumulate)


class TrainStream:
    """The micro-batches of this rank for a whole run, endlessly over epochs, from where it stands.

    Segment g = (step - 1) * accumulate + a, counted from 0, is segment g mod S of epoch g // S, with S segments an
    epoch; all chunks of this rank's lanes come in turn, then the next segment.
    """

    def __init__(
        self,
        *,
        source: LaneSource,
        segment_len: int,
        lanes: range,
        lane_chunks: int,
        accumulate: int,
        steps: int,
        epoch_segments: int | None,
    ) -> None:
        if len(lanes) < lane_chunks:
            raise UserError(
                f"data.lane_chunks is {lane_chunks}, and must be at most {len(lanes)}, the lanes of a process "
                f"(data.batch_size is {source.batch_size})"
            )
        self._source = source
        self._segment_len = segment_len
        self._chunks = [
            range(lanes.start + part.start, lanes.start + part.stop) for part in split_evenly(len(lanes), lane_chunks)
        ]
        self._accumulate = accumulate
        self._steps = steps
        self._segments = segments_per_epoch(lane_len=source.lane_len, segment_len=segment_len, limit=epoch_segments)
        assert self._segments >= 1
        assert accumulate >= 1
        self._batches = 0
        self._counted = -1, 0

    @property
    def segments_per_epoch(self) -> int:
        """Segments of an epoch."""
        return self._segments

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that read at least one epoch."""
        return steps_per_epoch(segments=self._segments, accumulate=self._accumulate)

    def __len__(self) -> int:
        """Count the micro-batches of the whole run, those already handed out included."""
        return self._steps * self._accumulate * len(self._chunks)

    def __iter__(self) -> Iterator[Batch]:
        """Go on from where the stream stands; a batch counts as handed out as soon as it is yielded."""
        while self._batches < len(self):
            batch = self._batch(self._batches)
            self._batches += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the position: how many batches have been handed out."""
        return {"format": _FORMAT, "batches": self._batches}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Stand where `state_dict` was taken, so that iterating gives the very next batch."""
        batches = state.get("batches")
        if state.get("format") != _FORMAT or type(batches) is not int or not 0 <= batches <= len(self):
            raise UserError(
                f"a checkpoint's stream position is {dict(state)!r}, and must have format {_FORMAT} and between 0 and "
                f"{len(self)} batches, the length of this run"
            )
        self._batches = batches

    def _batch(self, number: int) -> Batch:
        step, micro = divmod(number, self._accumulate * len(self._chunks))
        turn, chunk = divmod(micro, len(self._chunks))
        return _read(
            self._source,
            self._span(step * self._accumulate + turn),
            lanes=self._chunks[chunk],
            counted=self._counted_at(step),
            step=step + 1,
            micro=micro,
            chunk=chunk,
        )

    def _counted_at(self, step: int) -> int:
        known, counted = self._counted
        if known != step:
            spans = [self._span(step * self._accumulate + turn) for turn in range(self._accumulate)]
            counted = sum(self._source.counted(epoch=span.epoch, start=span.start, stop=span.stop) for span in spans)
            self._counted = step, counted
        return counted

    def _span(self, segment: int) -> _Span:
        epoch, place = divmod(segment, self._segments)
        start = place * self._segment_len
        return _Span(epoch=epoch, start=start, stop=min(start + self._segment_len, self._source.lane_len))


class EvalStream:
    """The segments of this rank's lanes once through, from the start at each iteration."""

    def __init__(self, *, source: LaneSource, segment_len: int, lanes: range, limit: int | None) -> None:
        self._source = source
        self._segment_len = segment_len
        self._lanes = lanes
        self._segments = segments_per_epoch(lane_len=source.lane_len, segment_len=segment_len, limit=limit)

    def __len__(self) -> int:
        """Count the segments, the same on every rank."""
        return self._segments

    def __iter__(self) -> Iterator[Batch]:
        """Read every segment in order; `counted` is the segment's own."""
        for number in range(self._segments):
            start = number * self._segment_len
            span = _Span(epoch=0, start=start, stop=min(start + self._segment_len, self._source.lane_len))
            counted = self._source.counted(epoch=span.epoch, start=span.start, stop=span.stop)
            yield _read(self._source, span, lanes=self._lanes, counted=counted, step=number + 1, micro=0, chunk=0)


def _read(source: LaneSource, span: _Span, *, lanes: range, counted: int, step: int, micro: int, chunk: int) -> Batch:
    segment = source.read(epoch=span.epoch, lanes=lanes, start=span.start, stop=span.stop)
    return Batch(
        tokens_BT=torch.from_numpy(segment.tokens_BT),
        targets_BT=torch.from_numpy(segment.targets_BT),
        resets_BT=torch.from_numpy(segment.resets_BT),
        counted=counted,
        step=step,
        micro=micro,
        chunk=chunk,
    )
