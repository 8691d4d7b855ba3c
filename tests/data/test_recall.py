import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.lanes import NOT_COUNTED
from transformer_xl.data.recall import Task, TaskLanes
from transformer_xl.data_config import MqarConfig, RecallConfig, TaskConfig
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
APART = replace(CONFIG, distance=20)
OF_ALL = {name: getattr(CONFIG, name) for name in TaskConfig.model_fields}
MQAR = MqarConfig(**OF_ALL | {"kind": "mqar"}, vocab_size=20, n_pairs=3, example_len=17, power_a=0.01)
configs = pytest.mark.parametrize("config", [CONFIG, APART, MQAR], ids=["recall", "apart", "mqar"])


def lanes(split: str = "train", *, seed: int = 1, evaluation: bool = False, config: TaskConfig = CONFIG) -> TaskLanes:
    return Task(config=config, seed=seed).lanes(
        split, batch_size=config.batch_size, segment_len=config.segment_len, evaluation=evaluation
    )


def whole(source: TaskLanes, *, epoch: int = 0) -> np.ndarray:
    return source.read(epoch=epoch, lanes=range(source.batch_size), start=0, stop=source.lane_len).tokens_BT


@pytest.mark.parametrize(("config", "distance", "share"), [(CONFIG, 6, 1 / 2), (APART, 20, 6 / 26)])
def test_every_counted_target_is_what_the_lane_showed_a_distance_ago(
    config: RecallConfig, distance: int, share: float
) -> None:
    source = lanes(config=config)
    segment = source.read(epoch=2, lanes=range(4), start=0, stop=source.lane_len)
    rows, places = np.nonzero(segment.targets_BT != NOT_COUNTED)
    assert len(rows) > 4 * (100 - distance) * share * 0.8
    # The target of place t stands at t + 1, its original so far before that, and within the lane.
    assert (places + 1 - distance).min() >= 0
    np.testing.assert_array_equal(segment.targets_BT[rows, places], segment.tokens_BT[rows, places + 1 - distance])


def test_fillers_between_block_and_copy_are_a_symbol_of_their_own() -> None:
    task, source = Task(config=APART, seed=1), lanes(config=APART)
    assert task.vocabulary.size == 9
    segment = source.read(epoch=0, lanes=range(4), start=0, stop=100)
    assert (segment.tokens_BT == 8).mean() == pytest.approx(14 / 26, abs=0.05)
    assert segment.targets_BT.max() < 8
    assert len({task.fingerprint for task in (task, Task(CONFIG, 1), Task(replace(APART, distance=21), 1))}) == 3
    assert Task(replace(CONFIG, distance=6), 1).fingerprint == Task(CONFIG, 1).fingerprint
    with pytest.raises(UserError, match=r"distance is 5, and must be at least 6, the data\.block_len"):
        replace(CONFIG, distance=5)


def test_each_key_is_asked_for_once_and_its_value_is_the_answer() -> None:
    source = lanes(config=MQAR)
    segment = source.read(epoch=1, lanes=range(4), start=0, stop=source.lane_len)
    examples = 0
    for tokens, targets, resets in zip(*segment, strict=True):
        begins = np.flatnonzero(resets)
        assert begins[0] == 0
        assert set(np.diff(begins[1:])) == {17}
        first = 0 if begins[1] == 17 else 1  # of the one in which the lane starts nothing is counted
        assert (targets[: begins[first]] == NOT_COUNTED).all()
        for begin in begins[first:-1]:
            example, asked = tokens[begin : begin + 17], targets[begin : begin + 17]
            keys, values = example[0:6:2], example[1:6:2]
            assert len({*keys, *values}) == 6
            assert 1 <= keys.min() <= keys.max() < 10 <= values.min() <= values.max() < 20
            (places,) = np.nonzero(asked != NOT_COUNTED)
            assert dict(zip(example[places], asked[places], strict=True)) == dict(zip(keys, values, strict=True))
            assert ((places - 6) % 2 == 0).all()
            shown = {*range(6), *places, *(places + 1)}
            assert all(example[place] == 0 for place in range(17) if place not in shown)
            examples += 1
    assert examples >= 16


