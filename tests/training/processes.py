"""Runs of several processes that a test can stop at a moment of its choice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Outcome, run_training, tiny_overrides

SECONDS = 240
"""How long a test waits for what should take a few seconds: machines are slow and shared."""


@dataclass(frozen=True)
class SlowedRun:
    """A run that is slow in one method of the module, and now in it."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def companions(self) -> list[int]:
        return children_of(self.process.pid)

    def ended(self) -> Ended:
        companions = self.companions
        stdout, stderr = self.process.communicate(timeout=SECONDS)
        wait_until(lambda: not any(map(is_alive, companions)))
        path = self.folder / "summary.json"
        summary = json.loads(path.read_text()) if path.exists() else {}
        return Ended(self.process.returncode, stdout, stderr, summary)


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str
    summary: dict[str, Any]


def start_slowed(
    method: str,
    seconds: float,
    text_file: Path,
    tmp_path: Path,
    *overrides: str,
    devices: int = 2,
    first: tuple[str, ...] = (),
) -> SlowedRun:
    """Start a run, and wait until each of its processes is in a method of `LanguageModule` that takes longer."""
    folder, marks = tmp_path / "run", tmp_path / "marks"
    marks.mkdir()
    command = [
        *(first or (sys.executable,)),
        str(Path(__file__).with_name("slowed.py")),
        *tiny_overrides(text_file, tmp_path),
        "trainer.limit_val_batches=40",
        "trainer.limit_test_batches=40",
        f"trainer.devices={devices}",
        f"hydra.run.dir={folder}",
        *overrides,
    ]
    variables = {"OMP_NUM_THREADS": "1", "SLOWED": f"{method} {seconds} {marks}"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(list(marks.iterdir())) == devices, unless_ended=process)
    return SlowedRun(process, folder)


def wait_until(condition: Callable[[], bool], *, unless_ended: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        assert unless_ended is None or unless_ended.poll() is None, unless_ended.communicate()
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            children += map(int, (task / "children").read_text().split())
    return children


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}


def exact_run(text_file: Path, tmp_path: Path, devices: int, *overrides: str) -> Outcome:
    folder = tmp_path / f"processes-{devices}"
    arguments = [
        *tiny_overrides(text_file, tmp_path),
        "data.batch_size=7",
        "eval.batch_size=5",
        "trainer.precision=64-true",
        "trainer.max_steps=12",
        "trainer.val_check_interval=5",
        "trainer.limit_val_batches=null",
        "trainer.limit_train_batches=5",
        "trainer.log_every_n_steps=3",
        f"trainer.devices={devices}",
        *overrides,
        f"hydra.run.dir={folder}",
    ]
    outcome = run_training(arguments, tmp_path)
    assert outcome.status == 0, outcome.stderr
    return outcome


def assert_same_run(one: Outcome, other: Outcome) -> None:
    for name in ("train/loss", "train/grad_norm", "val/loss", "val/memory_gain", "test/loss", "lr"):
        assert other.values(name) == pytest.approx(one.values(name), rel=1e-9), name
    for name, tensor in one.checkpoint()["state_dict"].items():
        torch.testing.assert_close(other.checkpoint()["state_dict"][name], tensor, rtol=1e-7, atol=1e-9)
    memory, other_memory = one.checkpoint()["train_memory"], other.checkpoint()["train_memory"]
    assert torch.equal(other_memory["length_B"], memory["length_B"])
    torch.testing.assert_close(other_memory["hidden_LBMD"], memory["hidden_LBMD"], rtol=1e-6, atol=1e-9)
