"""A run that is stopped at any moment, in any way, and goes on is the run that was never stopped: to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.oracles.runs_support import STATUSES, Forks, Stop, assert_same_run, step_of, summary_of, values_of

Whole = Callable[..., Path]
SLOW = pytest.mark.slow
DROPOUT = ["model.dropout=0.2", "model.dropatt=0.1"]

IN_PARTS = [
    *DROPOUT,
    "data.lane_chunks=2",
    "trainer.accumulate_grad_batches=2",
    "trainer.max_steps=24",
    "trainer.limit_train_batches=17",
    "trainer.val_check_interval=6",
    "callbacks.checkpoint.every_n_train_steps=4",
    "trainer.log_every_n_steps=3",
]
"""A step is four batches; an epoch of 17 segments ends within a step; the log is written where no checkpoint is."""

WITH_EVERYTHING = [
    *DROPOUT,
    "scheduler=plateau",
    "scheduler.factor=0.7",
    "callbacks.weight_average.start_step=5",
    "callbacks.weight_average.decay=0.9",
    "callbacks.sample.n_tokens=3",
    "data.segment_len_sd=2.0",
    "data.half_segments=0.2",
    "data.documents=blank_line",
    "data.order=shuffled",
    "trainer.max_steps=30",
    "trainer.limit_train_batches=23",
    "trainer.val_check_interval=5",
    "trainer.num_sanity_val_steps=1",
    "callbacks.checkpoint.every_n_train_steps=3",
    "trainer.log_every_n_steps=4",
]
"""All that has a state of its own: a schedule, an average, drawn lengths, shuffled documents, memory's borders."""

RECURRENT = ["trainer.max_steps=12", "callbacks.checkpoint.every_n_train_steps=2", "optimizer=sgd", "model=lstm"]


def go_on_until_the_end(
    forks: Forks, settings: Sequence[str], folder: Path, stops: Sequence[Stop], *, torn: bool = False
) -> Path:
    """Run with one stop in each life, all of which must happen, and then to the end."""
    command = [*settings, "hydra.run.dir=run"]
    for stop in stops:
        result = forks.run("train", command, folder, stops=[stop])
        assert result.status == (1 if stop.how == "raise" else STATUSES[stop.how]), result.printed
        log = folder / "run" / "metrics.jsonl"
        if torn and log.exists():
            with log.open("a") as file:
                file.write('{"step": 3, "tokens": 12, "na')
        if (folder / "run" / "config.yaml").exists():
            command = ["resume=run"]
    result = forks.run("train", command, folder)
    assert result.status == 0, result.printed
    return folder / "run"


def drawn(seed: int, count: int, *, batches: int, hows: Sequence[str] = ("SIGKILL",)) -> list[Stop]:
    """Draw moments of one life each, early enough for each to come."""
    draw = random.Random(seed)
    share = batches // (count + 1)
    moments = {"train_batch": share, "optimizer_step": share // 4, "validation_batch": 5, "save": 1, "replace": 2}
    stops = []
    for _ in range(count):
        moment = draw.choice(list(moments))
        stops.append(Stop(moment, draw.randint(1, moments[moment]), draw.choice(hows)))
    return stops


def without_attention(base: list[str]) -> list[str]:
    unknown = ("model.n_head", "model.d_head", "model.d_inner", "model.mem_len", "model")
    return [argument for argument in base if argument.partition("=")[0] not in unknown]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=SLOW) for seed in range(2, 10))])
