"""The order in which a run reads its segments: micro-batches, optimizer steps, and the position to resume at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from transformer_xl.data.ahead import copied_ahead
from transformer_xl.data.batch import Batch
from transformer_xl.data.lanes import NOT_COUNTED, LaneSource, split_evenly
from transformer_xl.data.segments import EvalWindows, Segments, Span
from transformer_xl.errors import UserError

_FORMAT = 1


class TrainStream:
    """The micro-batches of this rank for a whole run, endlessly over epochs, from where it stands.

    A step reads the next `accumulate` segments, across the ends of epochs; of each segment all chunks of this rank's
    lanes come in turn, then the next segment.
    """

    def __init__(
        self,
        *,
        source: LaneSource,
        segments: Segments,
        lanes: range,
        lane_chunks: int,
        accumulate: int,
        steps: int,
        device: torch.device,
    ) -> None:
        if len(lanes) < lane_chunks:
            raise UserError(
                f"data.lane_chunks is {lane_chunks}, and must be at most {len(lanes)}, the lanes of a process "
                f"(data.batch_size is {source.batch_size})"
            )
        self._source = source
        self._segments = segments
        self._chunks = [
            range(lanes.start + part.start, lanes.start + part.stop) for part in split_evenly(len(lanes), lane_chunks)
        ]
        self._accumulate = accumulate
        self._steps = steps
        self._device = device
        assert accumulate >= 1
        self._batches = 0
        self._counted = -1, 0

    def __len__(self) -> int:
        """Count the micro-batches of the whole run, those already handed out included."""
        return self._steps * self._accumulate * len(self._chunks)

    def __iter__(self) -> Iterator[Batch]:
        """Go on from where the stream stands; a batch counts as handed out as soon as it is yielded."""
        rest = map(self._batch, range(self._batches, len(self)))
        for batch in copied_ahead(rest, self._device):
            self._batches += 1  # those that are only read ahead are not counted
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
            self._segments.span(step * self._accumulate + turn),
            lanes=self._chunks[chunk],
            counted=self._counted_at(step),
            step=step + 1,
            micro=micro,
            chunk=chunk,
        )

    def _counted_at(self, step: int) -> int:
        known, counted = self._counted
        if known != step:
            turns = range(step * self._accumulate, (step + 1) * self._accumulate)
            counted = sum(_counted(self._source, self._segments.span(segment)) for segment in turns)
            self._counted = step, counted
        return counted


class EvalStream:
    """The segments or windows of this rank's lanes once through, from the start at each iteration."""

    def __init__(
        self, *, source: LaneSource, segment_len: int, stride: int | None, lanes: range, device: torch.device
    ) -> None:
        self._source = source
        self._windows = EvalWindows(lane_len=source.lane_len, segment_len=segment_len, stride=stride)
        self._resets_each = stride is not None
        self._lanes = lanes
        self._device = device

    def __len__(self) -> int:
        """Count the windows, the same on every rank."""
        return len(self._windows)

    def __iter__(self) -> Iterator[Batch]:
        """Read every window in order; `counted` is the window's own."""
        return copied_ahead(self._batches(), self._device)

    def _batches(self) -> Iterator[Batch]:
        for step, span in enumerate(self._windows, start=1):
            counted = _counted(self._source, span)
            batch = _read(self._source, span, lanes=self._lanes, counted=counted, step=step, micro=0, chunk=0)
            if self._resets_each:
                batch.resets_BT[:, 0] = True
            yield batch


def _counted(source: LaneSource, span: Span) -> int:
    return source.counted(epoch=span.epoch, start=span.counts_from, stop=span.stop)


def _read(source: LaneSource, span: Span, *, lanes: range, counted: int, step: int, micro: int, chunk: int) -> Batch:
    segment = source.read(epoch=span.epoch, lanes=lanes, start=span.start, stop=span.stop)
    targets = torch.from_numpy(segment.targets_BT)
    targets[:, : span.counts_from - span.start] = NOT_COUNTED
    return Batch(
        tokens_BT=torch.from_numpy(segment.tokens_BT),
        targets_BT=targets,
        resets_BT=torch.from_numpy(segment.resets_BT),
        counted=counted,
        step=step,
        micro=micro,
        chunk=chunk,
    )
