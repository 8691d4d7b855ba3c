"""Runs of the real program at toy size."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracles.tiny import ATTENTION, QUIET, SIZE, Run, read_values
from transformer_xl import registry
from transformer_xl.model_config import TransformerConfig

__all__ = ["QUIET", "REPOSITORY", "TINY_MODEL", "Outcome", "read_values", "run_training", "tiny_overrides"]

REPOSITORY = Path(__file__).parents[1]
torch.set_num_threads(1)  # at toy size a second thread only waits
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: its kernels then run on a CPU
TINY_MODEL = [*SIZE, *ATTENTION]
PARTS = REPOSITORY / "examples" / "parts"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _as_begun_without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which plugins an earlier test has imported: printed commands would name them."""
    monkeypatch.setattr(registry, "loaded", {})


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


class Outcome(Run):
    """What a run of `train.py` left."""

    def checkpoint(self, name: str = "last") -> dict[str, Any]:
        return torch.load(self.folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 kB of text that every Python has."""
    path = tmp_path_factory.mktemp("text") / "argparse.txt"
    source = Path(json.__file__).parents[1] / "argparse.py"
    path.write_text(source.read_text(encoding="utf-8")[:40_000], encoding="utf-8")
    return path


@pytest.fixture
def tiny_run(text_file: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that trains at toy size in this process and returns what the run left."""
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


def tiny_overrides(text_file: Path, cache: Path, model: Sequence[str] = TINY_MODEL) -> list[str]:
    return [
        "data=text",
        f"data.path={text_file}",
        f"data.cache_dir={cache / 'corpora'}",
        "data.batch_size=4",
        "data.segment_len=5",
        *model,
        *QUIET,
        "trainer.max_steps=6",
        "trainer.val_check_interval=3",
        "trainer.limit_val_batches=4",
        "trainer.limit_test_batches=2",
        "trainer.log_every_n_steps=2",
        "scheduler.warmup_steps=2",
        "optimizer.lr=0.01",
    ]


def run_training(arguments: list[str], cwd: Path, **environment: str | None) -> Outcome:
    """Run `train.py` as a user does, and wait for it."""
    from tests.oracles.runs_support import SECONDS, program  # not before the oracles ask for its assertions in words

    folders = [a.partition("=")[2] for a in arguments if a.startswith(("hydra.run.dir=", "resume="))]
    with program("train", *arguments, cwd=cwd, **environment) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    return Outcome(Path(folders[-1]) if folders else cwd, process.returncode, stdout, stderr)


def plugins(*names: str) -> str:
    return f"plugins=[{','.join(str(PARTS / f'{name}.py') for name in names)}]"


@contextmanager
def parts_forgotten() -> Iterator[None]:
    """Forget the parts that were registered in this context, as a process does."""
    from hydra.core.config_store import ConfigStore

    from transformer_xl.commands.compose import compose

    for kind in registry.HOMES:
        registry.names(kind)  # the shipped parts stay
    compose()  # Hydra's own choices too
    shipped = {  # without what other tests have registered in this process
        kind: {name: entry for name, entry in found.items() if entry not in registry.outside(kind)}
        for kind, found in registry._entries.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))
        patch.setattr(registry, "_entries", shipped)
        patch.setattr(sys, "path", [*sys.path])
        yield
    for part in PARTS.glob("*.py"):
        sys.modules.pop(part.stem, None)
