"""The batches of a run in order: micro-batches, optimizer steps, and the position to resume at.

Letters: B lanes, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.data.lanes import NOT_COUNTED, LaneSource, Segments, Span, eval_starts


class Batch(NamedTuple):
    """One micro-batch: T positions of B lanes, and its place in the run.

    Its tensors know what they hold on the host: see `with_copy`.

    Args:
        tokens_BT: inputs, int64.
        targets_BT: the next token of the same lane, int64; -100 is not counted.
        resets_BT: True where memory is reset before the token is read, bool.
        counted: targets that the whole optimizer step counts, over all ranks and micro-batches.
        step: optimizer step, from 1; in an evaluation the segment or window, from 1.
        micro: place within the step, from 0.
        chunk: which chunk of this rank's lanes, from 0.
        lengths: of the segments that the positions are, in order.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    resets_BT: Tensor
    counted: int
    step: int
    micro: int
    chunk: int
    lengths: tuple[int, ...]

    def cut(self, lanes: slice = slice(None), positions: slice = slice(None)) -> Batch:
        """Return the part of some lanes and positions."""
        tokens, targets, resets = (
            with_copy(tensor[lanes, positions], None if on_host is None else on_host[lanes, positions])
            for tensor, on_host in ((tensor, getattr(tensor, "on_host", None)) for tensor in self[:3])
        )
        return self._replace(tokens_BT=tokens, targets_BT=targets, resets_BT=resets)

    def segments(self) -> Iterator[Batch]:
        """Return the parts that are read one after another, each with the memory of the one before it."""
        stops = accumulate(self.lengths)
        parts = (slice(stop - length, stop) for length, stop in zip(self.lengths, stops, strict=True))
        return (self.cut(positions=part) for part in parts)


