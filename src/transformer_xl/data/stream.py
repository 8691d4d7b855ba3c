"""The batches of a run in order: micro-batches, optimizer steps, and the position to resume at.

Letters: B lanes, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_xl.data.lanes import NOT_COUNTED, LaneSource, split_evenly
from transformer_xl.data.segments import EvalWindows, Segments, Span
from transformer_xl.errors import UserError

_FORMAT = 1


class Batch(NamedTuple):
    """One micro-batch: T positions of B lanes, and its place in the run.

    Args:
        tokens_BT: Inputs, int64.
        targets_BT: The next token of the same lane, int64; -100 is not counted.
        resets_BT: True where a document begins, bool.
        counted: Targets that the whole optimizer step counts, over all ranks and micro-batches.
        step: Optimizer step, from 1; in an evaluation the segment or window, from 1.
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


class TrainStream:
    """The micro-batches of this rank, endlessly over epochs of the corpus, from where the stream stands.

    A step reads the next `accumulate` segments; of each segment all chunks of this rank's lanes come in turn, then the
    next segment.

    Args:
        source: lanes of the training split.
        segments: which positions each segment holds.
        lanes: those of this rank.
        lane_chunks: parts in which the lanes of a segment come.
        accumulate: segments in time that make one optimizer step.
        steps: optimizer steps of one iteration, which go on across the ends of epochs; None: an iteration is one epoch
            of the corpus, whose last step may hold fewer segments.
        device: to which batches are copied ahead where it is a CUDA device.
    """

    def __init__(
        self,
        *,
        source: LaneSource,
        segments: Segments,
        lanes: range,
        lane_chunks: int,
        accumulate: int,
        steps: int | None,
        device: torch.device,
    ) -> None:
        if len(lanes) < lane_chunks:
            raise UserError(
                f"data.lane_chunks is {lane_chunks}, and must be at most {len(lanes)}, the lanes of a process "
                f"(data.batch_size is {source.batch_size})"
            )
        assert accumulate >= 1
        self._source = source
        self._segments = segments
        self._chunks = [
            range(lanes.start + part.start, lanes.start + part.stop) for part in split_evenly(len(lanes), lane_chunks)
        ]
        self._accumulate = accumulate
        self._steps = steps
        self._device = device
        self._batches = 0
        self._counted = -1, 0
        self._steps_before = [0]  # optimizer steps of the epochs before each, where an iteration is an epoch

    def __len__(self) -> int:
        """Count the micro-batches of an iteration: the whole run's, those handed out included, or an epoch's."""
        if self._steps is not None:
            return self._steps * self._accumulate * len(self._chunks)
        return self._segments.count(self._epoch) * len(self._chunks)

    def __iter__(self) -> Iterator[Batch]:
        """Go on from where the stream stands; a batch counts as handed out as soon as it is yielded."""
        stop = len(self)
        if self._steps is None:
            stop = self._segments.before(self._epoch + 1) * len(self._chunks)
        for batch in copied_ahead(map(self._batch, range(self._batches, stop)), self._device):
            self._batches += 1  # those that are only read ahead are not counted
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the position: how many batches have been handed out."""
        return {"format": _FORMAT, "batches": self._batches}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Stand where `state_dict` was taken, so that iterating gives the very next batch."""
        batches = state.get("batches")
        last = None if self._steps is None else len(self)
        is_position = type(batches) is int and batches >= 0 and (last is None or batches <= last)
        if state.get("format") != _FORMAT or not is_position:
            raise UserError(
                f"a checkpoint's stream position is {dict(state)!r}, and must have format {_FORMAT} and between 0 and "
                f"{last} batches, the length of this run"
            )
        assert isinstance(batches, int)
        self._batches = batches

    @property
    def _epoch(self) -> int:
        return self._segments.locate(self._batches // len(self._chunks))[0]

    def _batch(self, number: int) -> Batch:
        segment, chunk = divmod(number, len(self._chunks))
        step, first, stop = self._step_of(segment)
        return _read(
            self._source,
            self._segments.span(segment),
            lanes=self._chunks[chunk],
            counted=self._counted_at(step, range(first, stop)),
            step=step + 1,
            micro=number - first * len(self._chunks),
            chunk=chunk,
        )

    def _step_of(self, segment: int) -> tuple[int, int, int]:
        """Return the optimizer step of a segment, from 0, and the step's segments [first, stop)."""
        if self._steps is not None:
            step = segment // self._accumulate
            return step, step * self._accumulate, (step + 1) * self._accumulate
        epoch, place = self._segments.locate(segment)
        while len(self._steps_before) <= epoch:
            count = self._segments.count(len(self._steps_before) - 1)
            self._steps_before.append(self._steps_before[-1] - (-count // self._accumulate))
        turn = place // self._accumulate
        first = self._segments.before(epoch) + turn * self._accumulate
        return self._steps_before[epoch] + turn, first, min(first + self._accumulate, self._segments.before(epoch + 1))

    def _counted_at(self, step: int, segments: range) -> int:
        known, counted = self._counted
        if known != step:
            counted = sum(_counted(self._source, self._segments.span(segment)) for segment in segments)
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


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches in the same order; on CUDA with their tensors on the device, and one batch in flight.

    A batch may be used on the stream that is current when it is handed out. Elsewhere nothing is copied or read ahead.
    """
    if device.type != "cuda":
        return batches
    copies = _SideStream(device)
    return one_ahead(batches, start=copies.start, finish=copies.finish)


def one_ahead(
    batches: Iterator[Batch], *, start: Callable[[Batch], Batch], finish: Callable[[Batch], None]
) -> Iterator[Batch]:
    """Yield what `start` makes of each batch, always with the next one started.

    Args:
        batches: read one further than has been handed out.
        start: begins to copy a batch, and does not wait for the copy.
        finish: makes a copy safe to use; called before the next one is started, so that it waits for no other.
    """
    travelling = _started(batches, start)
    while travelling is not None:
        arrived = travelling
        finish(arrived)
        travelling = _started(batches, start)
        yield arrived


def _started(batches: Iterator[Batch], start: Callable[[Batch], Batch]) -> Batch | None:
    batch = next(batches, None)
    return None if batch is None else start(batch)


class _SideStream:
    """Copies to a CUDA device on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Batch) -> Batch:
        """Begin to copy from pinned memory, without which the copy would hold up this process."""
        # PyTorch keeps freed pinned memory from being used again until the copies out of it are done.
        pinned = [tensor.pin_memory() for tensor in batch[:3]]
        with torch.cuda.stream(self._stream):
            tokens, targets, resets = (tensor.to(self._device, non_blocking=True) for tensor in pinned)
        return batch._replace(tokens_BT=tokens, targets_BT=targets, resets_BT=resets)

    def finish(self, batch: Batch) -> None:
        """Let what is queued on the current stream from here on wait for the copy; the process goes on."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in batch[:3]:
            # The memory belongs to the side stream, which must not write to it while this one still reads.
            tensor.record_stream(current)
