import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.laid_out import evaluation_lanes, training_lanes
from transformer_xl.data.lanes import LaneSource, Segments, split_evenly
from transformer_xl.data.recall import Task
from transformer_xl.data.stream import Batch, EvalStream, TrainStream, copied_ahead
from transformer_xl.data_config import RecallConfig

sizes = st.integers(1, 6)
CPU = torch.device("cpu")


def text(tokens: int) -> np.ndarray:
    return np.arange(tokens, dtype=np.uint16)


def train_stream(
    source: LaneSource,
    *,
    segment_len: int = 4,
    lanes: range | None = None,
    chunks: int = 1,
    accumulate: int = 1,
    steps: int | None = 6,
    **lengths: object,
) -> TrainStream:
    own = range(source.batch_size) if lanes is None else lanes
    parts = split_evenly(len(own), chunks)
    return TrainStream(
        source=source,
        segments=Segments(lane_len=source.lane_len, segment_len=segment_len, **lengths),  # type: ignore[arg-type]
        chunks=[own[part.start : part.stop] for part in parts],
        accumulate=accumulate,
        steps=steps,
        device=CPU,
    )


def recall_lanes(*, batch_size: int = 5, train_tokens: int = 70) -> LaneSource:
    config = RecallConfig(
        kind="recall",
        batch_size=batch_size,
        segment_len=4,
        segment_len_sd=0.0,
        half_segments=0.0,
        loss="full",
        lane_chunks=2,
        n_symbols=8,
        block_len=3,
        train_tokens=train_tokens,
        eval_tokens=60,
    )
    return Task(config=config, seed=1).lanes("train", batch_size=batch_size, segment_len=4, evaluation=False)


def equal(left: list[Batch], right: list[Batch]) -> bool:
    pairs = itertools.zip_longest(left, right)
    return all(
        len(a) == len(b) and all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b, strict=True))
        for a, b in pairs
    )


