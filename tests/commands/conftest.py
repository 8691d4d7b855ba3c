"""A small project of its own: an entry point that writes down what it was given, and a conf/ beside it."""

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
import json, os, subprocess, sys, time
from pathlib import Path

from functools import partial

from transformer_xl.commands import cli
from transformer_xl.commands.sweep import run_sweep
from transformer_xl.errors import Stopped, UserError


def job(call):
    composed = call.compose()
    choices = call.choices(composed)
    config = call.values(composed)
    folder = call.folder or Path("run").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    act = config["act"]
    if act == "user":
        raise UserError("data.path is 3,\\nand must be a path")
    if act == "bug":
        raise RuntimeError("a bug of ours")
    if act == "missing_file":
        open(config["data"]["path"])
    if act == "stop":
        raise Stopped("stopped at step 7", exit_code=143)
    if act == "interrupt":
        raise KeyboardInterrupt
    seen = {
        "config": config,
        "folder": str(folder),
        "choices": choices,
        "given": sorted(call.given),
        "command": call.command,
        "argv": sys.argv,
    }
    (folder / "seen.json").write_text(json.dumps(seen))
    if act == "wait":
        import signal
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
    sys.exit(cli.run("train", job, config_dir=Path(__file__).parent / "conf", sweep=partial(run_sweep, check=None)))
"""

CONF = {
    "train.yaml": """
defaults:
  - model: small
  - recipe: ${model}
  - data: text
  - _self_
  - optional experiment: null
  - override hydra/hydra_logging: disabled
  - override hydra/job_logging: disabled
seed: 1
name: null
resume: null
prompt: null
texts: null
init_from: null
run: null
act: null
hydra:
  output_subdir: null
  job:
    chdir: false
  sweep:
    dir: ${sweep_folder:outputs}
    subdir: ${hydra.job.num}
""",
    "model/small.yaml": "d_model: 16\nd_head: 8\nmem_len: 7\nclamp_len: null\n",
    "model/large.yaml": "d_model: 64\nd_head: 16\nmem_len: 9\nclamp_len: null\n",
    "recipe/small.yaml": "lr: 0.1\n",
    "recipe/large.yaml": "lr: 0.2\n",
    "data/text.yaml": "path: null\ndir: null\nbatch_size: 2\n",
    "data/recall.yaml": "n_symbols: 8\nbatch_size: 2\n",
    "experiment/both.yaml": "# @package _global_\ndefaults:\n  - override /model: large\n  - override /data: recall\n",
}


@dataclass(frozen=True)
class Project:
    """The probe's folder, and a working directory of one test's own."""

    root: Path
    cwd: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "probe.py"), *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.cwd,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def seen(self, *arguments: str) -> dict[str, Any]:
        """Run to success, and give what the only run folder holds."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        (path,) = self.cwd.rglob("seen.json")
        return read(path)

    def left(self) -> list[str]:
        return sorted(str(path.relative_to(self.cwd)) for path in self.cwd.rglob("*"))


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.fixture(scope="session")
def _probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("probe")
    (root / "probe.py").write_text(PROBE)
    for name, text in CONF.items():
        path = root / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def project(_probe: Path, tmp_path: Path) -> Project:
    cwd = tmp_path / "work"
    cwd.mkdir()
    return Project(root=_probe, cwd=cwd)
