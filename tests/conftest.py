"""Runs of the real program at toy size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_xl.model_config import TransformerConfig

torch.set_num_threads(1)  # at toy size a second thread only waits
REPOSITORY = Path(__file__).parents[1]

TINY_MODEL = [
    "model.n_layer=2",
    "model.d_model=16",
    "model.n_head=2",
    "model.d_head=8",
    "model.d_inner=32",
    "model.mem_len=7",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


QUIET = [
    "logger=none",
    "callbacks.throughput.peak_flops=1e11",
    "callbacks.report.memory_tokens=0",
    "callbacks.sample.n_tokens=0",
]


def tiny_model_config(**changes: Any) -> TransformerConfig:
    values: dict[str, Any] = {
        "kind": "transformer",
        "position": {"kind": "relative"},
        "norm": "layer",
        "feed_forward": "relu",
        "n_layer": 2,
        "d_model": 16,
        "n_head": 2,
        "d_head": 8,
        "d_inner": 32,
        "dropout": 0.0,
        "dropatt": 0.0,
        "variational_dropout": False,
        "mem_len": 7,
        "clamp_len": None,
        "same_length": False,
        "pre_norm": False,
        "untie_r": False,
        "attention": "auto",
        "d_embed": None,
        "cutoffs": [],
        "div_val": 1,
        "tie_weights": True,
        "tie_projs": "tails",
        "init_std": 0.02,
        "proj_init_std": 0.01,
    }
    return TransformerConfig(**{**values, **changes})


@dataclass(frozen=True)
class Outcome:
    """What a run of `train.py` left."""

    folder: Path
    status: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def values(self, name: str) -> dict[int, float | None]:
        return read_values(self.folder, name)

    def checkpoint(self, name: str = "last") -> dict[str, Any]:
        return torch.load(self.folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def read_values(folder: Path, name: str) -> dict[int, float | None]:
    """Read one metric of `metrics.jsonl` by step; a step that stands twice is a mistake."""
    values: dict[int, float | None] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["name"] == name:
            assert entry["step"] not in values
            values[entry["step"]] = entry["value"]
    return values


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 kB of text that every Python has."""
    path = tmp_path_factory.mktemp("text") / "argparse.txt"
    source = Path(json.__file__).parents[1] / "argparse.py"
    path.write_text(source.read_text(encoding="utf-8")[:40_000], encoding="utf-8")
    return path


@pytest.fixture
def tiny_run(text_file: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Give a function that trains at toy size in this process and returns what the run left."""
    from transformer_xl.commands import cli
    from transformer_xl.commands.train import train_by_command as train

    def run(*overrides: str, name: str = "run", base: bool = True) -> Outcome:
        folder = tmp_path / name
        arguments = [*(tiny_overrides(text_file, tmp_path) if base else []), *overrides]
        if not any(argument.startswith("resume=") for argument in arguments):
            arguments.append(f"hydra.run.dir={folder}")
        status = cli.run("train", train, arguments)
        return Outcome(folder, status, "", "")

    return run


def tiny_overrides(text_file: Path, cache: Path) -> list[str]:
    return [
        "data=text",
        f"data.path={text_file}",
        f"data.cache_dir={cache / 'corpora'}",
        "data.batch_size=4",
        "data.segment_len=5",
        *TINY_MODEL,
        *QUIET,
        "trainer.accelerator=cpu",
        "trainer.precision=32-true",
        "trainer.max_steps=6",
        "trainer.val_check_interval=3",
        "trainer.limit_val_batches=4",
        "trainer.limit_test_batches=2",
        "trainer.log_every_n_steps=2",
        "scheduler.warmup_steps=2",
        "optimizer.lr=0.01",
        "trainer.enable_progress_bar=false",
    ]


def start_training(arguments: list[str], cwd: Path, **environment: str | None) -> subprocess.Popen[str]:
    """Start `train.py` as a user does; a variable that is None is not set."""
    # a test of this process may have started W&B's own process, which a program that is started anew has none of
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_SERVICE": None, **environment}
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "train.py"), *arguments],
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_training(arguments: list[str], cwd: Path, **environment: str | None) -> Outcome:
    """Run `train.py` as a user does, and wait for it."""
    process = start_training(arguments, cwd, **environment)
    stdout, stderr = process.communicate(timeout=300)
    folders = [a.partition("=")[2] for a in arguments if a.startswith(("hydra.run.dir=", "resume="))]
    return Outcome(Path(folders[-1]) if folders else cwd, process.returncode, stdout, stderr)
