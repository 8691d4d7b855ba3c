"""`compile=true`: the same run through one compiled graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import QUIET, TINY_MODEL, Outcome, run_training

Run = Callable[..., Outcome]
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
# an epoch is three segments, the last of them shorter; memory is full after the second
RECALL = ["data=recall", "data.block_len=5", "data.train_tokens=57", "data.eval_tokens=50", "data.batch_size=4"]
COMMON = [
    *TINY_MODEL,
    *QUIET,
    *RECALL,
    "data.segment_len=5",
    "trainer.accelerator=cpu",
    "trainer.precision=64-true",
    "trainer.max_steps=7",
    "trainer.val_check_interval=3",
    "trainer.enable_progress_bar=false",
    "scheduler.total_steps=10",
    "scheduler.warmup_steps=2",
    "optimizer.lr=0.01",
    "model.dropout=0",
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the folder of what has been compiled, so that it is compiled once."""
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture
def graphs(kernels: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Give a function that says how many graphs have been compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", kernels)
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def losses(outcome: Outcome) -> list[float | None]:
    assert outcome.status == 0, outcome.stderr
    return list(outcome.values("train/loss").values())


@pytest.mark.slow
@COMPILER
def test_a_compiled_run_is_the_same_run_by_one_graph(tiny_run: Run, graphs: Callable[[], int]) -> None:
    plain = tiny_run(*COMMON, "trainer.max_steps=10", name="plain", base=False)
    compiled = tiny_run(*COMMON, "compile=true", name="compiled", base=False)
    assert graphs() == 1
    assert losses(compiled) == pytest.approx(losses(plain)[:7], rel=1e-9)
    assert compiled.values("val/loss") == pytest.approx(
        {step: value for step, value in plain.values("val/loss").items() if step < 7} | compiled.values("val/loss"),
        rel=1e-9,
    )
    assert list(compiled.checkpoint()["state_dict"]) == list(plain.checkpoint()["state_dict"])

    for setting in ("true", "false"):
        shutil.copytree(compiled.folder, compiled.folder.parent / setting)
        folder = compiled.folder.parent / setting
        tiny_run(f"resume={folder}", "trainer.max_steps=10", f"compile={setting}", name=setting, base=False)
        assert losses(Outcome(folder, 0, "", "")) == pytest.approx(losses(plain), rel=1e-9)
    assert graphs() == 1


@pytest.mark.slow
@COMPILER
def test_two_processes_compile_each_for_itself(tmp_path: Path, kernels: str) -> None:
    settings = [
        *COMMON,
        "data.batch_size=8",
        "data.train_tokens=113",
        "data.eval_tokens=80",
        "trainer.limit_val_batches=0",
    ]
    plain = run_training([*settings, f"hydra.run.dir={tmp_path / 'plain'}"], tmp_path)
    two = [*settings, "compile=true", "trainer.devices=2", f"hydra.run.dir={tmp_path / 'two'}"]
    outcome = run_training(two, tmp_path, TORCHINDUCTOR_CACHE_DIR=kernels)
    assert losses(outcome) == pytest.approx(losses(plain), rel=1e-9)
