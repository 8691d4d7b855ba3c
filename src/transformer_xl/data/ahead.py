"""Copying ahead: while a device computes on one batch, the next is read and travels to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_xl.data.batch import Batch


def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Give the same batches in the same order; on CUDA with their tensors on the device, and one batch in flight.

    A batch may be used on the stream that is current when it is handed out. Elsewhere nothing is copied or read ahead.
    """
    if device.type != "cuda":
        return batches
    copies = _SideStream(device)
    return one_ahead(batches, start=copies.start, finish=copies.finish)


def one_ahead(
    batches: Iterator[Batch], *, start: Callable[[Batch], Batch], finish: Callable[[Batch], None]
) -> Iterator[Batch]:
    """Give what `start` makes of each batch, always with the next one started.

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
        pinned = [tensor.pin_memory() for tensor in _tensors(batch)]
        with torch.cuda.stream(self._stream):
            tokens, targets, resets = (tensor.to(self._device, non_blocking=True) for tensor in pinned)
        return batch._replace(tokens_BT=tokens, targets_BT=targets, resets_BT=resets)

    def finish(self, batch: Batch) -> None:
        """Let what is queued on the current stream from here on wait for the copy; the process goes on."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in _tensors(batch):
            # The memory belongs to the side stream, which must not write to it while this one still reads.
            tensor.record_stream(current)


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.tokens_BT, batch.targets_BT, batch.resets_BT
