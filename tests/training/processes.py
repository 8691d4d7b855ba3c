"""Runs of several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY_MODEL, Outcome, run_training, tiny_overrides
from tests.oracles.runs_support import SECONDS


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def exact_run(
    text_file: Path, tmp_path: Path, devices: int, *overrides: str, model: Sequence[str] = TINY_MODEL
) -> Outcome:
    folder = tmp_path / f"processes-{devices}"
    arguments = [
        *tiny_overrides(text_file, tmp_path, model),
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
    for name, value in one.checkpoint()["train_memory"].items():
        remembered = other.checkpoint()["train_memory"][name]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            torch.testing.assert_close(remembered, value, rtol=1e-6, atol=1e-9)
        else:
            assert torch.equal(remembered, value) if isinstance(value, torch.Tensor) else remembered == value, name
