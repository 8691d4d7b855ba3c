"""A sweep of real runs: each job a process and a folder of its own, and one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import run_training, tiny_overrides


@pytest.mark.slow
def test_three_jobs_of_which_one_fails(text_file: Path, tmp_path: Path) -> None:
    arguments = [*tiny_overrides(text_file, tmp_path), f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    arguments = [argument for argument in arguments if not argument.startswith("model.mem_len=")]
    outcome = run_training(["-m", *arguments, "model.mem_len=0,-1,7"], tmp_path)
    assert outcome.status == 1
    assert "model.mem_len is -1" in outcome.stderr + outcome.stdout
    summaries = {job: tmp_path / "sweep" / job / "summary.json" for job in ("0", "1", "2")}
    assert [job for job, path in summaries.items() if path.exists()] == ["0", "2"]
    objectives = [json.loads(summaries[job].read_text())["objective"] for job in ("0", "2")]
    assert objectives[0] != objectives[1]
    for objective in objectives:
        assert f"{objective:.4f}"[:6] in outcome.stdout


@pytest.mark.slow
def test_jobs_on_two_processes_each(text_file: Path, tmp_path: Path) -> None:
    base = [argument for argument in tiny_overrides(text_file, tmp_path) if argument != "logger=none"]
    arguments = [*base, "trainer.devices=2", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    outcome = run_training(["-m", *arguments, "seed=1,2"], tmp_path, WANDB_MODE="offline", WANDB_API_KEY=None)
    assert outcome.status == 0, outcome.stderr
    for job in ("0", "1"):
        folder = tmp_path / "sweep" / job
        assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
        assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.slow
def test_a_sweep_goes_on_with_the_jobs_that_have_not_finished(text_file: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    command = ["-m", *tiny_overrides(text_file, tmp_path), f"hydra.sweep.dir={sweep}", "seed=1,2", "resume=auto"]
    assert run_training(command, tmp_path).status == 0
    objectives = [json.loads((sweep / job / "summary.json").read_text())["objective"] for job in "01"]
    (sweep / "1" / "summary.json").unlink()
    (sweep / "1" / "checkpoints" / "last.ckpt").unlink()
    again = run_training(command, tmp_path)
    assert again.status == 0, again.stderr
    assert "0 is finished" in again.stdout
    assert "going on from step-3.ckpt" in again.stdout
    assert [json.loads((sweep / job / "summary.json").read_text())["objective"] for job in "01"] == objectives
