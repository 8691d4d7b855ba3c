"""Losses, gradients, weights and memories that are not finite: what ends the run, what is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import pytest

from tests.conftest import Outcome
from transformer_xl.training.module import LanguageModule

Run = Callable[..., Outcome]
Poison = Callable[..., None]
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


def test_stop_writes_the_steps_before_and_names_step_loss_norm_and_checkpoint(
    tiny_run: Run, poison: Poison, capsys: pytest.CaptureFixture[str]
) -> None:
    poison({4})
    outcome = tiny_run("trainer.log_every_n_steps=6")
    error = capsys.readouterr().err
    assert outcome.status == 2
    assert error.count("\n") == 1
    loss = outcome.values("train/loss")
    assert list(loss) == [1, 2, 3]
    words = ["the gradient norm nan at step 4", "the loss is 5."]
    assert all(word in error for word in [*words, f"{outcome.folder}/checkpoints/last.ckpt"]), error
    assert outcome.checkpoint()["global_step"] == 3


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