class TrainStream:
    """The micro-batches of this rank, endlessly over epochs of the corpus, from where the stream stands.

    A step reads the next `accumulate` groups of segments; of each group all chunks of this rank's lanes come in turn,
    then the next group.

    Args:
        source: lanes of the training split.
        segments: which positions each segment of a group holds.
        chunks: the lanes of this rank, in the parts in which those of a group come.
        accumulate: groups in time that make one optimizer step.
        steps: optimizer steps of one iteration, which go on across the ends of epochs; None: an iteration is one epoch
            of the corpus, whose last step may hold fewer groups.
        device: to which batches are copied ahead where it is a CUDA device.
    """

    def __init__(
        self,
        *,
        source: LaneSource,
        segments: Segments,
        chunks: Sequence[range],
        accumulate: int,
        steps: int | None,
        device: torch.device,
    ) -> None:
        self._source, self._segments, self._chunks = source, segments, chunks
        self._accumulate, self._steps, self._device = accumulate, steps, device
        self._batches = 0
        self._counted = -1, 0  # of the step at hand
        self._steps_before = [0]  # optimizer steps of the epochs before each, where an iteration is an epoch

    def __len__(self) -> int:
        """Count the micro-batches of an iteration: the whole run's, those handed out included, or an epoch's."""
        groups = self._segments.count(self._epoch) if self._steps is None else self._steps * self._accumulate
        return groups * len(self._chunks)

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
        return {"batches": self._batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state_dict` was taken, as Lightning does at a resume: the very next batch follows."""
        self._batches = int(state["batches"])

    @property
    def _epoch(self) -> int:
        return self._segments.locate(self._batches // len(self._chunks))[0]

    def _batch(self, number: int) -> Batch:
        group, chunk = divmod(number, len(self._chunks))
        step, first, stop = self._step_of(group)
        if self._counted[0] != step:
            counted = sum(_counted(self._source, self._segments.spans(other)) for other in range(first, stop))
            self._counted = step, counted
        return _read(
            self._source,
            self._segments.spans(group),
            lanes=self._chunks[chunk],
            counted=self._counted[1],
            step=step + 1,
            micro=number - first * len(self._chunks),
            chunk=chunk,
        )

    def _step_of(self, group: int) -> tuple[int, int, int]:
        """Return the optimizer step of a group, from 0, and the step's groups [first, stop)."""
        if self._steps is not None:
            step = group // self._accumulate
            return step, step * self._accumulate, (step + 1) * self._accumulate
        epoch, place = self._segments.locate(group)
        while len(self._steps_before) <= epoch:
            count = self._segments.count(len(self._steps_before) - 1)
            self._steps_before.append(self._steps_before[-1] - (-count // self._accumulate))
        turn = place // self._accumulate
        first = self._segments.before(epoch) + turn * self._accumulate
        return self._steps_before[epoch] + turn, first, min(first + self._accumulate, self._segments.before(epoch + 1))


class EvalStream:
    """The segments or windows (`stride`) of this rank's lanes once through, from the start at each iteration."""

    def __init__(
        self, *, source: LaneSource, segment_len: int, stride: int | None, lanes: range, device: torch.device
    ) -> None:
        self.source, self.lanes = source, lanes
        self._segment_len, self._stride, self._device = segment_len, stride, device
        self._starts = eval_starts(lane_len=source.lane_len, segment_len=segment_len, stride=stride)

    def __len__(self) -> int:
        """Count the windows, the same on every rank."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Batch]:
        """Read every window in order; `counted` is the window's own."""
        return copied_ahead(self._batches(), self._device)

    def _batches(self) -> Iterator[Batch]:
        counted_to = 0
        for step, start in enumerate(self._starts, start=1):
            stop = min(start + self._segment_len, self.source.lane_len)
            spans = [Span(epoch=0, start=start, counts_from=counted_to, stop=stop)]
            counted, counted_to = _counted(self.source, spans), stop
            batch = _read(self.source, spans, lanes=self.lanes, counted=counted, step=step, micro=0, chunk=0)
            if self._stride is not None:
                batch.resets_BT[:, 0] = True
            yield batch


def _counted(source: LaneSource, spans: Sequence[Span]) -> int:
    return sum(source.counted(epoch=span.epoch, start=span.counts_from, stop=span.stop) for span in spans)


def _read(
    source: LaneSource, spans: Sequence[Span], *, lanes: range, counted: int, step: int, micro: int, chunk: int
) -> Batch:
    first = spans[0].start
    found = source.read(epoch=spans[0].epoch, lanes=lanes, start=first, stop=spans[-1].stop)
    for span in spans:
        found.targets_BT[:, span.start - first : span.counts_from - first] = NOT_COUNTED
    tokens, targets, resets = (with_copy(torch.from_numpy(array), array) for array in found)
    lengths = tuple(span.stop - span.start for span in spans)
    return Batch(tokens, targets, resets, counted, step, micro, chunk, lengths)


def with_copy(tensor: Tensor, array: NDArray[Any] | None) -> Tensor:
    """Return a tensor whose attribute `on_host` is what it holds, for models that must know before they go on.

    So the host need not wait for the device; None: it must. A tensor that is made of this one has no such attribute.
    """
    tensor.on_host = array  # type: ignore[attr-defined]
    return tensor


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the same batches in order; on CUDA with their tensors on the device, the next one already on its way.

    A batch may be used on the stream that is current when it is handed out. Elsewhere nothing is copied or read ahead.
    """
    if device.type != "cuda":
        yield from batches
        return
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    travelling = _start_copy(next(batches, None), device, side)
    while travelling is not None:
        arrived, current = travelling, torch.cuda.current_stream(device)
        current.wait_stream(side)  # before the next copy is started, so that it waits for no other
        for tensor in arrived[:3]:
            tensor.record_stream(current)  # the side stream must not write to its memory while this one still reads
        travelling = _start_copy(next(batches, None), device, side)
        yield arrived


def _start_copy(batch: Batch | None, device: torch.device, side: torch.cuda.Stream) -> Batch | None:
    if batch is None:
        return None
    # Without pinned memory the copy would hold up this process. PyTorch keeps what is freed from being used again until
    # the copies out of it are done.
    arrays = [tensor.numpy() for tensor in batch[:3]]
    pinned = [tensor.pin_memory() for tensor in batch[:3]]
    with torch.cuda.stream(side):
        copies = [tensor.to(device, non_blocking=True) for tensor in pinned]
    tokens, targets, resets = map(with_copy, copies, arrays)
    return batch._replace(tokens_BT=tokens, targets_BT=targets, resets_BT=resets)
