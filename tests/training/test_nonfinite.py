"""Losses, gradients, weights and memories that are not finite: what is left out, what ends the run, what is saved."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import TINY_MODEL, Outcome, read_values, tiny_overrides
from transformer_xl.errors import UserError
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.memory import SlotMemory, memory_from_state_dict
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.nonfinite import (
    NonFiniteSteps,
    NotFiniteError,
    leave_out_update,
    prepare_to_leave_out,
)
from transformer_xl.training.optim import AdamConfig, LambConfig, SgdConfig, make_optimizer

Run = Callable[..., Outcome]
Poison = Callable[..., None]
SKIP = "callbacks.nonfinite.action=skip"
EVERY_STEP = ["callbacks.checkpoint.every_n_train_steps=1", "trainer.log_every_n_steps=1"]
OVERFLOWS = [
    *("optimizer=sgd", "scheduler=constant", "scheduler.warmup_steps=0", "trainer.gradient_clip_val=null"),
    "trainer.limit_val_batches=0",
]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """Give a function that puts a number into one gradient at some steps of the runs that follow."""

    def at(steps: Collection[int], value: float = math.nan) -> None:
        def on_after_backward(module: LanguageModule) -> None:
            if module.trainer.global_step + 1 in steps:
                gradient = next(module.parameters()).grad
                assert gradient is not None
                gradient.view(-1)[3] = value

        monkeypatch.setattr(LanguageModule, "on_after_backward", on_after_backward)

    return at


def tensors(node: Any) -> list[Tensor]:
    """All tensors in nested containers, in order."""
    if isinstance(node, Tensor):
        return [node]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return [tensor for child in children for tensor in tensors(child)]


def assert_same(one: Any, other: Any) -> None:
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    assert pairs
    assert all(torch.equal(first, second) for first, second in pairs)


def test_stop_writes_the_steps_before_and_names_step_loss_norm_checkpoint_and_skip(
    tiny_run: Run, poison: Poison, capsys: pytest.CaptureFixture[str]
) -> None:
    poison({4})
    outcome = tiny_run("trainer.log_every_n_steps=6")
    error = capsys.readouterr().err
    assert outcome.status == 2
    assert error.count("\n") == 1
    loss = outcome.values("train/loss")
    assert list(loss) == [1, 2, 3]
    words = ["the gradient norm nan at step 4", "the loss is 5.", f"resume={outcome.folder} {SKIP}"]
    assert all(word in error for word in [*words, f"{outcome.folder}/checkpoints/last.ckpt"]), error
    assert outcome.checkpoint()["global_step"] == 3
    assert tiny_run(f"resume={outcome.folder}", SKIP, base=False).status == 0
    assert outcome.values("train/loss")[4] is None
    assert outcome.summary["status"] == "finished"


def test_weights_that_overflow_are_never_saved(tiny_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The first step's loss and gradient are finite, and its update is not."""
    outcome = tiny_run(*OVERFLOWS, "optimizer.lr=1e39", *EVERY_STEP)
    error = capsys.readouterr().err
    assert outcome.status == 2
    assert error.count("\n") == 1
    assert "weights are not finite after step 1" in error
    assert "there is no checkpoint yet" in error
    assert list(outcome.values("train/loss")) == [1]
    assert not list(outcome.folder.rglob("*.ckpt"))


def optimizer_of(name: str, weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    shared: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "decay_embeddings": False}
    config: AdamConfig | LambConfig | SgdConfig
    if name.startswith("sgd"):
        config = SgdConfig(kind="sgd", momentum=0.9 if name == "sgd-momentum" else 0.0, **shared)
    elif name == "lamb":
        config = LambConfig(kind="lamb", beta1=0.9, beta2=0.99, eps=1e-6, **shared)
    else:
        config = AdamConfig(kind=name, beta1=0.9, beta2=0.99, eps=1e-8, **shared)  # type: ignore[arg-type]
    optimizer = make_optimizer(config, [{"params": weights, "weight_decay": 0.1}], fused=True)
    prepare_to_leave_out(optimizer)
    return optimizer


