"""The task that only memory solves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch

import transformer_xl as txl
from tests.conftest import QUIET, Outcome
from transformer_xl.data.recall import Task
from transformer_xl.run_folder import config_of

Run = Callable[..., Outcome]


@pytest.mark.slow
def test_with_memory_the_copies_are_known_and_without_it_nothing_is(tiny_run: Run) -> None:
    recall = ["experiment=recall", "trainer.accelerator=cpu", *QUIET]
    with_memory = tiny_run(*recall, name="with", base=False)
    assert with_memory.status == 0
    assert with_memory.summary["metrics"]["test"]["loss"] < 0.05
    assert with_memory.summary["metrics"]["test"]["accuracy"] > 0.99
    assert list(with_memory.values("val/memory_gain").values())[-1] > 1.5
    without = tiny_run(*recall, "model.mem_len=0", "trainer.max_steps=300", name="without", base=False)
    assert not without.values("val/memory_gain")
    assert without.summary["metrics"]["test"]["loss"] == pytest.approx(math.log(8), abs=0.03)
    assert without.summary["metrics"]["test"]["accuracy"] < 0.2


def test_accuracy_is_the_share_of_right_answers_and_is_logged_beside_the_loss(
    tiny_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["data.train_tokens=2000", "data.eval_tokens=400", "data.batch_size=4", "data.n_pairs=3"]
    model = ["model.n_layer=1", "model.d_model=16", "model.n_head=2", "model.d_head=8", "model.d_inner=32"]
    steps = ["trainer.max_steps=16", "trainer.val_check_interval=8", "optimizer.lr=0.02", "trainer.accelerator=cpu"]
    run = tiny_run("data=mqar", "data.vocab_size=8", "data.example_len=16", *sizes, *model, *steps, *QUIET, base=False)
    printed = capsys.readouterr().out
    assert list(run.values("val/accuracy")) == [8, 16]
    accuracy = run.summary["metrics"]["test"]["accuracy"]
    assert accuracy == run.values("test/accuracy")[16]
    assert re.search(r"accuracy +┃", printed)
    assert re.search(rf"│ test +│.* {accuracy:.4f} │", printed)
    task = Task(config=config_of(run.folder).data, seed=1)  # type: ignore[arg-type]
    source = task.lanes("test", batch_size=4, segment_len=16, evaluation=True)
    tokens, targets, resets = map(torch.from_numpy, source.read(epoch=0, lanes=range(4), start=0, stop=100))
    model_ = txl.load_model(run.folder)
    with torch.no_grad():
        log_probs = model_.log_probs(tokens, model_.empty_memory(4), resets).log_probs_BTV
    asked = targets != -100
    assert 0 < accuracy == pytest.approx((log_probs.argmax(-1) == targets)[asked].float().mean().item(), abs=1e-6)


def test_a_text_has_no_accuracy(tiny_run: Run) -> None:
    run = tiny_run("trainer.max_steps=1")
    assert "accuracy" not in (run.folder / "metrics.jsonl").read_text()
