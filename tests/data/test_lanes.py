import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.laid_out import evaluation_lanes, training_lanes
from transformer_xl.data.lanes import NOT_COUNTED, split_evenly
from transformer_xl.errors import UserError

sizes = st.integers(1, 9)


@given(tokens=st.integers(2, 120), batch_size=sizes)
def test_training_lays_lanes_out_end_to_end(tokens: int, batch_size: int) -> None:
    if tokens < batch_size + 1:
        return
    text = np.arange(tokens, dtype=np.uint8)
    lanes = training_lanes(text, batch_size=batch_size, segment_len=1)
    length = (tokens - 1) // batch_size
    segment = lanes.read(epoch=3, lanes=range(batch_size), start=0, stop=length)
    assert lanes.lane_len == length
    np.testing.assert_array_equal(segment.tokens_BT.reshape(-1), text[: batch_size * length])
    np.testing.assert_array_equal(segment.targets_BT.reshape(-1), text[1 : batch_size * length + 1])
    assert lanes.left_over == tokens - 1 - batch_size * length < batch_size
    assert lanes.predictions == batch_size * length == lanes.counted(epoch=0, start=0, stop=length)


@given(tokens=st.integers(2, 120), batch_size=st.integers(1, 150))
def test_evaluation_counts_every_prediction_once(tokens: int, batch_size: int) -> None:
    text = np.arange(tokens, dtype=np.uint8)
    lanes = evaluation_lanes(text, batch_size=batch_size, split="valid")
    segment = lanes.read(epoch=0, lanes=range(batch_size), start=0, stop=lanes.lane_len)
    counted = segment.targets_BT != NOT_COUNTED
    assert lanes.lane_len == -(-(tokens - 1) // batch_size)
    assert segment.targets_BT[counted].tolist() == list(range(1, tokens))
    assert segment.tokens_BT[counted].tolist() == list(range(tokens - 1))
    assert lanes.predictions == tokens - 1
    assert lanes.left_over == 0


@given(st.data())
def test_any_range_of_any_lanes_is_part_of_the_whole(data: st.DataObject) -> None:
    text = np.random.default_rng(0).integers(0, 60_000, data.draw(st.integers(10, 90)), dtype=np.uint16)
    batch_size = data.draw(st.integers(1, 9))
    if data.draw(st.booleans()):
        lanes = evaluation_lanes(text, batch_size=batch_size, split="valid")
    else:
        lanes = training_lanes(text, batch_size=batch_size, segment_len=1)
    start = data.draw(st.integers(0, lanes.lane_len - 1))
    stop = data.draw(st.integers(start + 1, lanes.lane_len))
    first = data.draw(st.integers(0, batch_size - 1))
    some = range(first, data.draw(st.integers(first + 1, batch_size)))
    whole = lanes.read(epoch=0, lanes=range(batch_size), start=0, stop=lanes.lane_len)
    part = lanes.read(epoch=1, lanes=some, start=start, stop=stop)
    for all_values, values in zip(whole, part, strict=True):
        np.testing.assert_array_equal(values, all_values[some.start : some.stop, start:stop])
        assert values.flags.c_contiguous
    assert [values.dtype for values in part] == [np.int64, np.int64, np.bool_]
    counted = int((whole.targets_BT[:, start:stop] != NOT_COUNTED).sum())
    assert lanes.counted(epoch=0, start=start, stop=stop) == counted


def test_only_the_first_position_of_each_lane_is_reset() -> None:
    lanes = training_lanes(np.arange(21, dtype=np.uint8), batch_size=2, segment_len=4)
    for epoch in (0, 7):
        resets = lanes.read(epoch=epoch, lanes=range(2), start=0, stop=10).resets_BT
        assert resets.tolist() == [[True] + 9 * [False]] * 2
    assert not lanes.read(epoch=1, lanes=range(2), start=4, stop=8).resets_BT.any()


def test_a_text_of_one_token_too_few_is_refused_by_name() -> None:
    text = np.zeros(60, np.uint8)
    assert training_lanes(text[:41], batch_size=8, segment_len=5).lane_len == 5
    with pytest.raises(UserError) as refused:
        training_lanes(text[:40], batch_size=8, segment_len=5)
    for words in ("data.batch_size is 8", "data.segment_len is 5", "41", "has 40", "batch_size=7", "segment_len=4"):
        assert words in str(refused.value)


@given(tokens=st.integers(0, 60), batch_size=sizes, segment_len=sizes)
def test_what_a_refusal_offers_does_fit(tokens: int, batch_size: int, segment_len: int) -> None:
    text = np.zeros(tokens, np.uint8)
    if tokens >= batch_size * segment_len + 1:
        training_lanes(text, batch_size=batch_size, segment_len=segment_len)
        return
    with pytest.raises(UserError) as refused:
        training_lanes(text, batch_size=batch_size, segment_len=segment_len)
    offers = [word.rstrip(":").split("=") for word in str(refused.value).split() if "=" in word]
    for name, value in offers:
        fitting = {"batch_size": batch_size, "segment_len": segment_len} | {name.removeprefix("data."): int(value)}
        training_lanes(text, **fitting)
    assert len(offers) == (tokens > segment_len) + (tokens > batch_size)


@pytest.mark.parametrize("tokens", [0, 1])
def test_an_evaluation_without_a_prediction_is_refused(tokens: int) -> None:
    with pytest.raises(UserError, match=f"the test split has {tokens} token.* at least 2"):
        evaluation_lanes(np.zeros(tokens, np.uint8), batch_size=4, split="test")


@given(count=st.integers(0, 200), parts=st.integers(1, 30))
def test_shares_are_contiguous_and_even(count: int, parts: int) -> None:
    shares = split_evenly(count, parts)
    assert [number for share in shares for number in share] == list(range(count))
    lengths = [len(share) for share in shares]
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


def test_sixty_lanes_on_eight_processes() -> None:
    assert [len(share) for share in split_evenly(60, 8)] == [8, 8, 8, 8, 7, 7, 7, 7]