def weights_after(optimizer_name: str, values: list[float]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and the optimizer's tensors after steps whose gradients hold these values; all seen as a run does."""
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 24).view(4, 6)), torch.nn.Parameter(torch.ones(5))]
    optimizer = optimizer_of(optimizer_name, weights)
    for value in values:
        for weight in weights:
            weight.grad = torch.full_like(weight, 0.5)
        weights[0].grad.view(-1)[3] = value  # type: ignore[union-attr]
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        leave_out_update(optimizer, norm)
        optimizer.step()
    state = [optimizer.state[weight] for weight in weights]
    return [weight.detach().clone() for weight in weights], tensors(state)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "sgd-momentum", "lamb"])
def test_an_update_left_out_leaves_no_trace_wherever_it_is(optimizer: str, value: float) -> None:
    """Neither in weights nor in moments and step counts, so that what follows is as if it had not been."""
    weights, state = weights_after(optimizer, [0.3, -0.2, 0.7])
    start, _ = weights_after(optimizer, [])
    assert not torch.equal(weights[0], start[0])
    for spoilt in ([value, 0.3, -0.2, 0.7], [0.3, value, value, -0.2, 0.7], [0.3, -0.2, 0.7, value]):
        left_out_weights, left_out_state = weights_after(optimizer, spoilt)
        assert_same(left_out_weights, weights)
        assert all(torch.equal(one, other) for one, other in zip(left_out_state, state, strict=True))


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        (["trainer.gradient_clip_val=0.1"], math.nan),
        (["trainer.gradient_clip_val=0.1", "trainer.gradient_clip_algorithm=value"], math.inf),
        (["trainer.gradient_clip_val=null"], math.inf),
        (["optimizer=lamb", "data.lane_chunks=2"], math.nan),
    ],
)
def test_a_skipped_step_of_a_run_leaves_weights_and_moments_as_they_were(
    tiny_run: Run, poison: Poison, settings: list[str], value: float
) -> None:
    settings = [SKIP, *settings, "scheduler.total_steps=6", "trainer.limit_val_batches=0"]
    before = tiny_run(*settings, "trainer.max_steps=2", name="before").checkpoint()
    poison({3}, value)
    outcome = tiny_run(*settings, "trainer.max_steps=3", name="after")
    assert outcome.status == 0
    assert outcome.values("train/loss")[3] is None
    after = outcome.checkpoint()
    assert after["global_step"] == 3
    assert_same(after["state_dict"], before["state_dict"])
    assert_same(after["optimizer_states"][0]["state"], before["optimizer_states"][0]["state"])


def test_skipped_steps_are_null_counted_and_named_once_an_episode(
    tiny_run: Run, poison: Poison, capsys: pytest.CaptureFixture[str]
) -> None:
    poison({2, 3, 5}, math.inf)
    outcome = tiny_run(SKIP, "trainer.log_every_n_steps=2", "callbacks.weight_average.start_step=2")
    assert outcome.status == 0
    losses = outcome.values("train/loss")
    assert [step for step, loss in losses.items() if loss is None] == [2, 3, 5]
    assert outcome.values("train/skipped_steps") == {2: 1, 4: 2, 6: 3}
    assert outcome.values("train/grad_norm")[2] is None
    notes = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert [note.partition(": ")[0].partition("gradient norm ")[2] for note in notes] == [
        "inf at step 2",
        "inf at step 5",
    ]
    assert all(tensor.isfinite().all() for tensor in tensors(outcome.checkpoint()["averaged"]))


def test_a_run_without_such_steps_is_the_same_to_the_bit_with_skip(tiny_run: Run) -> None:
    settings = ["model.dropout=0.2", "data.lane_chunks=2", "trainer.accumulate_grad_batches=2"]
    plain, skips = tiny_run(*settings, name="plain"), tiny_run(*settings, SKIP, name="skips")
    assert skips.values("train/loss") == plain.values("train/loss")
    assert_same(skips.checkpoint()["state_dict"], plain.checkpoint()["state_dict"])
    assert set(skips.values("train/skipped_steps").values()) == {0}
    assert plain.values("train/skipped_steps") == {}