def test_gaps_follow_a_power_law_and_all_pairs_are_drawn() -> None:
    long = {"n_pairs": 1, "example_len": 34, "train_tokens": 4 * 34 * 2000}
    counts = {}
    for power_a in (0.01, 1.0):
        source = lanes(config=replace(MQAR, power_a=power_a, **long))
        segment = source.read(epoch=0, lanes=range(4), start=0, stop=source.lane_len)
        rows, places = np.nonzero(segment.targets_BT != NOT_COUNTED)
        begins = np.maximum.accumulate(np.where(segment.resets_BT, np.arange(source.lane_len), 0), axis=1)
        counts[power_a] = np.bincount((places - begins[rows, places] - 2) // 2, minlength=16) / len(rows)
        if power_a == 1:
            pairs = np.unique(np.stack([segment.tokens_BT[rows, places], segment.targets_BT[rows, places]]), axis=1)
            assert pairs.shape == (2, 9 * 10)
    expected = np.arange(1, 17) ** -0.99
    np.testing.assert_allclose(counts[0.01], expected / expected.sum(), atol=0.02)
    np.testing.assert_allclose(counts[1.0], 1 / 16, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"example_len": 11}, r"example_len is 11, and must be at least 12, 4 \* data\.n_pairs"),
        ({"vocab_size": 7}, r"vocab_size is 7, and must be at least 8, 2 \* data\.n_pairs \+ 2"),
    ],
)
def test_examples_that_cannot_be_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        replace(MQAR, **changes)


def test_half_the_targets_count_in_runs_of_a_block() -> None:
    source = lanes()
    counted = source.read(epoch=0, lanes=range(4), start=0, stop=100).targets_BT != NOT_COUNTED
    for row in counted[:, 24:96]:
        assert row.sum() == 72 / 2
        borders = np.flatnonzero(np.diff(row.astype(int)))
        assert set(np.diff(borders)) == {CONFIG.block_len}


@configs
@given(st.data())
def test_any_range_of_any_lanes_is_part_of_the_whole(config: TaskConfig, data: st.DataObject) -> None:
    evaluation = data.draw(st.booleans())
    epoch = data.draw(st.integers(0, 3))
    source = lanes("test" if evaluation else "train", evaluation=evaluation, config=config)
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


@configs
def test_training_is_fresh_for_each_seed_epoch_and_lane(config: TaskConfig) -> None:
    first = whole(lanes(config=config))
    np.testing.assert_array_equal(first, whole(lanes(config=config)))
    seeds = [whole(lanes(seed=seed, config=config)) for seed in (2, -1)]
    for other in (whole(lanes(config=config), epoch=1), *seeds, np.roll(first, 1, axis=0)):
        assert alike(first, other) < 0.4


def alike(some: np.ndarray, other: np.ndarray) -> float:
    """How many symbols are the same, of those that are no fillers of either task."""
    drawn = (some != 0) & (some != 8) | (other != 0) & (other != 8)
    return float((some == other)[drawn].mean())


@configs
def test_what_is_held_out_hangs_on_the_split_alone(config: TaskConfig) -> None:
    valid = whole(lanes("valid", evaluation=True, config=config))
    np.testing.assert_array_equal(valid, whole(lanes("valid", evaluation=True, seed=2, config=config), epoch=5))
    assert alike(valid, whole(lanes("test", evaluation=True, config=config))) < 0.4
    assert alike(valid, whole(lanes(config=config))[:, :60]) < 0.4


def test_the_task_looks_like_a_corpus() -> None:
    recall = Task(config=CONFIG, seed=1)
    assert recall.name == "recall"
    assert recall.vocabulary.size == 8
    assert recall.counts() == {"train": 400, "valid": 240, "test": 240}
    assert recall.fingerprint == Task(config=CONFIG, seed=2).fingerprint
    longer = replace(CONFIG, eval_tokens=480)
    assert recall.fingerprint != Task(config=longer, seed=1).fingerprint
    assert lanes().predictions == 400


def test_lanes_too_short_for_a_period_or_a_segment_are_refused_by_name() -> None:
    recall = Task(config=CONFIG, seed=1)
    with pytest.raises(UserError, match=r"data\.eval_tokens is 240, and must be at least 252"):
        recall.lanes("valid", batch_size=21, segment_len=5, evaluation=True)
    with pytest.raises(UserError, match=r"data\.train_tokens is 400, and must be at least 404"):
        recall.lanes("train", batch_size=4, segment_len=101, evaluation=False)
    assert recall.lanes("valid", batch_size=20, segment_len=5, evaluation=True).lane_len == 12
