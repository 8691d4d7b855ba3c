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
def test_a_sweep_that_was_stopped_goes_on_in_its_folder(text_file: Path, tmp_path: Path) -> None:
    command = [
        "-m",
        *tiny_overrides(text_file, tmp_path),
        f"hydra.sweep.dir={tmp_path / 's'}",
        "resume=auto",
        "seed=1,2",
    ]
    assert run_training(command, tmp_path).status == 0
    (tmp_path / "s" / "1" / "summary.json").unlink()  # as a kill leaves it
    outcome = run_training(command, tmp_path)
    assert outcome.status == 0
    assert "s/0 is finished" in outcome.stdout
    assert "resumed  at step 6 of 6" in outcome.stdout
