"""What `resume=` does in each state of a run folder: goes on, starts over, branches, reports, refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import Outcome, read_values, tiny_overrides
from transformer_xl.commands import cli
from transformer_xl.commands.train import train_by_command as train
from transformer_xl.training.module import LanguageModule

Run = Callable[..., Outcome]


def identity(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "run.json").read_text())
    return content


@pytest.fixture
def in_outputs(tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Give a function that runs a command in a working directory of its own, as a user types it."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, base: bool = True) -> int:
        return cli.run("train", train, [*(tiny_overrides(text_file, tmp_path) if base else []), *arguments])

    return run


def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LanguageModule.training_step

    def training_step(module: LanguageModule, batch: object, batch_idx: int) -> object:
        if batch.step == step:  # type: ignore[attr-defined]
            raise RuntimeError("a bug")
        return real(module, batch, batch_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModule, "training_step", training_step)


def test_damaged_lines_of_a_killed_run_do_not_keep_its_logger_from_going_on(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tiny_run("logger=wandb", "trainer.max_steps=3", "scheduler.total_steps=7")
    (run.folder / "summary.json").unlink()  # as a kill leaves it
    with (run.folder / "metrics.jsonl").open("ab") as file:
        file.write(b"\x00" * 64 + b"\n" + b"\xff\n")  # as a power cut leaves it
    assert tiny_run(f"resume={run.folder}", "trainer.max_steps=6", base=False).status == 0
    assert list(run.values("train/loss")) == [1, 2, 3, 4, 5, 6]
    (run.folder / "metrics.jsonl").unlink()
    assert tiny_run(f"resume={run.folder}", "trainer.max_steps=7", base=False).status == 0


def test_a_branch_may_learn_at_another_rate_and_its_wandb_run_names_the_parent(
    in_outputs: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert in_outputs("name=a", "trainer.max_steps=3", "scheduler=constant") == 0
    changes = ["optimizer.lr=0.5", "model.dropout=0.3", "trainer.max_steps=4", "logger=wandb"]
    assert in_outputs("resume=outputs/a", "name=b", *changes, base=False) == 0
    branch = tmp_path / "outputs" / "b"
    assert torch.load(branch / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"][
        0
    ]["lr"] == pytest.approx(0.5)
    (log,) = branch.glob("wandb/offline-run-*/run-*.wandb")
    parent_id = str(identity(tmp_path / "outputs" / "a")["run_id"])
    assert parent_id.encode() in log.read_bytes()


@pytest.mark.parametrize("steps", [6, 8])
def test_a_branch_that_validates_otherwise_has_a_best_of_its_own(
    in_outputs: Callable[..., int], tmp_path: Path, steps: int
) -> None:
    """With no step left, and with some: the parent's best score is of other lengths."""
    assert in_outputs("name=a", "scheduler.total_steps=8") == 0
    changes = ["name=b", f"trainer.max_steps={steps}", "eval.segment_len=10", "optimizer.lr=1e-9"]
    assert in_outputs("resume=outputs/a", *changes, base=False) == 0
    a, b = (Outcome(tmp_path / "outputs" / name, 0, "", "") for name in "ab")
    assert b.summary["metrics"]["valid"]["loss"] != a.summary["metrics"]["valid"]["loss"]
    assert b.summary["metrics"]["valid"]["loss"] == b.summary["objective"]
    assert (b.folder / "checkpoints" / "best.ckpt").exists() == (steps == 8)
    if steps == 8:
        assert b.checkpoint("best")["global_step"] == 8
        assert b.values("val/loss")[8] == b.summary["objective"]


def test_auto_starts_over_as_the_command_says_where_there_is_no_checkpoint(
    in_outputs: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        crash_at(1, patched)
        assert in_outputs("name=a", "resume=auto") == 1
    assert in_outputs("name=a", "resume=auto", "data.batch_size=3") == 0
    config = yaml.safe_load((tmp_path / "outputs" / "a" / "config.yaml").read_text())
    assert (config["data"]["batch_size"], config["resume"]) == (3, None)


def test_auto_takes_what_a_resume_may_change_and_refuses_another_run(
    in_outputs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ["name=a", "resume=auto", "scheduler.total_steps=9"]
    assert in_outputs(*first, "trainer.max_steps=4") == 0
    assert in_outputs("resume=outputs/a", "trainer.max_steps=5", base=False) == 0
    assert in_outputs(*first, "trainer.max_steps=8", "callbacks.checkpoint.keep=3") == 0
    assert max(read_values(tmp_path / "outputs" / "a", "train/loss")) == 8
    for changes, words in [
        (["model.d_model=32"], ["model.d_model is 32 and was 16"]),
        (["seed=4"], ["seed is 4 and was 1"]),
        (["data=recall"], ["data.kind is 'recall' and was 'text'"]),
        (["optimizer.lr=0.5"], ["optimizer.lr is 0.5 and was 0.01"]),
    ]:
        own = [line for line in tiny_overrides(Path("x"), tmp_path) if changes != ["data=recall"] or "data" not in line]
        capsys.readouterr()
        assert in_outputs(*own, *first, *changes, base=changes != ["data=recall"]) == 2, changes
        error = capsys.readouterr().err
        assert all(word in error for word in words), error
        assert error.count("\n") == 1


def test_auto_says_of_a_finished_run_without_checkpoints_only_that_it_is_finished(
    in_outputs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["name=a", "resume=auto", "trainer.enable_checkpointing=false"]
    assert in_outputs(*command) == 0
    capsys.readouterr()
    assert in_outputs(*command) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("outputs/a is finished")


def test_auto_goes_on_with_a_run_that_began_from_a_model(
    in_outputs: Callable[..., int], text_file: Path, tmp_path: Path
) -> None:
    assert in_outputs("name=source", "trainer.max_steps=2", "model.d_model=8") == 0
    own = [line for line in tiny_overrides(text_file, tmp_path) if not line.startswith("model.")]
    command = [*own, "name=a", "resume=auto", "init_from=outputs/source", "scheduler.total_steps=6"]
    command += ["model.mem_len=9", "data.tokenizer=byte"]
    assert in_outputs(*command, "trainer.max_steps=3", base=False) == 0
    assert in_outputs(*command, "trainer.max_steps=5", base=False) == 0
    folder = tmp_path / "outputs" / "a"
    assert max(read_values(folder, "train/loss")) == 5
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["config"]["eval"]["mem_len"] == 9


def test_a_run_that_was_extended_and_stopped_in_its_report_is_not_finished(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`summary.json` is still that of the end before."""
    run = tiny_run("scheduler.total_steps=8", "trainer.max_steps=4")
    before = (run.folder / "summary.json").read_text()
    with monkeypatch.context() as patched:
        patched.setattr(LanguageModule, "on_test_epoch_start", _fail)
        assert tiny_run(f"resume={run.folder}", "trainer.max_steps=8", base=False).status == 1
    (run.folder / "summary.json").write_text(before)  # as a kill leaves it
    assert tiny_run(f"resume={run.folder}", base=False).status == 0
    assert (run.summary["step"], run.summary["status"]) == (8, "finished")
    assert list(run.values("test/loss")) == [8]


def _fail(*_: object) -> None:
    raise RuntimeError("a bug")
