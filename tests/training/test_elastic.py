"""Checkpoints go on with another number of processes: the same lanes, dealt out anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import read_values
from tests.training.forked import Stop
from tests.training.kills import NEVER, STATUSES, ToyRuns

FIGURES = ("train/loss", "train/grad_norm", "lr", "val/loss", "test/loss")

UNEVEN = [
    "data.batch_size=7",
    "eval.batch_size=5",
    "trainer.limit_train_batches=23",
    "trainer.limit_val_batches=7",
    "trainer.val_check_interval=50",
    "callbacks.checkpoint.every_n_train_steps=1000",
    "trainer.log_every_n_steps=1",
]
"""Seven lanes are even on no number of processes from 2 to 4, nor are five."""

DOUBLE = [*UNEVEN, "trainer.precision=64-true"]
STOPPED_AT = 15
IN_CHUNKS = [*DOUBLE, "data.lane_chunks=2", f"trainer.max_steps={STOPPED_AT + 20}", "trainer.val_check_interval=10"]


def stop_and_move(toy_runs: ToyRuns, overrides: list[str], *, before: int, after: list[int]) -> dict[int, Path]:
    """Stop a run of `before` processes at a step, and let copies of its folder go on with other numbers of them."""
    name = f"{before}-{abs(hash(tuple(overrides)))}"
    stopped = toy_runs.folder / f"elastic-{name}"
    stop = Stop(number=2 * STOPPED_AT, moment="optimizer_step", how="SIGTERM")
    life = toy_runs.go_on(stopped, *overrides, stop=stop, processes=before)
    assert life.status == STATUSES["SIGTERM"], life.printed
    folders = {}
    for processes in after:
        folders[processes] = toy_runs.folder / f"elastic-{name}-to-{processes}"
        shutil.copytree(stopped, folders[processes])
        arguments = [f"resume={folders[processes]}", f"trainer.devices={processes}"]
        life = toy_runs.live(arguments, stop=NEVER, processes=processes)
        assert life.status == 0, life.printed
        assert f"resumed  at step {STOPPED_AT} of " in life.printed
    return folders


def assert_close(folder: Path, whole: Path, *, bound: float) -> None:
    """Compare figures, weights, optimizer state, schedule and every lane's memory."""
    for name in FIGURES:
        values = read_values(whole, name)
        assert values
        assert read_values(folder, name) == pytest.approx(values, rel=bound, abs=bound), name
    one, other = (torch.load(run / "checkpoints" / "last.ckpt", weights_only=True) for run in (folder, whole))
    parts = ("state_dict", "optimizer_states", "schedule", "train_memory", "callbacks", "global_step", "loops")
    for part in parts:
        assert_near(one[part], other[part], bound=bound, at=part)


def assert_near(one: Any, other: Any, *, bound: float, at: str) -> None:
    """Compare nested containers, numbers and tensors up to a bound."""
    if isinstance(other, dict):
        assert one.keys() == other.keys(), at
        for key in other:
            assert_near(one[key], other[key], bound=bound, at=f"{at}/{key}")
    elif isinstance(other, list | tuple):
        assert len(one) == len(other), at
        for number, value in enumerate(other):
            assert_near(one[number], value, bound=bound, at=f"{at}/{number}")
    elif isinstance(other, torch.Tensor) and other.is_floating_point():
        torch.testing.assert_close(
            one, other, rtol=0, atol=bound * max(1.0, float(other.abs().max())), msg=lambda m: at + m
        )
    elif isinstance(other, torch.Tensor):
        assert torch.equal(one, other), at
    elif isinstance(other, float):
        assert one == pytest.approx(other, rel=bound, abs=bound), at
    else:
        assert one == other, at


@pytest.mark.slow
def test_one_process_goes_on_as_two(toy_runs: ToyRuns) -> None:
    whole = toy_runs.whole(*IN_CHUNKS)
    folders = stop_and_move(toy_runs, IN_CHUNKS, before=1, after=[2])
    assert_close(folders[2], whole, bound=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 3)])
def test_an_lstm_goes_on_with_other_processes(toy_runs: ToyRuns, before: int, after: int) -> None:
    overrides = ["model=lstm", "model.d_model=16", "model.n_layer=2", "model.dropout=0", *IN_CHUNKS]
    whole = toy_runs.whole(*overrides)
    folders = stop_and_move(toy_runs, overrides, before=before, after=[after])
    assert_close(folders[after], whole, bound=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_every_number_of_processes_goes_on_as_every_other_for_200_steps_in_float64(
    toy_runs: ToyRuns, before: int
) -> None:
    overrides = [*DOUBLE, f"trainer.max_steps={STOPPED_AT + 200}"]
    whole = toy_runs.whole(*overrides)
    others = [processes for processes in (1, 2, 3, 4) if processes != before]
    for folder in stop_and_move(toy_runs, overrides, before=before, after=others).values():
        assert_close(folder, whole, bound=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_every_number_of_processes_goes_on_as_every_other_for_20_steps_in_float32(
    toy_runs: ToyRuns, before: int
) -> None:
    overrides = [*UNEVEN, "data.batch_size=5", f"trainer.max_steps={STOPPED_AT + 20}"]
    whole = toy_runs.whole(*overrides)
    others = [processes for processes in (1, 2, 3, 4) if processes != before]
    for folder in stop_and_move(toy_runs, overrides, before=before, after=others).values():
        for name in ("train/loss", "val/loss", "test/loss"):
            assert read_values(folder, name) == pytest.approx(read_values(whole, name), abs=1e-5), name


def test_another_batch_or_segment_is_refused_with_both_numbers(toy_runs: ToyRuns) -> None:
    whole = toy_runs.whole(*IN_CHUNKS)
    for key, value, before in (("data.batch_size", 9, 7), ("data.segment_len", 6, 5)):
        life = toy_runs.live([f"resume={whole}", f"{key}={value}"])
        assert life.status == 2
        assert f"{key} is {value}" in life.printed
        assert f"was {before}" in life.printed
        assert "init_from" in life.printed
        assert life.printed.count("\n") == 1
    assert json.loads((whole / "summary.json").read_text())["status"] == "finished"
