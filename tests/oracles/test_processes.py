"""Several processes: the numbers of one, one voice, one status, one folder; and sweeps of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.oracles.runs_support import (
    STATUSES,
    Forks,
    Result,
    Stop,
    assert_same_run,
    children_of,
    is_alive,
    places,
    program,
    step_of,
    summary_of,
    values_of,
    weights_of,
    without,
)

SLOW = pytest.mark.slow

EXACT = [
    "trainer.precision=64-true",
    "data.batch_size=5",
    "trainer.max_steps=8",
    "trainer.val_check_interval=4",
    "callbacks.checkpoint.every_n_train_steps=2",
]
"""Five lanes: two processes have three and two of them."""


def run_ranks(
    forks: Forks, arguments: Sequence[str], folder: Path, processes: int, *, stops: Sequence[Stop] = ()
) -> list[Result]:
    """Run a command in so many processes, as torchrun starts them."""
    given = [*arguments, f"trainer.devices={processes}"]
    started = [forks.start("train", given, folder, environment=place, stops=stops) for place in places(processes)]
    return [forks.result(process, folder, forks.wait(process)) for process in started]


@pytest.fixture
def exact(base: list[str]) -> list[str]:
    return [*without(base, *(setting.partition("=")[0] for setting in EXACT)), *EXACT]


@pytest.fixture(scope="module")
def one_process(forks: Forks, base: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the folder of a run on one process; each is trained once."""
    folder = tmp_path_factory.mktemp("one")
    trained: dict[tuple[str, ...], Path] = {}

    def run(*settings: str) -> Path:
        if settings not in trained:
            target = folder / f"run-{len(trained)}"
            given = [*base, *EXACT, *settings, f"hydra.run.dir={target}"]
            (result,) = run_ranks(forks, given, folder, 1)
            assert result.status == 0, result.printed
            trained[settings] = target
        return trained[settings]

    return run


def assert_same_numbers(folder: Path, other: Path) -> None:
    """Compare losses and weights as far as another order of additions allows."""
    for name in ("train/loss", "val/loss", "test/loss", "train/grad_norm"):
        assert values_of(folder, name) == pytest.approx(values_of(other, name), rel=1e-9), name
    ours, theirs = weights_of(folder), weights_of(other)
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-8, atol=1e-9)
    assert summary_of(folder)["objective"] == pytest.approx(summary_of(other)["objective"], rel=1e-9)


IN_PARTS = ["data.lane_chunks=2", "trainer.accumulate_grad_batches=2"]


