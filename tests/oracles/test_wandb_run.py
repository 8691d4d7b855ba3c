"""A run of several processes is one W&B run, of which each process writes its part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.runs_support import Forks, Stop, values_of
from tests.training.wandb_server import WandbServer

SETTINGS = [
    "logger=wandb",
    "model.dropout=0.2",
    "trainer.max_steps=24",
    "trainer.val_check_interval=6",
    "callbacks.checkpoint.every_n_train_steps=4",
    "trainer.log_every_n_steps=1",
]
STOPS = [[Stop("train_batch", 8)], [Stop("train_batch", 6, "SIGTERM")], []]
"""Killed in step 8, of which W&B's file holds nothing; stopped after step 12 - it began again after 6 -; finished."""


def live(
    forks: Forks, base: list[str], below: Path, *overrides: str, **environment: str | None
) -> tuple[Path, list[str]]:
    """Run in three lives; return the folder and the line about W&B that each printed."""
    folder = below / "run"
    monitors: list[str] = []
    arguments = [*(one for one in base if not one.startswith("logger")), *SETTINGS, *overrides]
    arguments.append(f"hydra.run.dir={folder}")
    for stops in STOPS:
        life = forks.run("train", arguments, below, stops=stops, environment=environment)
        lines = [line for line in life.out.splitlines() if line.startswith("monitor")]
        assert len(lines) == 1, life.printed
        monitors += lines
        arguments = [f"resume={folder}"]
    assert life.status == 0, life.printed
    assert list(values_of(folder, "train/loss")) == list(range(1, 25))
    return folder, monitors


def parts(folder: Path) -> list[list[dict[str, Any]]]:
    """The records of each process's file, in the order of their starts; none where it was killed at once."""
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json"]
    logs = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    outputs = [subprocess.run([*command, str(log)], capture_output=True, text=True).stdout for log in logs]
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def rows_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def losses(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(row["trainer/global_step"], row[name]) for row in rows if name in row]


def assert_whole(rows: list[dict[str, Any]], folder: Path) -> None:
    """Every figure of the run's own log stands in the rows, and no other value of it."""
    for name in ("train/loss", "val/loss", "test/loss", "lr"):
        assert {(step, value) for step, value in losses(rows, name)} == set(values_of(folder, name).items()), name


def rises(values: list[int]) -> bool:
    return all(one < other for one, other in pairwise(values))


@pytest.fixture(scope="module")
def offline(forks: Forks, base: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    below = tmp_path_factory.mktemp("offline")
    return live(forks, base, below, "callbacks.sample.n_tokens=3", WANDB_MODE="offline", WANDB_API_KEY=None)


def test_offline_each_process_writes_a_file_whose_steps_rise(offline: tuple[Path, list[str]]) -> None:
    folder, _ = offline
    killed, stopped, finished = parts(folder)
    assert rows_of(killed) == []  # else this test shows nothing
    for part in (stopped, finished):
        assert rises([row["_step"] for row in rows_of(part)])
        assert rises([step for step, _ in losses(rows_of(part), "train/loss")])
    assert_whole([*rows_of(stopped), *rows_of(finished)], folder)


def test_all_files_are_of_one_run_and_each_tells_how_its_process_ended(offline: tuple[Path, list[str]]) -> None:
    folder, _ = offline
    _, *written = parts(folder)
    identity = json.loads((folder / "run.json").read_text())["run_id"]
    assert [record["run"]["run_id"] for part in written for record in part if record["type"] == "run"] == [identity] * 2
    exits = [record["exit"].get("exit_code", 0) for part in written for record in part if record["type"] == "exit"]
    assert exits == [143, 0]


def test_the_printed_line_uploads_every_part_in_order(offline: tuple[Path, list[str]], server: WandbServer) -> None:
    """Although the first file, of the killed process, is no whole one."""
    folder, monitors = offline
    command = monitors[-1].partition("upload with: ")[2]
    environment = {**os.environ, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "x" * 40, "HOME": str(folder)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        command, shell=True, cwd=folder.parent, env={**environment, "PATH": path}, timeout=240, capture_output=True
    )
    ((_, rows),) = server.rows.items()
    steps = [step for step, _ in losses(rows, "train/loss")]
    assert steps == sorted(steps)
    assert rises([row["_step"] for row in rows])
    assert_whole(rows, folder)


@pytest.fixture
def server() -> Iterator[WandbServer]:
    server = WandbServer()
    yield server
    server.shutdown()


@pytest.mark.slow
def test_online_the_same_run_goes_on(forks: Forks, base: list[str], tmp_path: Path, server: WandbServer) -> None:
    key = {"WANDB_API_KEY": "x" * 40, "WANDB_BASE_URL": server.url, "WANDB_MODE": "online"}
    folder, _ = live(forks, base, tmp_path, **key)
    ((run, rows),) = server.rows.items()
    assert run == json.loads((folder / "run.json").read_text())["run_id"]
    assert server.exits[run] == [143, 0]
    assert rises([row["_step"] for row in rows])
    assert_whole(rows, folder)
