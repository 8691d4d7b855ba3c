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

from tests.conftest import tiny_overrides

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
