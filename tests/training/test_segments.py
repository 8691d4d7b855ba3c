"""Runs with segments of varying length, half of each trained, and windows instead of a memory in evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Outcome

Run = Callable[..., Outcome]
VARYING = ["data.segment_len_sd=2", "data.half_segments=0.3", "data.loss=half"]


def tokens_by_step(folder: Path) -> dict[int, int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["tokens"] for line in map(json.loads, lines)}


def test_what_half_a_loss_leaves_out_changes_the_loss_and_nothing_that_is_read(tiny_run: Run) -> None:
    full = tiny_run("optimizer.lr=0", name="full")
    half = tiny_run("optimizer.lr=0", "data.loss=half", name="half")
    assert all(half.values("train/loss")[step] != loss for step, loss in full.values("train/loss").items())
    assert half.values("val/loss") == full.values("val/loss")
    assert half.summary["metrics"]["valid"]["tokens"] == full.summary["metrics"]["valid"]["tokens"]
    assert tokens_by_step(half.folder) == tokens_by_step(full.folder)
    memory, other = full.checkpoint()["train_memory"], half.checkpoint()["train_memory"]
    assert torch.equal(memory["hidden_LBMD"], other["hidden_LBMD"])


@pytest.mark.slow
def test_a_run_counts_each_prediction_once_in_windows(tiny_run: Run) -> None:
    whole = ["trainer.limit_test_batches=null", "callbacks.report.memory_tokens=100000"]
    windows = tiny_run(*whole, "eval.stride=2", name="windows").summary["metrics"]
    segments = tiny_run(*whole, name="segments").summary["metrics"]
    assert windows["test"]["tokens"] == segments["test"]["tokens"]
    assert windows["test"]["loss"] != pytest.approx(segments["test"]["loss"], rel=1e-6)
    assert windows["test"]["loss"] == pytest.approx(windows["test_beginning_memory_0"]["loss"], rel=1e-6)
    apart = tiny_run(*whole, "eval.stride=5", name="apart").summary["metrics"]["test"]
    assert apart["loss"] == pytest.approx(segments["test_beginning_memory_0"]["loss"], rel=1e-6)
