from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from transformer_xl.data.stream import Batch, copied_ahead, one_ahead


def batch(number: int, *, lanes: int = 2, segment_len: int = 3) -> Batch:
    tokens = torch.arange(lanes * segment_len).view(lanes, segment_len) + 1000 * number
    resets = torch.zeros(lanes, segment_len, dtype=torch.bool)
    resets[:, 0] = number == 1
    return Batch(tokens, tokens + 1, resets, counted=tokens.numel(), step=number, micro=0, chunk=0)


def read(count: int, log: list[str]) -> Iterator[Batch]:
    for number in range(1, count + 1):
        log.append(f"read {number}")
        yield batch(number)


def test_elsewhere_than_on_cuda_batches_are_what_they_were_and_read_when_asked_for() -> None:
    log: list[str] = []
    given = read(3, log)
    batches = copied_ahead(given, torch.device("cpu"))
    assert batches is given
    next(batches)
    assert log == ["read 1"]


def logged(count: int, log: list[str]) -> Iterator[Batch]:
    """Read ahead with a device that only writes down what it is asked for."""

    def start(batch: Batch) -> Batch:
        log.append(f"start {batch.step}")
        return batch._replace(micro=7)

    return one_ahead(read(count, log), start=start, finish=lambda batch: log.append(f"finish {batch.step}"))


def test_the_next_batch_travels_while_one_is_used_and_no_copy_waits_for_a_later_one() -> None:
    log: list[str] = []
    for found in logged(3, log):
        assert found.micro == 7
        log.append(f"use {found.step}")
    assert log == [
        *("read 1", "start 1", "finish 1"),
        *("read 2", "start 2", "use 1", "finish 2"),
        *("read 3", "start 3", "use 2", "finish 3"),
        "use 3",
    ]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_each_batch_comes_once_and_in_order(count: int) -> None:
    assert [found.step for found in logged(count, [])] == list(range(1, count + 1))


def test_no_more_than_one_is_read_ahead() -> None:
    log: list[str] = []
    list(itertools.islice(logged(9, log), 2))
    assert [entry for entry in log if entry.startswith("read")] == ["read 1", "read 2", "read 3"]


@pytest.mark.gpu
def test_on_cuda_batches_are_used_on_whatever_stream_is_current_with_their_own_values() -> None:
    """Large batches and a busy device: a missing wait, or memory that is used again too soon, changes the sums."""
    device = torch.device("cuda", torch.cuda.current_device())
    count, size = 20, {"lanes": 64, "segment_len": 4096}
    busy = torch.randn(4096, 4096, device=device)
    sums = []
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for found in copied_ahead((batch(number, **size) for number in range(1, count + 1)), device):
            assert {tensor.device for tensor in (found.tokens_BT, found.targets_BT, found.resets_BT)} == {device}
            busy = (busy @ busy).clamp(-1, 1)  # the sum below waits in the queue, while later batches travel
            sums.append(torch.stack([tensor.sum() for tensor in (found.tokens_BT, found.targets_BT, found.resets_BT)]))
            del found
        last = torch.stack(sums).cpu()
    expected = [batch(number, **size) for number in range(1, count + 1)]
    assert last.tolist() == [
        [int(tensor.sum()) for tensor in (one.tokens_BT, one.targets_BT, one.resets_BT)] for one in expected
    ]


@pytest.mark.gpu
def test_on_cuda_steps_and_numbers_stay_and_what_is_handed_out_is_not_written_over() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    expected = [batch(number) for number in range(1, 6)]
    kept = list(copied_ahead(iter(expected), device))
    for found, one in zip(kept, expected, strict=True):
        assert found[3:] == one[3:]
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found[:3], one[:3], strict=True))