def test_kills_in_a_row_at_drawn_moments(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, seed: int
) -> None:
    stops = drawn(seed, 2, batches=96)
    run = go_on_until_the_end(forks, [*base, *IN_PARTS], tmp_path, stops, torn=True)
    assert_same_run(run, whole(*IN_PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
def test_kills_of_a_run_with_all_that_has_a_state(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, seed: int
) -> None:
    stops = drawn(seed, 2, batches=30)
    run = go_on_until_the_end(forks, [*base, *WITH_EVERYTHING], tmp_path, stops)
    assert_same_run(run, whole(*WITH_EVERYTHING))
    samples = [
        {path.name: path.read_text() for path in folder.glob("samples/*")} for folder in (run, whole(*WITH_EVERYTHING))
    ]
    assert samples[0] == samples[1]
    assert samples[0]


@pytest.mark.slow
def test_kills_of_a_run_with_gradients_through_several_segments(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path
) -> None:
    settings = [*IN_PARTS, "data.bptt_segments=3"]
    run = go_on_until_the_end(forks, [*base, *settings], tmp_path, drawn(1, 2, batches=96), torn=True)
    assert_same_run(run, whole(*settings))


@pytest.mark.slow
def test_kills_of_a_recurrent_network(forks: Forks, base: list[str], tmp_path: Path) -> None:
    settings = [*without_attention(base), *RECURRENT]
    assert forks.run("train", [*settings, "hydra.run.dir=whole"], tmp_path).status == 0
    run = go_on_until_the_end(forks, settings, tmp_path, [Stop("optimizer_step", 5), Stop("train_batch", 4)])
    assert_same_run(run, tmp_path / "whole")


def test_killed_while_a_checkpoint_is_written_at_the_last_step_and_in_the_test(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path
) -> None:
    stops = [Stop("save", 2), Stop("replace", 3), Stop("optimizer_step", 15), Stop("test_batch", 1)]
    run = go_on_until_the_end(forks, [*base, *IN_PARTS], tmp_path, stops)
    assert_same_run(run, whole(*IN_PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 7))
def test_killed_while_the_folders_files_are_written(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, number: int
) -> None:
    """Before the first step, and at the first checkpoint: the run starts over, or goes on, in its folder."""
    run = go_on_until_the_end(forks, [*base, *IN_PARTS], tmp_path, [Stop("replace", number)])
    assert_same_run(run, whole(*IN_PARTS))


@pytest.mark.parametrize("how", ["SIGTERM", pytest.param("SIGINT", marks=SLOW), pytest.param("SIGUSR1", marks=SLOW)])
@pytest.mark.parametrize(
    ("moment", "number", "step"), [("train_batch", 30, 8), pytest.param("validation_batch", 2, 6, marks=SLOW)]
)
def test_a_signal_leaves_a_checkpoint_and_its_own_status(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path, how: str, moment: str, number: int, step: int
) -> None:
    """A step that has begun ends first."""
    result = forks.run("train", [*base, *IN_PARTS, "hydra.run.dir=run"], tmp_path, stops=[Stop(moment, number, how)])
    assert result.status == STATUSES[how], result.printed
    assert "Traceback" not in result.printed
    assert step_of(tmp_path / "run") == step
    summary = summary_of(tmp_path / "run")
    assert summary["exit_code"] == STATUSES[how]
    assert summary["status"] != "finished"
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole(*IN_PARTS))


@pytest.mark.slow
def test_a_second_interruption_ends_at_once(forks: Forks, base: list[str], whole: Whole, tmp_path: Path) -> None:
    stops = [Stop("train_batch", 30, "SIGINT,SIGINT")]
    result = forks.run("train", [*base, *IN_PARTS, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == 130
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole(*IN_PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 44))
def test_stopped_in_many_ways_in_a_row(forks: Forks, base: list[str], whole: Whole, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    hows = ["SIGTERM", "SIGINT", "SIGUSR1", "SIGKILL", "raise"]
    stops = [Stop("train_batch", draw.randint(5, 20), how) for how in draw.sample(hows, 4)]
    run = go_on_until_the_end(forks, [*base, *IN_PARTS], tmp_path, stops)
    assert_same_run(run, whole(*IN_PARTS))


@pytest.mark.slow
def test_a_bug_keeps_its_traceback_and_the_run_goes_on_from_its_checkpoint(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path
) -> None:
    stops = [Stop("train_batch", 30, "raise")]
    result = forks.run("train", [*base, *IN_PARTS, "hydra.run.dir=run"], tmp_path, stops=stops)
    assert result.status == 1
    assert "Traceback" in result.err
    assert step_of(tmp_path / "run") in (4, 6)
    assert summary_of(tmp_path / "run")["exit_code"] == 1
    assert forks.run("train", ["resume=run"], tmp_path).status == 0
    assert_same_run(tmp_path / "run", whole(*IN_PARTS))


@pytest.mark.slow
def test_a_run_that_has_no_checkpoint_yet_starts_over_in_its_folder(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path
) -> None:
    run = go_on_until_the_end(forks, base, tmp_path, [Stop("train_batch", 2), Stop("train_batch", 3)])
    assert_same_run(run, whole())


def test_the_time_that_a_run_may_take_ends_it_with_a_checkpoint(
    forks: Forks, base: list[str], whole: Whole, tmp_path: Path
) -> None:
    """And what was taken is no part of the run that goes on."""
    settings = [*base, *IN_PARTS, "hydra.run.dir=run", "trainer.max_time=00:00:00:01"]
    slow = [Stop("train_batch", number, "pause") for number in (5, 6, 7, 8)]
    result = forks.run("train", settings, tmp_path, stops=slow)
    assert result.status in (0, 75), result.printed
    assert 0 < step_of(tmp_path / "run") < 24
    assert forks.run("train", ["resume=run", "trainer.max_time=null"], tmp_path).status == 0
    assert values_of(tmp_path / "run", "train/loss") == values_of(whole(*IN_PARTS), "train/loss")
