"""Lanes of a text, in the order of the file and in shuffled documents."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.laid_out import evaluation_lanes, training_lanes
from transformer_xl.data.lanes import NOT_COUNTED, split_evenly
from transformer_xl.errors import UserError

DOCUMENTS = [[10, 11, 12], [20], [30, 31], [40, 41, 42, 43], [50, 51]]
TOKENS = np.concatenate(DOCUMENTS).astype(np.uint16)
STARTS = np.array([0, 3, 4, 6, 10], np.int64)


@given(tokens=st.integers(2, 120), batch_size=st.integers(1, 9))
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
    assert segment.resets_BT.tolist() == [[True] + (length - 1) * [False]] * batch_size
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
    assert (lanes.predictions, lanes.left_over) == (tokens - 1, 0)


@given(st.data())
@settings(deadline=None)
def test_any_range_of_any_lanes_is_part_of_the_whole(data: st.DataObject) -> None:
    batch_size = data.draw(st.integers(1, 9))
    seed = data.draw(st.sampled_from([None, 1, 2]))
    if data.draw(st.booleans()):
        lanes = evaluation_lanes(TOKENS, batch_size=batch_size, split="valid", starts=STARTS)
    else:
        lanes = training_lanes(TOKENS, batch_size=batch_size, segment_len=1, starts=STARTS, shuffle_seed=seed)
    start = data.draw(st.integers(0, lanes.lane_len - 1))
    stop = data.draw(st.integers(start + 1, lanes.lane_len))
    first = data.draw(st.integers(0, batch_size - 1))
    some = range(first, data.draw(st.integers(first + 1, batch_size)))
    whole = lanes.read(epoch=1, lanes=range(batch_size), start=0, stop=lanes.lane_len)
    part = lanes.read(epoch=1, lanes=some, start=start, stop=stop)
    for all_values, values in zip(whole, part, strict=True):
        np.testing.assert_array_equal(values, all_values[some.start : some.stop, start:stop])
    counted = int((whole.targets_BT[:, start:stop] != NOT_COUNTED).sum())
    assert lanes.counted(epoch=1, start=start, stop=stop) == counted


def documents_read(epoch: int, *, seed: int, starts: np.ndarray = STARTS) -> list[list[int]]:
    """The documents of an epoch in their order; a token more than lanes hold, so that the last is whole."""
    lanes = training_lanes(TOKENS, batch_size=1, segment_len=1, starts=starts, shuffle_seed=seed)
    tokens, targets, resets = lanes.read(epoch=epoch, lanes=range(1), start=0, stop=lanes.lane_len)
    whole = [*tokens[0].tolist(), int(targets[0, -1])]
    edges = [*np.flatnonzero(resets[0]).tolist(), len(whole)]
    found = [whole[start:stop] for start, stop in pairwise(edges)]
    if whole[-1] in (20,):  # its border lies behind the last input
        found[-1:] = [found[-1][:-1], [whole[-1]]]
    return found


def test_every_epoch_reads_each_document_whole_and_once_in_another_order() -> None:
    epochs = [documents_read(epoch, seed=1) for epoch in range(6)]
    assert all(sorted(epoch) == DOCUMENTS for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) > 3
    assert documents_read(3, seed=1) == epochs[3] != documents_read(3, seed=2)
    assert sorted(documents_read(0, seed=0, starts=STARTS[1:])) == DOCUMENTS  # what stands before the first is one


def test_documents_reset_memory_and_padding_does_not() -> None:
    for seed in (None, 4):
        lanes = training_lanes(TOKENS, batch_size=2, segment_len=5, starts=STARTS, shuffle_seed=seed)
        whole = lanes.read(epoch=1, lanes=range(2), start=0, stop=5)
        firsts = {document[0] for document in DOCUMENTS}
        expected = [[place == 0 or token in firsts for place, token in enumerate(row)] for row in whole.tokens_BT]
        assert whole.resets_BT.tolist() == expected
    padded = evaluation_lanes(TOKENS, batch_size=5, split="test", starts=STARTS)
    assert padded.read(epoch=0, lanes=range(4, 5), start=0, stop=3).resets_BT.tolist() == [[True, False, False]]


def test_a_text_of_one_token_too_few_is_refused_by_name() -> None:
    text = np.zeros(60, np.uint8)
    assert training_lanes(text[:41], batch_size=8, segment_len=5).lane_len == 5
    with pytest.raises(UserError) as refused:
        training_lanes(text[:40], batch_size=8, segment_len=5)
    for words in ("data.batch_size is 8", "data.segment_len is 5", "41", "has 40", "smaller"):
        assert words in str(refused.value)
    with pytest.raises(UserError, match=r"the test split has 1 token.* at least 2"):
        evaluation_lanes(text[:1], batch_size=4, split="test")


@given(count=st.integers(0, 200), parts=st.integers(1, 30))
def test_shares_are_contiguous_and_even(count: int, parts: int) -> None:
    shares = split_evenly(count, parts)
    assert [number for share in shares for number in share] == list(range(count))
    lengths = [len(share) for share in shares]
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
