"""A program whose job writes down what it was given, or ends as `name=` asks; its settings are those of `train.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROBE = """
import json, signal, sys, time
from pathlib import Path

from transformer_xl.commands import cli
from transformer_xl.commands.sweep import run_sweep
from transformer_xl.errors import Stopped, UserError


def job(call):
    config = call.values(call.compose())
    folder = call.folder or Path("run").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    act = config["name"]
    if act == "user":
        raise UserError("data.path is 3,\\nand must be a path")
    if act == "bug":
        raise RuntimeError("a bug of ours")
    if act == "missing_file":
        open("/nowhere/汉")
    if act == "stop":
        raise Stopped("stopped at step 7", exit_code=143)
    if act == "interrupt":
        raise KeyboardInterrupt
    seen = {"config": config, "folder": str(folder), "given": sorted(call.given), "command": call.command}
    (folder / "seen.json").write_text(json.dumps(seen))
    if act == "wait":
        stopped = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: stopped.append(number))
        (folder / "ready").touch()
        deadline = time.monotonic() + 40
        while not stopped and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        (folder / "signals.json").write_text(json.dumps(stopped))
        raise Stopped("stopped", exit_code=128 + stopped[0])
    if act != "no_objective":
        (folder / "summary.json").write_text(json.dumps({"objective": config["model"]["mem_len"] / 2}))


if __name__ == "__main__":
    cli.main(lambda: cli.run("train", job, sweep=run_sweep))
"""


@dataclass(frozen=True)
class Project:
    """The probe, and a working directory of one test's own."""

    probe: Path
    cwd: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.probe), *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.cwd, capture_output=True, text=True, timeout=60, check=False
        )

    def left(self) -> list[str]:
        return sorted(os.listdir(self.cwd))


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "probe.py").write_text(PROBE)
    cwd = tmp_path / "work"
    cwd.mkdir()
    return Project(probe=tmp_path / "probe.py", cwd=cwd)
