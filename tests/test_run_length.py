"""Lengths of a run, from configuration and corpus together: 2 lanes of 100 positions, segments of about 10."""

from __future__ import annotations

import pytest
import torch

from tests.test_configs import composed
from transformer_xl.data.recall import Task
from transformer_xl.data_config import RecallConfig
from transformer_xl.errors import UserError
from transformer_xl.run_length import RunLength, run_length, with_precision

SIZES = ["data.batch_size=2", "data.segment_len=10", "data.train_tokens=200", "data.eval_tokens=100"]
VARYING = ["data.segment_len_sd=2", "data.half_segments=0.3"]
EPOCHS = ["trainer.max_steps=-1", "trainer.max_epochs=3"]


def planned(*overrides: str) -> RunLength:
    config = composed("data=recall", "data.block_len=5", *SIZES, *overrides)
    assert isinstance(config.data, RecallConfig)
    return run_length(config, Task(config=config.data, seed=config.seed))


def counts(plan: RunLength) -> list[int]:
    return [plan.layout.count(epoch) for epoch in range(9)]


def test_equal_segments_make_equal_epochs() -> None:
    plan = planned(*EPOCHS, "trainer.accumulate_grad_batches=4")
    assert counts(plan) == [10] * 9
    assert (plan.layout.count(0), plan.max_steps, plan.epochs, plan.tokens) == (10, 8, 3.2, 2 * 320)
    grouped = planned(*EPOCHS, "data.bptt_segments=4", "trainer.accumulate_grad_batches=2")
    assert counts(grouped) == [3] * 9
    assert (grouped.max_steps, grouped.epochs, grouped.tokens) == (5, pytest.approx(10 / 3), 2 * 340)
    assert planned("trainer.max_steps=7", "trainer.max_epochs=3").max_steps == 7
    assert planned("trainer.max_steps=70", "trainer.max_epochs=3").max_steps == 30


def test_drawn_segments_make_epochs_of_their_own_lengths() -> None:
    plan = planned(*VARYING, *EPOCHS)
    assert len(set(counts(plan))) > 1
    assert plan.layout.count(0) == counts(plan)[0]
    assert plan.max_steps == sum(counts(plan)[:3])
    assert (plan.epochs, plan.tokens) == (3, 600)
    accumulated = planned(*VARYING, *EPOCHS, "trainer.accumulate_grad_batches=4")
    assert accumulated.max_steps == -(-plan.max_steps // 4)
    assert 3 <= accumulated.epochs < 3.5
    assert 600 <= accumulated.tokens < 700


def test_the_seed_of_a_run_draws_its_lengths() -> None:
    one, other, again = (planned(*VARYING, f"seed={seed}") for seed in (1, 2, 1))
    assert [one.layout.spans(number) for number in range(30)] == [again.layout.spans(number) for number in range(30)]
    assert [one.layout.spans(number) for number in range(30)] != [other.layout.spans(number) for number in range(30)]


@pytest.mark.parametrize("varying", [[], VARYING])
def test_limits_of_an_epoch(varying: list[str]) -> None:
    whole = counts(planned(*varying))
    assert counts(planned(*varying, "trainer.limit_train_batches=3")) == [3] * 9
    assert counts(planned(*varying, "trainer.limit_train_batches=99")) == whole
    assert counts(planned(*varying, "trainer.limit_train_batches=1.0")) == whole
    assert counts(planned(*varying, "trainer.limit_train_batches=0.5")) == [round(whole[0] / 2)] * 9
    assert counts(planned(*varying, "trainer.limit_train_batches=0.99")) == [min(whole[0], count) for count in whole]
    assert counts(planned(*varying, "trainer.limit_train_batches=0.001")) == [1] * 9


@pytest.mark.parametrize("varying", [[], VARYING])
def test_validation_by_epochs_takes_the_first_one_for_all(varying: list[str]) -> None:
    plan = planned(*varying, "trainer.check_val_every_n_epoch=2", "trainer.accumulate_grad_batches=4")
    assert plan.validate_every == 2 * -(-plan.layout.count(0) // 4)
    share = planned(*varying, "trainer.val_check_interval=0.5")
    assert share.validate_every == round(share.layout.count(0) / 2)


@pytest.mark.parametrize(("stride", "windows"), [("null", 5), ("10", 5), ("4", 11), ("1", 41)])
def test_limits_of_an_evaluation_are_shares_of_its_windows(stride: str, windows: int) -> None:
    plan = planned(f"eval.stride={stride}", "trainer.limit_val_batches=0.5", "trainer.limit_test_batches=1.0")
    assert (plan.limit_val, plan.limit_test) == (round(windows / 2), windows)
    plan = planned(f"eval.stride={stride}", "trainer.limit_val_batches=3", "trainer.limit_test_batches=0")
    assert (plan.limit_val, plan.limit_test) == (3, 0)


def test_tf32_needs_a_cuda_device_and_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = composed("trainer.tf32=true", "trainer.precision=32-true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert with_precision(asked).trainer.tf32
    for setting in ("trainer.precision=bf16-mixed", "trainer.accelerator=cpu"):
        with pytest.raises(UserError, match=r"trainer\.precision=32-true"):
            with_precision(composed("trainer.tf32=true", setting))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"trainer\.tf32 is true, which needs a CUDA device"):
        with_precision(asked)
