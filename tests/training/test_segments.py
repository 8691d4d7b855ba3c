"""Runs with segments of varying length, half of each trained, and windows instead of a memory in evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Outcome, read_values
from tests.training.processes import assert_same_run, exact_run

Run = Callable[..., Outcome]
VARYING = ["data.segment_len_sd=2", "data.half_segments=0.3", "data.loss=half"]
DROPOUT = ["model.dropout=0.2", "model.dropatt=0.1"]


def tokens_by_step(folder: Path) -> dict[int, int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["tokens"] for line in map(json.loads, lines)}


def test_a_resumed_run_reads_the_segments_of_the_run_never_stopped(tiny_run: Run) -> None:
    """Three segments an epoch, two a step: the stop is within an epoch."""
    together = ["data.lane_chunks=2", "trainer.accumulate_grad_batches=2", "trainer.limit_train_batches=3"]
    settings = [*VARYING, *DROPOUT, *together, "trainer.val_check_interval=4", "scheduler.total_steps=9"]
    whole = tiny_run(*settings, "trainer.max_steps=9", name="whole")
    stopped = tiny_run(*settings, "trainer.max_steps=4", name="stopped")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=9", base=False).status == 0
    assert len(whole.values("train/loss")) == 9
    assert read_values(stopped.folder, "train/loss") == whole.values("train/loss")
    weights = stopped.checkpoint()["state_dict"]
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.checkpoint()["state_dict"].items())
    read = tokens_by_step(whole.folder)
    assert tokens_by_step(stopped.folder) == read
    # two segments of 4 lanes a step; segment_len is 5, so none is cut shorter, and some are longer
    assert all(4 * 2 * 5 * step < tokens <= 4 * 2 * 11 * step for step, tokens in read.items() if step > 2)


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
def test_two_processes_give_the_numbers_of_one(text_file: Path, tmp_path: Path) -> None:
    settings = [*VARYING, "data.lane_chunks=2", "trainer.limit_test_batches=5", "eval.stride=2"]
    one = exact_run(text_file, tmp_path, 1, *settings)
    two = exact_run(text_file, tmp_path, 2, *settings)
    assert_same_run(one, two)
    # the first window of 5 lanes counts its 5 positions, the other four count 2
    assert two.summary["metrics"]["test"]["tokens"] == 5 * (5 + 4 * 2)


def test_a_run_counts_each_prediction_once_in_windows(tiny_run: Run) -> None:
    whole = ["trainer.limit_test_batches=null", "callbacks.report.memory_tokens=100000"]
    windows = tiny_run(*whole, "eval.stride=2", name="windows").summary["metrics"]
    segments = tiny_run(*whole, name="segments").summary["metrics"]
    assert windows["test"]["tokens"] == segments["test"]["tokens"]
    assert windows["test"]["loss"] != pytest.approx(segments["test"]["loss"], rel=1e-6)
    assert windows["test"]["loss"] == pytest.approx(windows["test_beginning_memory_0"]["loss"], rel=1e-6)
    apart = tiny_run(*whole, "eval.stride=5", name="apart").summary["metrics"]["test"]
    assert apart["loss"] == pytest.approx(segments["test_beginning_memory_0"]["loss"], rel=1e-6)


def test_epochs_of_varying_segments_hold_what_others_do_in_another_number_of_steps(tiny_run: Run) -> None:
    epochs = ["data.batch_size=200", "trainer.max_epochs=2", "trainer.max_steps=-1"]
    equal, varying = tiny_run(*epochs, name="equal"), tiny_run(*epochs, *VARYING, name="varying")
    read, read_by_varying = tokens_by_step(equal.folder), tokens_by_step(varying.folder)
    assert read[max(read)] == read_by_varying[max(read_by_varying)]
    assert max(read) != max(read_by_varying)