@settings(deadline=None)
@given(
    batch_size=st.integers(1, 9),
    segment_len=sizes,
    extra=st.integers(0, 40),
    accumulate=st.integers(1, 3),
    group=st.integers(1, 3),
    data=st.data(),
)
def test_ranks_and_chunks_read_every_lane_in_order(
    batch_size: int, segment_len: int, extra: int, accumulate: int, group: int, data: st.DataObject
) -> None:
    tokens = batch_size * segment_len + 1 + extra
    source = training_lanes(text(tokens), batch_size=batch_size, segment_len=segment_len)
    ranks = data.draw(st.integers(1, batch_size))
    chunks = data.draw(st.integers(1, batch_size // ranks))
    steps = -(-2 * -(-source.lane_len // (group * segment_len)) // accumulate)  # two epochs
    lengths = {"segment_len": segment_len, "bptt_segments": group}
    streams = [
        train_stream(source, lanes=lanes, chunks=chunks, accumulate=accumulate, steps=steps, **lengths)
        for lanes in split_evenly(batch_size, ranks)
    ]
    batches = [list(stream) for stream in streams]
    assert {len(rank) for rank in batches} == {len(streams[0])} == {steps * accumulate * chunks}
    read: list[list[int]] = [[] for _ in range(batch_size)]
    for step in range(1, steps + 1):
        mine = [[batch for batch in rank if batch.step == step] for rank in batches]
        targets = [batch.targets_BT for rank in mine for batch in rank]
        assert {batch.counted for rank in mine for batch in rank} == {sum(int((t != -100).sum()) for t in targets)}
        for rank in mine:
            assert [batch.micro for batch in rank] == list(range(accumulate * chunks))
            assert [batch.chunk for batch in rank] == list(range(chunks)) * accumulate
        for turn in range(accumulate):
            rows = [b for rank in mine for b in rank[turn * chunks : (turn + 1) * chunks]]
            lane = itertools.count()
            for batch in rows:
                assert batch.tokens_BT.shape[1] == sum(batch.lengths) <= group * segment_len
                assert {*batch.lengths[:-1]} <= {segment_len}
                assert torch.equal(batch.targets_BT, batch.tokens_BT + 1)
                for row, resets in zip(batch.tokens_BT.tolist(), batch.resets_BT.tolist(), strict=True):
                    number = next(lane)
                    read[number] += row
                    first = number * source.lane_len
                    assert resets == [token == first for token in row]
            assert next(lane) == batch_size
    for number, row in enumerate(read):
        once = list(range(number * source.lane_len, (number + 1) * source.lane_len))
        assert row[: 2 * len(once)] == once + once
        assert row[2 * len(once) :] == once[: len(row) - 2 * len(once)]


@settings(deadline=None)
@given(tokens=st.integers(2, 70), batch_size=st.integers(1, 9), segment_len=sizes, data=st.data())
def test_an_evaluation_on_any_ranks_counts_each_prediction_once(
    tokens: int, batch_size: int, segment_len: int, data: st.DataObject
) -> None:
    source = evaluation_lanes(text(tokens), batch_size=batch_size, split="valid")
    ranks = data.draw(st.integers(1, batch_size))
    streams = [
        EvalStream(source=source, segment_len=segment_len, stride=None, lanes=lanes, device=CPU)
        for lanes in split_evenly(batch_size, ranks)
    ]
    batches = [list(stream) for stream in streams]
    assert {len(rank) for rank in batches} == {len(streams[0])}
    predicted = []
    for same_segment in zip(*batches, strict=True):
        assert {batch.step for batch in same_segment} == {same_segment[0].step}
        found = torch.cat([batch.targets_BT for batch in same_segment])
        inputs = torch.cat([batch.tokens_BT for batch in same_segment])
        kept = found != -100
        assert {batch.counted for batch in same_segment} == {int(kept.sum())}
        assert torch.equal(found[kept], inputs[kept] + 1)
        predicted += found[kept].tolist()
    assert sorted(predicted) == list(range(1, tokens))


def test_an_evaluation_starts_over_each_time() -> None:
    source = evaluation_lanes(text(25), batch_size=3, split="valid")
    stream = EvalStream(source=source, segment_len=4, stride=None, lanes=range(3), device=CPU)
    first = list(stream)
    assert equal(first, list(stream))
    assert [(batch.step, batch.micro, batch.chunk) for batch in first] == [(1, 0, 0), (2, 0, 0)]
    assert len(stream) == 2
    assert first[0].resets_BT[:, 0].all()


def test_accumulation_goes_on_in_time_across_epochs() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    batches = list(train_stream(source, steps=2, accumulate=2, chunks=2))
    assert [batch.tokens_BT[0, 0].item() for batch in batches] == [0, 10, 4, 14, 8, 18, 0, 10]
    assert [batch.counted for batch in batches] == [16] * 4 + [12] * 4
    assert [batch.step for batch in batches] == [1] * 4 + [2] * 4


def test_without_steps_an_iteration_is_one_epoch_and_its_last_step_counts_what_is_there() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    stream = train_stream(source, steps=None, accumulate=2, chunks=2)
    epochs = [list(stream) for _ in range(2)]
    assert len(stream) == 6
    for number, epoch in enumerate(epochs):
        assert [batch.tokens_BT[0, 0].item() for batch in epoch] == [0, 10, 4, 14, 8, 18]
        assert [batch.step - 2 * number for batch in epoch] == [1, 1, 1, 1, 2, 2]
        assert [batch.micro for batch in epoch] == [0, 1, 2, 3, 0, 1]
        assert [batch.counted for batch in epoch] == [16] * 4 + [4] * 2
    resumed = train_stream(source, steps=None, accumulate=2, chunks=2)
    resumed.load_state_dict({"batches": 7})
    assert equal(list(resumed), epochs[1][1:])
    resumed.load_state_dict({"batches": 6})  # an epoch was used up: the next one follows
    assert equal(list(resumed), epochs[1])


@pytest.mark.parametrize("handed_out", [0, 1, 5, 6, 24])
def test_a_loaded_stream_goes_on_at_the_very_batch(handed_out: int) -> None:
    source = recall_lanes()
    stream, whole, resumed = (train_stream(source, chunks=2, accumulate=2, steps=6) for _ in range(3))
    for _ in itertools.islice(stream, handed_out):
        pass
    state = stream.state_dict()
    assert state == {"batches": handed_out}
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert equal(rest, list(whole)[handed_out:])
    assert equal(rest, list(stream))
    assert len(rest) == len(resumed) - handed_out


DRAWN = {"segment_len_sd": 2.0, "half_segments": 0.3, "seed": 3, "half_loss": True}


def test_half_a_loss_is_half_of_each_segment_that_a_batch_holds() -> None:
    source = training_lanes(text(200), batch_size=3, segment_len=4)
    batches = list(train_stream(source, steps=4, **DRAWN, bptt_segments=3))
    assert {len(batch.lengths) for batch in batches} == {3}
    for batch in batches:
        counts = [place >= length // 2 for length in batch.lengths for place in range(length)]
        assert torch.equal(batch.targets_BT != -100, torch.tensor([counts] * 3))
        assert batch.counted == 3 * sum(counts)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("handed_out", [0, 7, 24])
def test_drawn_segments_go_on_at_the_very_batch(handed_out: int, group: int) -> None:
    def stream() -> TrainStream:
        return train_stream(recall_lanes(), chunks=2, accumulate=2, **DRAWN, limit=2, bptt_segments=group)

    stopped, resumed = stream(), stream()
    list(itertools.islice(stopped, handed_out))
    resumed.load_state_dict(stopped.state_dict())
    rest = list(resumed)
    assert len(rest) == 24 - handed_out
    assert equal(rest, list(stream())[handed_out:])


@settings(deadline=None)
@given(tokens=st.integers(2, 70), batch_size=st.integers(1, 9), segment_len=sizes, data=st.data())
def test_windows_count_each_prediction_once_with_the_context_that_a_stride_leaves(
    tokens: int, batch_size: int, segment_len: int, data: st.DataObject
) -> None:
    source = evaluation_lanes(text(tokens), batch_size=batch_size, split="valid")
    stride = data.draw(st.integers(1, segment_len))
    ranks = data.draw(st.integers(1, batch_size))
    streams = [
        EvalStream(source=source, segment_len=segment_len, stride=stride, lanes=lanes, device=CPU)
        for lanes in split_evenly(batch_size, ranks)
    ]
    batches = [list(stream) for stream in streams]
    assert {len(rank) for rank in batches} == {len(stream) for stream in streams} == {len(batches[0])}
    predicted = []
    for same_window in zip(*batches, strict=True):
        targets = torch.cat([batch.targets_BT for batch in same_window])
        inputs = torch.cat([batch.tokens_BT for batch in same_window])
        resets = torch.cat([batch.resets_BT for batch in same_window])
        assert {batch.counted for batch in same_window} == {int((targets != -100).sum())}
        assert resets[:, 0].all()
        assert not resets[:, 1:].any()
        for row, place in (targets != -100).nonzero().tolist():
            position = int(inputs[row, place]) - row * source.lane_len
            assert targets[row, place] == inputs[row, place] + 1
            assert (inputs[row, 0], inputs[row, place]) == (
                inputs[row, place] - place,
                position + row * source.lane_len,
            )
            left = segment_len - stride + 1 + (position - segment_len) % stride
            assert place + 1 == (position + 1 if position < segment_len else left)
            predicted.append(int(targets[row, place]))
    assert sorted(predicted) == list(range(1, tokens))


@pytest.mark.gpu
def test_on_cuda_batches_are_used_on_whatever_stream_is_current_with_their_own_values() -> None:
    """Large batches and a busy device: a missing wait, or memory that is used again too soon, changes the sums."""
    device = torch.device("cuda", torch.cuda.current_device())

    def batch(number: int) -> Batch:
        tokens = torch.arange(64 * 4096).view(64, 4096) + 1000 * number
        return Batch(
            tokens,
            tokens + 1,
            tokens % 7 == 0,
            counted=tokens.numel(),
            step=number,
            micro=0,
            chunk=0,
            lengths=(tokens.shape[1],),
        )

    busy = torch.randn(4096, 4096, device=device)
    sums = []
    with torch.cuda.stream(torch.cuda.Stream(device)):
        for found in copied_ahead(map(batch, range(1, 21)), device):
            assert {tensor.device for tensor in found[:3]} == {device}
            busy = (busy @ busy).clamp(-1, 1)  # the sum below waits in the queue, while later batches travel
            sums.append(torch.stack([tensor.sum() for tensor in found[:3]]))
            del found
        last = torch.stack(sums).cpu()
    assert last.tolist() == [[int(tensor.sum()) for tensor in batch(number)[:3]] for number in range(1, 21)]