@pytest.mark.parametrize(
    ("processes", "settings"),
    [
        (2, []),
        pytest.param(2, IN_PARTS, marks=SLOW),
        pytest.param(3, [], marks=SLOW),
        pytest.param(2, ["data.documents=blank_line", "data.order=shuffled", "data.segment_len_sd=2.0"], marks=SLOW),
    ],
)
def test_several_processes_have_the_numbers_of_one(
    forks: Forks,
    exact: list[str],
    one_process: Callable[..., Path],
    tmp_path: Path,
    processes: int,
    settings: list[str],
) -> None:
    results = run_ranks(forks, [*exact, *settings, "hydra.run.dir=run"], tmp_path, processes)
    assert [result.status for result in results] == [0] * processes, results
    assert_same_numbers(tmp_path / "run", one_process(*settings))
    assert results[0].out.count("parameters") == 1
    assert [result.out for result in results[1:]] == [""] * (processes - 1)
    assert summary_of(tmp_path / "run")["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1), (2, 3)])
def test_a_run_goes_on_over_another_number_of_processes(
    forks: Forks, exact: list[str], one_process: Callable[..., Path], tmp_path: Path, first: int, then: int
) -> None:
    stops = [Stop("train_batch", 6, "SIGTERM")]
    results = run_ranks(forks, [*exact, "hydra.run.dir=run"], tmp_path, first, stops=stops)
    assert results[0].status == 143, results
    results = run_ranks(forks, ["resume=run"], tmp_path, then)
    assert [result.status for result in results] == [0] * then, results
    assert_same_numbers(tmp_path / "run", one_process())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_to_one_rank_stops_all_and_rank_0_has_the_status(
    forks: Forks, exact: list[str], one_process: Callable[..., Path], tmp_path: Path, how: str
) -> None:
    """Whichever hears it."""
    rank = 1 if how in ("SIGUSR1", "SIGHUP") else 0
    stops = [Stop("train_batch", 5, how, rank=rank)]
    results = run_ranks(forks, [*exact, "hydra.run.dir=run"], tmp_path, 2, stops=stops)
    assert results[0].status == STATUSES[how], results
    assert "Traceback" not in results[0].printed + results[1].printed
    assert summary_of(tmp_path / "run")["exit_code"] == STATUSES[how]
    assert step_of(tmp_path / "run") >= 5
    assert run_ranks(forks, ["resume=run"], tmp_path, 2)[0].status == 0
    assert_same_numbers(tmp_path / "run", one_process())


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_when_a_process_is_lost_the_other_ends_within_a_minute(
    forks: Forks, exact: list[str], one_process: Callable[..., Path], tmp_path: Path, lost: int
) -> None:
    """And the run goes on from its checkpoint."""
    stops = [Stop("train_batch", 6, rank=lost)]
    start = time.monotonic()
    results = run_ranks(forks, [*exact, "hydra.run.dir=run"], tmp_path, 2, stops=stops)
    assert time.monotonic() - start < 90
    assert results[lost].status == -9
    assert results[1 - lost].status != -999, results
    assert lost == 0 or results[0].status != 0, results
    assert run_ranks(forks, ["resume=run"], tmp_path, 2)[0].status == 0
    assert_same_numbers(tmp_path / "run", one_process())


@pytest.mark.slow
def test_a_second_number_of_processes_than_was_started_is_refused(
    forks: Forks, base: list[str], tmp_path: Path
) -> None:
    started = [forks.start("train", [*base, "hydra.run.dir=run"], tmp_path, environment=place) for place in places(2)]
    results = [forks.result(process, tmp_path, forks.wait(process)) for process in started]
    assert results[0].status == 2, results
    assert "trainer.devices=2" in results[0].err
    assert results[0].err.count("error: ") == 1


@pytest.mark.slow
def test_a_trained_model_is_tested_on_several_devices(
    forks: Forks, exact: list[str], one_process: Callable[..., Path], tmp_path: Path
) -> None:
    """With no step of training, in place of an evaluation in processes of its own."""
    trained = one_process()
    settings = [*without(exact, "trainer.max_steps", "scheduler.warmup_steps"), f"init_from={trained}"]
    given = [*settings, "trainer.max_steps=0", "hydra.run.dir=tested"]
    results = run_ranks(forks, given, tmp_path, 2)
    assert [result.status for result in results] == [0, 0], results
    tested, own = (summary_of(folder)["metrics"]["test"] for folder in (tmp_path / "tested", trained))
    assert tested["loss"] == pytest.approx(own["loss"], rel=1e-9)
    assert tested["tokens"] == own["tokens"]


# --- Lightning's own launcher ---


@pytest.mark.slow
def test_the_launcher_starts_stops_and_goes_on(
    base: list[str], one_process: Callable[..., Path], tmp_path: Path
) -> None:
    """As a user starts it: one command, two processes, one status, one folder."""
    settings = [*without(base, "trainer.max_steps"), *without(EXACT, "trainer.max_steps"), "scheduler.total_steps=8"]
    settings += ["trainer.max_steps=4000", "trainer.devices=2", "trainer.log_every_n_steps=1", "hydra.run.dir=run"]
    log = tmp_path / "run" / "metrics.jsonl"
    with program("train", *settings, cwd=tmp_path) as process:
        deadline = time.monotonic() + 240
        while not (log.exists() and "train/loss" in log.read_text()):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        children = children_of(process.pid)
        process.terminate()
        out, err = process.communicate(timeout=240)
    assert process.returncode == 143, out + err
    assert "Traceback" not in err
    assert children
    while any(map(is_alive, children)):  # they end within seconds of the first process, not before it
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
    assert summary_of(tmp_path / "run")["exit_code"] == 143
    step = step_of(tmp_path / "run")
    ours, theirs = values_of(tmp_path / "run", "train/loss"), values_of(one_process(), "train/loss")
    shared = range(1, min(step, 8) + 1)
    assert [ours[number] for number in shared] == pytest.approx([theirs[number] for number in shared], rel=1e-9)


# --- sweeps ---


@pytest.mark.slow
def test_a_sweep_of_two_seeds_on_two_processes_leaves_two_folders(
    forks: Forks, base: list[str], whole: Callable[..., Path], tmp_path: Path
) -> None:
    settings = [*without(base, "trainer.accelerator"), "trainer.devices=2", "trainer.accelerator=cpu"]
    result = forks.run("train", ["-m", *settings, "seed=1,2", "hydra.sweep.dir=sweep"], tmp_path)
    assert result.status == 0, result.printed
    folders = sorted(path.parent for path in tmp_path.glob("sweep/*/summary.json"))
    assert len(folders) == 2
    assert [summary_of(folder)["status"] for folder in folders] == ["finished"] * 2
    assert all(len(values_of(folder, "train/loss")) == 6 for folder in folders)
    assert values_of(folders[0], "train/loss") == pytest.approx(values_of(whole(), "train/loss"), rel=1e-5)
    assert values_of(folders[1], "train/loss") != values_of(folders[0], "train/loss")


@pytest.mark.slow
def test_a_sweep_in_which_a_job_fails_runs_the_others_and_goes_on(
    forks: Forks, base: list[str], whole: Callable[..., Path], tmp_path: Path
) -> None:
    """The second time only what has not finished is trained."""
    command = ["-m", *without(base, "data.batch_size"), "hydra.sweep.dir=sweep", "resume=auto"]
    result = forks.run("train", [*command, "data.batch_size=100000,4"], tmp_path)
    assert result.status == 1, result.printed
    assert "data.batch_size" in result.err
    (finished,) = [path.parent for path in tmp_path.glob("sweep/*/summary.json")]
    assert_same_run(finished, whole())
    assert f"{summary_of(finished)['objective']:.4f}"[:6] in result.out
    before = (finished / "metrics.jsonl").stat().st_mtime_ns
    again = forks.run("train", [*command, "data.batch_size=100000,4"], tmp_path)
    assert again.status == 1
    assert (finished / "metrics.jsonl").stat().st_mtime_ns == before
    assert json.loads((finished / "summary.json").read_text())["status"] == "finished"
