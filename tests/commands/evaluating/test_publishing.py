"""Results in the W&B run of a training run, read back from W&B's own files with its own command."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transformer_xl.commands.composing import compose
from transformer_xl.commands.evaluating.publishing import check_can_publish, publish
from transformer_xl.commands.run_identity import RunIdentity
from transformer_xl.commands.run_lock import only_process
from transformer_xl.commands.sources import Source
from transformer_xl.config import Config
from transformer_xl.errors import UserError

RUN_ID = "1a2b3c4d"


@pytest.fixture(scope="module")
def watched() -> Config:
    return compose(["model=txl_tiny", "data=recall", "logger=wandb", "logger.mode=offline", "logger.project=mine"])


@pytest.fixture
def source(watched: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    RunIdentity(run_id=RUN_ID, choices={}, parent=None).write(folder)
    (folder / "summary.json").write_text(json.dumps({"step": 40, "exit_code": 143}))
    return Source(name="run", path=str(folder), checkpoint="best", config=watched, folder=folder)


@pytest.mark.slow
def test_results_join_the_runs_own_figures(source: Source) -> None:
    check_can_publish(source)
    where = publish(source, {"test/loss": 1.5})
    assert "offline" in where
    assert "wandb sync" in where
    records = _records(source.folder)
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    assert (run["run_id"], run["project"], run["display_name"]) == (RUN_ID, "mine", "run")
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert {row["trainer/global_step"] for row in rows} == {40}
    (scalars,) = [row for row in rows if "evaluation/test/loss" in row]
    assert scalars["evaluation/test/loss"] == 1.5
    assert [record["exit"]["exit_code"] for record in records if record["type"] == "exit"] == [143]


def test_what_has_no_wandb_run_is_refused_in_one_sentence(source: Source) -> None:
    def refusal(**changes: Any) -> str:
        with pytest.raises(UserError) as caught:
            check_can_publish(dataclasses.replace(source, **changes))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "comes from no run" in refusal(config=None)
    assert "logger=none" in refusal(config=compose(["data=recall", "logger=none"]))
    assert "was trained without W&B" in refusal(config=compose(["data=recall", "trainer.fast_dev_run=true"]))
    (source.folder / "run.json").unlink()
    assert "run.json" in refusal()


def test_a_run_that_is_trained_now_is_left_alone(source: Source) -> None:
    with only_process(source.folder), pytest.raises(UserError, match="is in use by"):
        check_can_publish(source)


def test_a_mode_that_there_is_not_is_refused_before_the_evaluation(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "of")
    with pytest.raises(UserError, match="WANDB_MODE"):
        check_can_publish(source)


def _records(folder: Path) -> list[dict[str, Any]]:
    (log,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(log)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]
