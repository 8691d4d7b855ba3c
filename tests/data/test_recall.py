import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.lanes import NOT_COUNTED
from transformer_xl.data.recall import Recall, RecallLanes
from transformer_xl.data_config import RecallConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import replace

CONFIG = RecallConfig(
    kind="recall",
    batch_size=4,
    segment_len=5,
    segment_len_sd=0.0,
    half_segments=0.0,
    loss="full",
    lane_chunks=1,
    n_symbols=8,
    block_len=6,
    train_tokens=4 * 100,
    eval_tokens=4 * 60,
)


def lanes(
    split: str = "train", *, seed: int = 1, evaluation: bool = False, config: RecallConfig = CONFIG
) -> RecallLanes:
    return Recall(config=config, seed=seed).lanes(
        split, batch_size=config.batch_size, segment_len=config.segment_len, evaluation=evaluation
    )


def whole(source: RecallLanes, *, epoch: int = 0) -> np.ndarray:
    return source.read(epoch=epoch, lanes=range(source.batch_size), start=0, stop=source.lane_len).tokens_BT


def test_every_counted_target_is_what_the_lane_showed_a_block_ago() -> None:
    source = lanes()
    segment = source.read(epoch=2, lanes=range(4), start=0, stop=source.lane_len)
    rows, places = np.nonzero(segment.targets_BT != NOT_COUNTED)
    assert len(rows) > 4 * 100 * 0.4
    # The target of place t stands at t + 1, its original a block before that, and within the lane.
    assert (places + 1 - CONFIG.block_len).min() >= 0
    np.testing.assert_array_equal(
        segment.targets_BT[rows, places], segment.tokens_BT[rows, places + 1 - CONFIG.block_len]
    )


def test_half_the_targets_count_in_runs_of_a_block() -> None:
    source = lanes()
    counted = source.read(epoch=0, lanes=range(4), start=0, stop=100).targets_BT != NOT_COUNTED
    for row in counted[:, 24:96]:
        assert row.sum() == 72 / 2
        borders = np.flatnonzero(np.diff(row.astype(int)))
        assert set(np.diff(borders)) == {CONFIG.block_len}


@given(st.data())
def test_any_range_of_any_lanes_is_part_of_the_whole(data: st.DataObject) -> None:
    evaluation = data.draw(st.booleans())
    epoch = data.draw(st.integers(0, 3))
    source = lanes("test" if evaluation else "train", evaluation=evaluation)
    start = data.draw(st.integers(0, source.lane_len - 1))
    stop = data.draw(st.integers(start + 1, source.lane_len))
    first = data.draw(st.integers(0, 3))
    some = range(first, data.draw(st.integers(first + 1, 4)))
    everything = source.read(epoch=epoch, lanes=range(4), start=0, stop=source.lane_len)
    part = source.read(epoch=epoch, lanes=some, start=start, stop=stop)
    for all_values, values in zip(everything, part, strict=True):
        np.testing.assert_array_equal(values, all_values[some.start : some.stop, start:stop])
    counted = int((everything.targets_BT[:, start:stop] != NOT_COUNTED).sum())
    assert source.counted(epoch=epoch, start=start, stop=stop) == counted


def test_training_is_fresh_for_each_seed_epoch_and_lane() -> None:
    first = whole(lanes())
    np.testing.assert_array_equal(first, whole(lanes()))
    for other in (whole(lanes(), epoch=1), whole(lanes(seed=2)), whole(lanes(seed=-1)), np.roll(first, 1, axis=0)):
        assert (first == other).mean() < 0.4


def test_held_out_blocks_hang_on_the_split_alone() -> None:
    valid = whole(lanes("valid", evaluation=True))
    np.testing.assert_array_equal(valid, whole(lanes("valid", evaluation=True, seed=2), epoch=5))
    assert (valid == whole(lanes("test", evaluation=True))).mean() < 0.4
    assert (valid == whole(lanes())[:, :60]).mean() < 0.4


def test_the_task_looks_like_a_corpus() -> None:
    recall = Recall(config=CONFIG, seed=1)
    assert recall.name == "recall"
    assert recall.vocabulary.size == 8
    assert recall.counts() == {"train": 400, "valid": 240, "test": 240}
    assert recall.fingerprint == Recall(config=CONFIG, seed=2).fingerprint
    longer = replace(CONFIG, eval_tokens=480)
    assert recall.fingerprint != Recall(config=longer, seed=1).fingerprint
    assert lanes().predictions == 400


def test_lanes_too_short_for_a_period_or_a_segment_are_refused_by_name() -> None:
    recall = Recall(config=CONFIG, seed=1)
    with pytest.raises(UserError, match=r"data\.eval_tokens is 240, and must be at least 252"):
        recall.lanes("valid", batch_size=21, segment_len=5, evaluation=True)
    with pytest.raises(UserError, match=r"data\.train_tokens is 400, and must be at least 404"):
        recall.lanes("train", batch_size=4, segment_len=101, evaluation=False)
    assert recall.lanes("valid", batch_size=20, segment_len=5, evaluation=True).lane_len == 12
