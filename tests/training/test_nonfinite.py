"""Losses, gradients, weights and memories that are not finite: what ends the run, what is saved."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from tests.conftest import Outcome, tiny_overrides
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


TWO_PROCESSES = """
import math
from transformer_xl.commands.train import main
from transformer_xl.training.module import LanguageModule

original = LanguageModule.training_step

def training_step(module, batch, batch_idx):
    result = original(module, batch, batch_idx)
    if module.global_rank == 1 and batch.step == 3:
        result = result * math.nan
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
def test_two_processes_stop_at_the_step_in_which_one_of_them_meets_no_number(text_file: Path, tmp_path: Path) -> None:
    outcome = two_processes(text_file, tmp_path, *EVERY_STEP)
    assert outcome.status == 2, outcome.stderr
    assert outcome.stderr.count("gradient norm nan at step 3") == 1
    assert outcome.checkpoint()["global_step"] == 2