def test_too_many_skipped_steps_in_a_row_end_the_run_also_across_a_resume(
    tiny_run: Run, poison: Poison, capsys: pytest.CaptureFixture[str]
) -> None:
    poison({2, 4, 5, 6})
    few = [SKIP, "callbacks.nonfinite.max_in_a_row=3", *EVERY_STEP, "trainer.val_check_interval=20"]
    outcome = tiny_run(*few, "trainer.max_steps=5", "scheduler.total_steps=20")
    assert outcome.status == 0
    assert outcome.checkpoint()["callbacks"]["Recorder"]["nonfinite"] == {"skipped": 3, "in_a_row": 2}
    capsys.readouterr()
    assert tiny_run(f"resume={outcome.folder}", "trainer.max_steps=20", base=False).status == 2
    error = capsys.readouterr().err
    assert "at step 6" in error
    assert "callbacks.nonfinite.max_in_a_row is 3" in error
    assert SKIP not in error
    assert outcome.checkpoint()["global_step"] == 5


@pytest.mark.parametrize("stop", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_with_skipped_steps_stopped_and_resumed_is_the_run_never_stopped(
    tiny_run: Run, poison: Poison, stop: int
) -> None:
    poison({2, 3, 5})
    settings = [SKIP, "model.dropout=0.2", "trainer.log_every_n_steps=4", "trainer.max_steps=8"]
    settings += ["trainer.val_check_interval=8", "trainer.gradient_clip_val=0.1"]
    whole = tiny_run(*settings, name="whole")
    stopped = tiny_run(*settings, f"trainer.max_steps={stop}", "scheduler.total_steps=8", name="stopped")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=8", base=False).status == 0
    for name in ("train/loss", "train/skipped_steps", "train/clipped_share", "train/grad_norm"):
        lengthened = {step: value for step, value in read_values(stopped.folder, name).items() if step % 4 == 0}
        assert lengthened == {step: value for step, value in whole.values(name).items() if step % 4 == 0}
    assert stopped.values("train/loss") == whole.values("train/loss")
    assert_same(stopped.checkpoint()["state_dict"], whole.checkpoint()["state_dict"])
    assert_same(stopped.checkpoint()["optimizer_states"], whole.checkpoint()["optimizer_states"])


def test_a_loss_that_overflows_with_a_finite_gradient_is_left_out_too(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LanguageModel.nll

    def infinite(model: LanguageModel, *args: Any) -> Any:
        result = original(model, *args)
        return result._replace(nll_BT=result.nll_BT + math.inf) if model.training else result

    settings = [SKIP, "trainer.max_steps=2", "trainer.limit_val_batches=0", "callbacks.nonfinite.max_in_a_row=9"]
    before = tiny_run(*settings, "optimizer.lr=0", name="still").checkpoint()["state_dict"]
    monkeypatch.setattr(LanguageModel, "nll", infinite)
    outcome = tiny_run(*settings, name="skips")
    assert list(outcome.values("train/loss").values()) == [None, None]
    assert_same(outcome.checkpoint()["state_dict"], before)


@pytest.mark.parametrize("model", ["txl_tiny", "lstm"])
def test_a_memory_that_is_not_finite_is_emptied_and_the_other_lanes_keep_theirs(
    tiny_run: Run, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    shape = [
        argument for argument in TINY_MODEL if model != "lstm" or ("head" not in argument and "inner" not in argument)
    ]
    base = [argument for argument in tiny_overrides(text_file, tmp_path) if argument not in TINY_MODEL]
    base += [f"model={model}", *shape, SKIP, "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
    original = LanguageModel.nll
    calls = 0

    def spoil_lane_1_of_step_2(model: LanguageModel, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(model, *args)
        if calls == 2:
            rows_by_lane(result.memory)[1, -1, -1, -1] = math.nan
        return result

    def memory_after(step: int, name: str) -> Any:
        settings = [f"trainer.max_steps={step}", "scheduler.total_steps=9"]
        outcome = tiny_run(*base, *settings, name=name, base=False)
        assert outcome.status == 0
        return memory_from_state_dict(outcome.checkpoint()["train_memory"])

    plain = memory_after(2, "plain")
    monkeypatch.setattr(LanguageModel, "nll", spoil_lane_1_of_step_2)
    spoilt = memory_after(2, "spoilt")
    calls = 0
    later = memory_after(4, "later")
    rows, plain_rows = rows_by_lane(spoilt), rows_by_lane(plain)
    assert not rows[1].any()
    assert plain_rows[1].any()
    assert torch.equal(rows[[0, 2, 3]], plain_rows[[0, 2, 3]])
    if isinstance(spoilt, SlotMemory):
        assert spoilt.length_B.tolist() == [7, 0, 7, 7]
    assert rows_by_lane(later)[1].any()
    assert rows_by_lane(later).isfinite().all()


def rows_by_lane(memory: Any) -> Tensor:
    """View a memory's numbers with the lanes first."""
    return memory.rows.movedim(1, 0) if isinstance(memory, SlotMemory) else memory.state_KLBD.movedim(2, 0)


TWO_PROCESSES = """
import math
from transformer_xl.commands.train import main
from transformer_xl.training.module import LanguageModule

original = LanguageModule.training_step

def training_step(module, batch, batch_idx):
    result = original(module, batch, batch_idx)
    if module.global_rank == 1 and batch.step == 3:
        result["loss"] = result["loss"] * math.nan
    return result

LanguageModule.training_step = training_step
main()
"""


def two_processes(text_file: Path, tmp_path: Path, *overrides: str) -> Outcome:
    """Run with a loss in the second process that is no number, at step 3."""
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TWO_PROCESSES)
    settings = [*tiny_overrides(text_file, tmp_path), "trainer.devices=2", "trainer.precision=64-true", *overrides]
    command = [sys.executable, str(script), *settings, f"hydra.run.dir={folder}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    return Outcome(folder, done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_two_processes_leave_out_the_step_in_which_one_of_them_meets_no_number(text_file: Path, tmp_path: Path) -> None:
    outcome = two_processes(text_file, tmp_path, SKIP)
    assert outcome.status == 0, outcome.stderr
    assert [step for step, loss in outcome.values("train/loss").items() if loss is None] == [3]
    assert outcome.stdout.count("left out") == 1
    assert all(tensor.isfinite().all() for tensor in tensors(outcome.checkpoint()["state_dict"]))


@pytest.mark.slow
def test_two_processes_stop_at_the_step_in_which_one_of_them_meets_no_number(text_file: Path, tmp_path: Path) -> None:
    outcome = two_processes(text_file, tmp_path, *EVERY_STEP)
    assert outcome.status == 2, outcome.stderr
    assert outcome.stderr.count("gradient norm nan at step 3") == 1
    assert outcome.checkpoint()["global_step"] == 2


def test_a_step_that_counts_nothing_neither_ends_nor_lengthens_a_row(tmp_path: Path) -> None:
    steps = NonFiniteSteps(skips=True, max_in_a_row=2, folder=tmp_path)
    assert steps.is_left_out(1, loss=math.nan, gradient_norm=1.0)
    assert not steps.is_left_out(2, loss=None, gradient_norm=None)
    with pytest.raises(NotFiniteError, match="number 2 in a row"):
        steps.is_left_out(3, loss=1.0, gradient_norm=math.inf)
    assert issubclass(NotFiniteError, UserError)


def test_a_norm_that_a_gradient_scaler_answers_for_is_not_judged(tmp_path: Path) -> None:
    steps = NonFiniteSteps(skips=False, max_in_a_row=1, folder=tmp_path)
    assert not steps.is_left_out(1, loss=1.0, gradient_norm=None)
    with pytest.raises(NotFiniteError, match="the loss is inf"):
        steps.is_left_out(2, loss=math.inf, gradient_norm=None)
