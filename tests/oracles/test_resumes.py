"""What `resume=` does in each state of a run folder: goes on, starts over, branches, reports, refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.oracles.runs_support import (
    Forks,
    Result,
    Stop,
    assert_same_run,
    assert_same_weights,
    call,
    checkpoint_of,
    step_of,
    summary_of,
    values_of,
    without,
)

SLOW = pytest.mark.slow
DROPOUT = ["model.dropout=0.2", "model.dropatt=0.1"]
EACH_STEP = [
    *DROPOUT,
    "callbacks.checkpoint.every_n_train_steps=1",
    "callbacks.checkpoint.keep=4",
    "scheduler.total_steps=6",
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def train(base: list[str]) -> Callable[..., Result]:
    """Give a function that trains a tiny run in this process."""

    def run(*settings: str, status: int = 0) -> Result:
        kept = without(base, *(setting.partition("=")[0] for setting in settings))
        result = call("train", *kept, *settings)
        assert result.status == status, result.printed
        return result

    return run


def resume(*arguments: str, status: int = 0) -> Result:
    result = call("train", *arguments)
    assert result.status == status, result.printed
    assert status != 2 or result.err.strip().count("\n") == 0, result.err
    return result


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return settings


# --- damage ---


def flip_bits(path: Path) -> None:
    """Change bits where tensors lie, some of them in no gap between two; other names of the file do not change."""
    content = bytearray(path.read_bytes())
    for place in range(len(content) * 3 // 10, len(content) * 7 // 10, len(content) // 50):
        content[place] ^= 4
    path.unlink()
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.unlink()
    path.touch()


@pytest.mark.parametrize(
    ("damage", "names", "source"),
    [
        (flip_bits, ["last"], "step-3"),
        pytest.param(cut_off, ["last"], "step-3", marks=SLOW),
        pytest.param(empty, ["last"], "step-3", marks=SLOW),
        pytest.param(Path.unlink, ["last"], "step-3", marks=SLOW),
        pytest.param(cut_off, ["last", "step-3", "step-2"], "step-1", marks=SLOW),
    ],
)
def test_a_resume_goes_on_from_the_newest_whole_checkpoint_to_the_same_end(
    train: Callable[..., Result], damage: Callable[[Path], None], names: list[str], source: str
) -> None:
    train(*EACH_STEP, "hydra.run.dir=whole")
    train(*EACH_STEP, "trainer.max_steps=4", "hydra.run.dir=run")
    for name in names:
        damage(Path("run/checkpoints", f"{name}.ckpt"))
    result = resume("resume=run", "trainer.max_steps=6")
    assert f"{source}.ckpt" in result.printed
    assert values_of(Path("run"), "train/loss") == values_of(Path("whole"), "train/loss")
    assert_same_weights(Path("run"), Path("whole"))
    for path in Path("run/checkpoints").iterdir():
        torch.load(path, weights_only=True)  # nothing damaged is left


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_alone(train: Callable[..., Result]) -> None:
    train(*EACH_STEP, "trainer.max_steps=4", "hydra.run.dir=run")
    for path in Path("run/checkpoints").iterdir():
        cut_off(path)
    before = contents(Path("run"))
    result = resume("resume=run", "trainer.max_steps=6", status=2)
    assert "last.ckpt" in result.err
    assert contents(Path("run")) == before


@pytest.mark.parametrize("keep", [3, pytest.param(1, marks=SLOW)])
def test_so_many_checkpoints_are_kept_over_a_stop(train: Callable[..., Result], keep: int) -> None:
    train(*EACH_STEP, f"callbacks.checkpoint.keep={keep}", "trainer.max_steps=3", "hydra.run.dir=run")
    resume("resume=run", "trainer.max_steps=5")
    steps = {path.stem: step_of(Path("run"), path.stem) for path in Path("run/checkpoints").iterdir()}
    assert steps == {"best": 5, "last": 5, **{f"step-{step}": step for step in range(6 - keep, 5)}}


# --- metrics.jsonl ---


def test_a_resume_cuts_away_what_is_later_than_its_checkpoint(
    train: Callable[..., Result], forks: Forks, base: list[str], tmp_path: Path
) -> None:
    settings = [*DROPOUT, "callbacks.checkpoint.every_n_train_steps=2", "trainer.log_every_n_steps=1"]
    train(*settings, "hydra.run.dir=whole")
    arguments = [*without(base, "trainer.log_every_n_steps"), *settings, "hydra.run.dir=run"]
    assert forks.run("train", arguments, tmp_path, stops=[Stop("train_batch", 6)]).status == -9
    log = Path("run/metrics.jsonl")
    with log.open("ab") as file:
        for step in (5, 6, 400):
            file.write(json.dumps({"step": step, "tokens": 1, "name": "train/loss", "value": 0.5}).encode() + b"\n")
        file.write(b"\x00" * 64 + b"\n\xff\n")  # as a power cut leaves it
        file.write(b'{"step": 6, "tok')
    resume("resume=run")
    assert values_of(Path("run"), "train/loss") == values_of(Path("whole"), "train/loss")
    assert_same_run(Path("run"), Path("whole"))


def test_losses_read_back_to_the_same_bits(train: Callable[..., Result]) -> None:
    """At every step, whatever the interval of the log."""
    train("trainer.log_every_n_steps=4", "hydra.run.dir=run")
    losses = values_of(Path("run"), "train/loss")
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    entries = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {tuple(entry) for entry in entries} == {("step", "tokens", "name", "value")}
    assert [entry["tokens"] for entry in entries if entry["name"] == "train/loss"] == [20, 40, 60, 80, 100, 120]
    for loss in losses.values():
        assert loss is not None
        assert loss == float(repr(loss))


# --- more steps, other settings ---


def test_a_finished_run_goes_on_with_more_steps_and_its_schedule(train: Callable[..., Result]) -> None:
    train("scheduler.total_steps=8", "trainer.max_steps=8", "hydra.run.dir=whole", *DROPOUT)
    train("scheduler.total_steps=8", "trainer.max_steps=3", "hydra.run.dir=run", *DROPOUT)
    assert summary_of(Path("run"))["status"] == "finished"
    resume("resume=run", "trainer.max_steps=8")
    assert values_of(Path("run"), "train/loss") == values_of(Path("whole"), "train/loss")
    assert_same_weights(Path("run"), Path("whole"))
    assert settings_of(Path("run"))["trainer"]["max_steps"] == 8


def test_the_end_of_the_schedule_is_settled_when_a_run_starts(train: Callable[..., Result]) -> None:
    train("trainer.max_steps=4", "hydra.run.dir=run")
    resume("resume=run", "trainer.max_steps=6")
    assert settings_of(Path("run"))["scheduler"]["total_steps"] == 4
    assert values_of(Path("run"), "lr")[6] == 0


def test_a_finished_run_has_nothing_to_go_on_with(train: Callable[..., Result]) -> None:
    train("hydra.run.dir=run")
    before = contents(Path("run/checkpoints"))
    result = call("train", "resume=run")
    assert result.status in (0, 2)
    assert "Traceback" not in result.printed
    assert contents(Path("run/checkpoints")) == before


@pytest.mark.parametrize("chunks", [1, pytest.param(2, marks=SLOW), pytest.param(4, marks=SLOW)])
def test_a_resume_in_other_chunks_of_lanes_has_the_losses_of_the_run_never_stopped(
    train: Callable[..., Result], chunks: int
) -> None:
    exact = ["trainer.precision=64-true", "scheduler.total_steps=10", "trainer.accumulate_grad_batches=2"]
    exact += ["data.lane_chunks=2", "trainer.val_check_interval=4"]
    train(*exact, "trainer.max_steps=10", "hydra.run.dir=whole")
    train(*exact, "trainer.max_steps=5", "hydra.run.dir=run")
    resume("resume=run", "trainer.max_steps=10", f"data.lane_chunks={chunks}")
    for name in ("train/loss", "val/loss"):
        ours, theirs = values_of(Path("run"), name), values_of(Path("whole"), name)
        assert {step: ours[step] for step in theirs} == pytest.approx(theirs, rel=1e-10)


@pytest.mark.parametrize("change", ["data.batch_size=3", "data.segment_len=9", "optimizer.lr=0.1", "model.n_layer=1"])
def test_what_would_make_another_run_is_refused(train: Callable[..., Result], change: str) -> None:
    train("trainer.max_steps=2", "hydra.run.dir=run")
    before = contents(Path("run"))
    assert change.partition("=")[0] in resume("resume=run", "trainer.max_steps=4", change, status=2).err
    assert contents(Path("run")) == before


@pytest.mark.parametrize(
    "other", [["model.d_model=32"], pytest.param(["optimizer=sgd"], marks=SLOW), pytest.param(["seed=7"], marks=SLOW)]
)
def test_a_checkpoint_of_another_run_is_refused(train: Callable[..., Result], other: list[str]) -> None:
    train("trainer.max_steps=1", "hydra.run.dir=run")
    train("trainer.max_steps=1", "hydra.run.dir=other", *other)
    shutil.copy("other/checkpoints/last.ckpt", "run/checkpoints/last.ckpt")
    for path in Path("run/checkpoints").glob("step-*"):
        path.unlink()
    assert "last.ckpt" in resume("resume=run", "trainer.max_steps=2", status=2).err


@pytest.mark.slow
def test_a_resume_turns_the_monitor_on(train: Callable[..., Result]) -> None:
    train("trainer.max_steps=2", "scheduler.total_steps=4", "hydra.run.dir=run")
    resume("resume=run", "logger=wandb", "logger.mode=offline", "logger.project=mine", "trainer.max_steps=4")
    run_id = json.loads(Path("run/run.json").read_text())["run_id"]
    (log,) = Path("run").glob("wandb/offline-run-*/run-*.wandb")
    assert log.name == f"run-{run_id}.wandb"
    assert settings_of(Path("run"))["logger"]["project"] == "mine"


# --- branches ---


def test_a_branch_goes_on_in_a_folder_of_its_own_and_leaves_its_parent_as_it_was(train: Callable[..., Result]) -> None:
    several = ["scheduler.total_steps=10", *DROPOUT]
    train(*several, "name=whole", "trainer.max_steps=10")
    train(*several, "name=a", "trainer.max_steps=6")
    parent, branch = Path("outputs/a"), Path("outputs/b")
    before = contents(parent)
    resume("resume=outputs/a", "name=b", "trainer.max_steps=10")
    assert contents(parent) == before
    assert settings_of(branch)["name"] == "b"
    ids = [json.loads((folder / "run.json").read_text())["run_id"] for folder in (parent, branch)]
    assert ids[0] != ids[1]
    named = summary_of(branch)["parent"]
    assert (named["run_id"], named["step"]) == (ids[0], 6)
    assert values_of(branch, "train/loss") == values_of(Path("outputs/whole"), "train/loss")
    assert_same_weights(branch, Path("outputs/whole"))
    resume("resume=outputs/b", "trainer.max_steps=11")
    assert summary_of(branch)["parent"] == named


def test_a_branch_may_learn_at_another_rate(train: Callable[..., Result]) -> None:
    train("name=a", "trainer.max_steps=3", "scheduler=constant")
    resume("resume=outputs/a", "name=b", "optimizer.lr=0.5", "model.dropout=0.3", "trainer.max_steps=4")
    group = checkpoint_of(Path("outputs/b"))["optimizer_states"][0]["param_groups"][0]
    assert group["lr"] == pytest.approx(0.5)


def test_a_branch_without_checkpoint_or_onto_a_run_is_refused(train: Callable[..., Result]) -> None:
    train("name=a", "trainer.enable_checkpointing=false", "trainer.max_steps=2")
    train("name=b", "trainer.max_steps=2")
    assert "outputs/a" in resume("resume=outputs/a", "name=c", status=2).err
    assert "outputs/a" in resume("resume=outputs/b", "name=a", "trainer.max_steps=4", status=2).err
    assert not Path("outputs/c").exists()


def test_the_name_of_the_run_itself_makes_no_branch(train: Callable[..., Result]) -> None:
    train("name=a", "trainer.max_steps=3", "scheduler.total_steps=6")
    resume("resume=outputs/a", "name=a", "trainer.max_steps=6")
    assert [path.name for path in Path("outputs").iterdir()] == ["a"]


def test_a_run_is_not_written_over(train: Callable[..., Result]) -> None:
    train("name=a", "trainer.max_steps=2")
    before = contents(Path("outputs/a"))
    assert "outputs/a" in train("name=a", status=2).err
    assert "outputs/a" in train("hydra.run.dir=outputs/a", status=2).err
    assert contents(Path("outputs/a")) == before


def test_checkpoints_without_a_configuration_are_not_written_over(train: Callable[..., Result]) -> None:
    train("name=a", "trainer.max_steps=2")
    Path("outputs/a/config.yaml").unlink()
    before = contents(Path("outputs/a"))
    for more in ([], ["resume=auto"]):
        assert "outputs/a" in train("name=a", *more, status=2).err
    assert contents(Path("outputs/a")) == before


# --- one command for a queue ---


def test_auto_starts_goes_on_and_reports_with_one_command(
    train: Callable[..., Result], forks: Forks, base: list[str], tmp_path: Path
) -> None:
    train(*DROPOUT, "name=whole")
    command = [*base, *DROPOUT, "name=a", "resume=auto"]
    assert forks.run("train", command, tmp_path, stops=[Stop("train_batch", 2)]).status == -9
    assert forks.run("train", command, tmp_path, stops=[Stop("train_batch", 4, "SIGUSR1")]).status == 75
    assert forks.run("train", command, tmp_path).status == 0
    run = tmp_path / "outputs/a"
    assert_same_run(run, tmp_path / "outputs/whole")
    before = contents(run)
    result = forks.run("train", command, tmp_path)
    assert result.status == 0
    assert "finished" in result.printed
    assert contents(run) == before


def test_auto_with_a_folder_of_its_own(train: Callable[..., Result]) -> None:
    for _ in range(2):
        train("hydra.run.dir=here", "resume=auto", "trainer.max_steps=2")
    assert step_of(Path("here")) == 2
    assert len(values_of(Path("here"), "train/loss")) == 2


def test_a_new_run_in_the_same_process_starts_afresh(train: Callable[..., Result]) -> None:
    """Several runs in one process have the numbers that each has alone."""
    train(*DROPOUT, "hydra.run.dir=one")
    train("hydra.run.dir=between", "seed=9", "model.n_layer=1")
    train(*DROPOUT, "hydra.run.dir=two")
    assert_same_run(Path("one"), Path("two"))
