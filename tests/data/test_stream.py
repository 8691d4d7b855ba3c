import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.laid_out import evaluation_lanes, training_lanes
from tests.data.varying import varying
from transformer_xl.data import stream
from transformer_xl.data.lanes import LaneSource, split_evenly
from transformer_xl.data.recall import Recall
from transformer_xl.data.segments import DrawnSegments, EqualSegments, Segments
from transformer_xl.data.stream import Batch, EvalStream, TrainStream, one_ahead
from transformer_xl.data_config import RecallConfig
from transformer_xl.errors import UserError

sizes = st.integers(1, 6)
shares = st.sampled_from([0.0, 0.3, 1.0])
CPU = torch.device("cpu")


def text(tokens: int) -> np.ndarray:
    return np.arange(tokens, dtype=np.uint16)


def train_stream(source: LaneSource, *, segments: Segments | None = None, **changes: object) -> TrainStream:
    arguments: dict[str, object] = {
        "segments": segments or equal_segments(source),
        "lanes": range(source.batch_size),
        "lane_chunks": 1,
        "accumulate": 1,
        "steps": 6,
        "device": CPU,
    }
    return TrainStream(source=source, **(arguments | changes))  # type: ignore[arg-type]


def equal_segments(source: LaneSource, *, segment_len: int = 4, limit: int | None = None) -> EqualSegments:
    return EqualSegments(lane_len=source.lane_len, segment_len=segment_len, limit=limit, half_loss=False)


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
    return Recall(config=config, seed=1).lanes("train", batch_size=batch_size, segment_len=4, evaluation=False)


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
    data=st.data(),
)
def test_ranks_and_chunks_read_every_lane_in_order(
    batch_size: int, segment_len: int, extra: int, accumulate: int, data: st.DataObject
) -> None:
    tokens = batch_size * segment_len + 1 + extra
    source = training_lanes(text(tokens), batch_size=batch_size, segment_len=segment_len)
    ranks = data.draw(st.integers(1, batch_size))
    chunks = data.draw(st.integers(1, batch_size // ranks))
    segments = equal_segments(source, segment_len=segment_len)
    steps = -(-2 * segments.count(0) // accumulate)  # two epochs
    streams = [
        train_stream(source, segments=segments, lanes=lanes, lane_chunks=chunks, accumulate=accumulate, steps=steps)
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


def test_an_epoch_ends_short_and_begins_anew() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    batches = list(train_stream(source, steps=4))
    assert [batch.tokens_BT[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert [batch.counted for batch in batches] == [8, 8, 4, 8]
    assert [bool(batch.resets_BT.any()) for batch in batches] == [True, False, False, True]


def test_accumulation_goes_on_in_time_across_epochs() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    batches = list(train_stream(source, steps=2, accumulate=2, lane_chunks=2))
    assert [batch.tokens_BT[0, 0].item() for batch in batches] == [0, 10, 4, 14, 8, 18, 0, 10]
    assert [batch.counted for batch in batches] == [16] * 4 + [12] * 4
    assert [batch.step for batch in batches] == [1] * 4 + [2] * 4


def test_without_steps_an_iteration_is_one_epoch_and_its_last_step_counts_what_is_there() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    stream = train_stream(source, steps=None, accumulate=2, lane_chunks=2)
    epochs = [list(stream) for _ in range(2)]
    assert len(stream) == 6
    for number, epoch in enumerate(epochs):
        assert [batch.tokens_BT[0, 0].item() for batch in epoch] == [0, 10, 4, 14, 8, 18]
        assert [batch.step - 2 * number for batch in epoch] == [1, 1, 1, 1, 2, 2]
        assert [batch.micro for batch in epoch] == [0, 1, 2, 3, 0, 1]
        assert [batch.counted for batch in epoch] == [16] * 4 + [4] * 2
    resumed = train_stream(source, steps=None, accumulate=2, lane_chunks=2)
    resumed.load_state_dict({"format": 1, "batches": 7})
    assert equal(list(resumed), epochs[1][1:])
    resumed.load_state_dict({"format": 1, "batches": 6})  # an epoch was used up: the next one follows
    assert equal(list(resumed), epochs[1])


def test_a_limit_makes_epochs_shorter() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    stream = train_stream(source, steps=3, segments=equal_segments(source, limit=2))
    assert [batch.tokens_BT[0, 0].item() for batch in stream] == [0, 4, 0]


@pytest.mark.parametrize("handed_out", [0, 1, 5, 6, 24])
def test_a_loaded_stream_goes_on_at_the_very_batch(handed_out: int) -> None:
    source = recall_lanes()
    stream, whole, resumed = (train_stream(source, lane_chunks=2, accumulate=2, steps=6) for _ in range(3))
    for _ in itertools.islice(stream, handed_out):
        pass
    state = stream.state_dict()
    assert state == {"format": 1, "batches": handed_out}
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert equal(rest, list(whole)[handed_out:])
    assert equal(rest, list(stream))
    assert len(rest) == len(resumed) - handed_out


@pytest.fixture
def reading_ahead(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Let streams read one batch ahead, as they do for CUDA; the list holds those that travel or have arrived."""
    started: list[Batch] = []

    def copied_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
        return one_ahead(batches, start=lambda batch: started.append(batch) or batch, finish=lambda batch: None)

    monkeypatch.setattr(stream, "copied_ahead", copied_ahead)
    return started


@pytest.mark.parametrize("handed_out", [0, 1, 5, 23, 24])
def test_what_is_only_read_ahead_is_not_handed_out(reading_ahead: list[Batch], handed_out: int) -> None:
    source = recall_lanes()
    stopped, resumed = (train_stream(source, lane_chunks=2, accumulate=2, steps=6) for _ in range(2))
    whole = list(train_stream(source, lane_chunks=2, accumulate=2, steps=6))
    reading_ahead.clear()
    batches = iter(stopped)
    for _ in range(handed_out):
        next(batches)
    assert len(reading_ahead) == (min(handed_out + 1, 24) if handed_out else 0)
    state = stopped.state_dict()
    assert state == {"format": 1, "batches": handed_out}
    resumed.load_state_dict(state)
    assert equal(list(resumed), whole[handed_out:])
    assert equal(list(batches), whole[handed_out:])  # the interrupted one itself goes on, without a gap


def test_an_interrupted_stream_goes_on_in_a_new_iteration(reading_ahead: list[Batch]) -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    interrupted = train_stream(source, steps=5)
    first = list(itertools.islice(interrupted, 2))
    assert [batch.step for batch in reading_ahead] == [1, 2, 3]
    assert [batch.step for batch in [*first, *interrupted]] == [1, 2, 3, 4, 5]


def test_an_evaluation_that_reads_ahead_has_the_same_windows(reading_ahead: list[Batch]) -> None:
    source = evaluation_lanes(text(30), batch_size=3, split="valid")
    windows = EvalStream(source=source, segment_len=4, stride=2, lanes=range(3), device=CPU)
    assert [batch.step for batch in itertools.islice(windows, 2)] == [1, 2]
    assert [batch.step for batch in reading_ahead] == [1, 2, 3]
    assert all(batch.resets_BT[:, 0].all() for batch in reading_ahead)
    assert [batch.step for batch in windows] == list(range(1, len(windows) + 1))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"format": 2, "batches": 0},
        {"format": 1, "batches": -1},
        {"format": 1, "batches": 7},
        {"format": 1, "batches": True},
    ],
)
def test_a_position_outside_the_run_is_refused(state: dict[str, object]) -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    with pytest.raises(UserError, match="between 0 and 6"):
        train_stream(source).load_state_dict(state)


def test_more_chunks_than_lanes_are_refused_by_name() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    with pytest.raises(UserError, match=r"data\.lane_chunks is 2, and must be at most 1"):
        train_stream(source, lanes=range(1, 2), lane_chunks=2)


def test_batches_have_the_types_that_a_model_takes() -> None:
    source = training_lanes(text(21), batch_size=2, segment_len=4)
    batch = next(iter(train_stream(source)))
    assert (batch.tokens_BT.dtype, batch.targets_BT.dtype, batch.resets_BT.dtype) == (
        torch.int64,
        torch.int64,
        torch.bool,
    )


@settings(deadline=None)
@given(data=st.data())
def test_drawn_segments_and_half_losses_on_any_ranks_chunks_and_accumulation(data: st.DataObject) -> None:
    batch_size = data.draw(st.integers(1, 6))
    is_recall = data.draw(st.booleans())
    if is_recall:
        source = recall_lanes(batch_size=batch_size, train_tokens=batch_size * data.draw(st.integers(6, 50)))
    else:
        tokens = batch_size * data.draw(st.integers(1, 50)) + 1
        source = training_lanes(text(tokens), batch_size=batch_size, segment_len=1)
    half_loss = data.draw(st.booleans())
    lengths = varying(segment_len=data.draw(sizes), sd=data.draw(st.floats(0, 3)), half_share=data.draw(shares))
    ranks = data.draw(st.integers(1, batch_size))
    chunks, accumulate = data.draw(st.integers(1, batch_size // ranks)), data.draw(st.integers(1, 3))

    def segments() -> Segments:
        return DrawnSegments(lane_len=source.lane_len, lengths=lengths, seed=7, limit=None, half_loss=half_loss)

    # as separate processes: each draws for itself
    streams = [
        train_stream(source, segments=segments(), lanes=lanes, lane_chunks=chunks, accumulate=accumulate, steps=9)
        for lanes in split_evenly(batch_size, ranks)
    ]
    batches = [list(stream) for stream in streams]
    turns: list[list[Batch]] = []  # all lanes of a segment
    for step in range(1, 10):
        mine = [[batch for batch in rank if batch.step == step] for rank in batches]
        counted = sum(int((batch.targets_BT != -100).sum()) for rank in mine for batch in rank)
        assert {batch.counted for rank in mine for batch in rank} == {counted}
        turns += [[b for rank in mine for b in rank[a * chunks : (a + 1) * chunks]] for a in range(accumulate)]
    epoch, start = 0, 0
    for turn in turns:
        tokens_BT, targets_BT = torch.cat([b.tokens_BT for b in turn]), torch.cat([b.targets_BT for b in turn])
        stop = start + tokens_BT.shape[1]
        there = source.read(epoch=epoch, lanes=range(batch_size), start=start, stop=stop)
        expected = torch.from_numpy(there.targets_BT)
        if half_loss:
            expected[:, : (stop - start) // 2] = -100
        assert tokens_BT.tolist() == there.tokens_BT.tolist()
        assert targets_BT.tolist() == expected.tolist()
        assert torch.cat([b.resets_BT for b in turn]).tolist() == there.resets_BT.tolist()
        epoch, start = (epoch + 1, 0) if stop == source.lane_len else (epoch, stop)


@settings(deadline=None)
@given(handed_out=st.integers(0, 24), half_loss=st.booleans(), limit=st.sampled_from([None, 1, 2]))
def test_drawn_segments_go_on_at_the_very_batch(handed_out: int, half_loss: bool, limit: int | None) -> None:
    source = recall_lanes()
    lengths = varying(segment_len=4, sd=2, half_share=0.3)

    def stream() -> TrainStream:
        segments = DrawnSegments(lane_len=source.lane_len, lengths=lengths, seed=3, limit=limit, half_loss=half_loss)
        return train_stream(source, segments=segments, lane_chunks=2, accumulate=2)

    stopped, resumed = stream(), stream()
    for _ in itertools.islice(stopped, handed_out):
        pass
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


def test_windows_a_segment_apart_read_the_segments() -> None:
    source = evaluation_lanes(text(30), batch_size=3, split="valid")
    windows = list(EvalStream(source=source, segment_len=4, stride=4, lanes=range(3), device=CPU))
    segments = list(EvalStream(source=source, segment_len=4, stride=None, lanes=range(3), device=CPU))
    for batch in segments:
        batch.resets_BT[:, 0] = True
    assert [batch.tokens_BT.shape[1] for batch in windows] == [4, 4, 2]
    assert equal(windows, segments)
