"""A run that is stopped at any moment, in any way, and goes on is the run never stopped: to the bit."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import run_training, start_training, tiny_overrides
from tests.training.forked import Stop
from tests.training.kills import ToyRuns, assert_same_run
from tests.training.test_runs import wait_for_new_steps

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
    "trainer.max_steps=40",
    "trainer.limit_train_batches=23",
    "trainer.val_check_interval=5",
    "trainer.num_sanity_val_steps=1",
    "callbacks.checkpoint.every_n_train_steps=3",
    "trainer.log_every_n_steps=4",
]
"""All that has a state of its own: a schedule, an average, drawn lengths, shuffled documents, memory's borders."""


def drawn_stops(toy_runs: ToyRuns, whole: Path, *, seed: int, count: int, processes: int = 1) -> list[Stop]:
    """Draw moments for kills in a row, early enough for the run not to end before the last."""
    passed = toy_runs.moments(whole)
    most = sum(passed.values()) - passed["start"]
    draw = random.Random(seed)
    last = most if count == 1 else most // (count + 2)
    return [Stop(draw.randrange(1, last), rank=draw.randrange(processes)) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [IN_PARTS, WITH_EVERYTHING],
    ids=["in_parts", "with_everything"],
)
def test_three_kills_in_a_row(toy_runs: ToyRuns, overrides: list[str]) -> None:
    whole = toy_runs.whole(*overrides)
    stops = drawn_stops(toy_runs, whole, seed=3, count=3)
    assert_same_run(toy_runs.stopped(*overrides, stops=stops, torn=True), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_kill_at_a_drawn_moment(toy_runs: ToyRuns, seed: int) -> None:
    whole = toy_runs.whole(*IN_PARTS)
    stops = drawn_stops(toy_runs, whole, seed=seed, count=1)
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=stops, torn=True), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("overrides", [IN_PARTS, WITH_EVERYTHING], ids=["in_parts", "with_everything"])
def test_many_kills_in_a_row(toy_runs: ToyRuns, overrides: list[str], seed: int) -> None:
    whole = toy_runs.whole(*overrides)
    stops = drawn_stops(toy_runs, whole, seed=100 + seed, count=4)
    assert_same_run(toy_runs.stopped(*overrides, stops=stops), whole)


def test_killed_in_validation_while_a_checkpoint_is_written_at_the_last_batch_and_in_the_test(
    toy_runs: ToyRuns,
) -> None:
    """One life each; the same command each time."""
    whole = toy_runs.whole(*IN_PARTS)
    stops = [
        Stop(13, "validation_step"),  # of the second validation
        Stop(2, "write"),
        Stop(2 * 4 * 12, "training_step"),  # within the last batch, from the checkpoint of step 12 on
        Stop(3, "test_step"),
    ]
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=stops, auto=True), whole)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["write", "replace", "link", "validation_step", "test_step", "record"])
def test_killed_at_the_end(toy_runs: ToyRuns, moment: str) -> None:
    """At each of the last moments of a kind: around the last validation, checkpoint and test."""
    whole = toy_runs.whole(*IN_PARTS)
    passed = toy_runs.moments(whole)[moment]
    for number in range(max(1, passed - 5), passed + 1):
        assert_same_run(toy_runs.stopped(*IN_PARTS, stops=[Stop(number, moment)]), whole)


@pytest.mark.slow
def test_killed_before_the_first_batch(toy_runs: ToyRuns) -> None:
    """While the folder's files are written: the run starts over in it."""
    whole = toy_runs.whole(*IN_PARTS)
    stops = [Stop(number, "start") for number in range(1, 5)]
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=stops), whole)
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=stops, auto=True), whole)


def test_stopped_in_every_way_in_a_row(toy_runs: ToyRuns) -> None:
    whole = toy_runs.whole(*IN_PARTS)
    stops = [
        Stop(31, "backward", "SIGTERM"),
        Stop(14, "training_step", "raise"),
        None,
        Stop(5, "validation_step", "SIGUSR1"),
        Stop(2, "write", "SIGINT"),
        Stop(2, "test_step", "SIGTERM"),
    ]
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=stops), whole)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGUSR1", "SIGINT", "raise"])
@pytest.mark.parametrize("seed", range(3))
def test_stopped_at_drawn_moments(toy_runs: ToyRuns, how: str, seed: int) -> None:
    whole = toy_runs.whole(*IN_PARTS)
    (kill,) = drawn_stops(toy_runs, whole, seed=200 + seed, count=1)
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=[Stop(kill.number, how=how)]), whole)


@pytest.mark.slow
def test_two_processes_are_killed_and_go_on(toy_runs: ToyRuns) -> None:
    whole = toy_runs.whole(*IN_PARTS, processes=2)
    stops = [Stop(50, "backward", rank=1)]
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=stops, processes=2), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_processes_are_stopped_in_many_ways_and_go_on(toy_runs: ToyRuns, seed: int) -> None:
    whole = toy_runs.whole(*IN_PARTS, processes=2)
    stops = drawn_stops(toy_runs, whole, seed=300 + seed, count=2, processes=2)
    signals = [Stop(21, "backward", "SIGTERM", rank=seed % 2), None]
    assert_same_run(toy_runs.stopped(*IN_PARTS, stops=[*signals, *stops], processes=2), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3])
def test_a_program_killed_from_outside_at_any_time(text_file: Path, tmp_path: Path, kills: int) -> None:
    """Real processes from the command line, killed by the clock."""
    base = [*tiny_overrides(text_file, tmp_path), *IN_PARTS, "trainer.max_steps=400", "trainer.val_check_interval=20"]
    whole = run_training([*base, f"hydra.run.dir={tmp_path / 'whole'}"], tmp_path)
    assert whole.status == 0, whole.stderr
    folder = tmp_path / "killed"
    command = [*base, f"hydra.run.dir={folder}"]
    delays = random.Random(1)
    for _ in range(kills):
        process = start_training(command, tmp_path)
        wait_for_new_steps(folder, 9, process)
        time.sleep(0.3 * delays.random())
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        command = [f"resume={folder}"]
    assert run_training(command, tmp_path).status == 0
    assert_same_run(folder, whole.folder)
