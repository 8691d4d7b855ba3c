"""An average of the weights: what it is of, who reads it, and that training does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import transformer_xl as txl
from tests.conftest import Outcome
from transformer_xl import build
from transformer_xl.data.stream import Batch
from transformer_xl.inference.evaluate import context_of, read_split
from transformer_xl.run_folder import config_of
from transformer_xl.training.module import LanguageModule

Run = Callable[..., Outcome]
Weights = dict[str, Tensor]
FROM_3 = "callbacks.weight_average.start_step=3"
EMA = "callbacks.weight_average.decay=0.75"


@pytest.fixture
def raw_weights(monkeypatch: pytest.MonkeyPatch) -> list[Weights]:
    """The weights after each optimizer step of the runs in a test."""
    steps: list[Weights] = []

    def keep(module: LanguageModule, outputs: object, batch: Batch, batch_idx: int) -> None:
        if batch.micro + 1 == module.trainer.accumulate_grad_batches:
            steps.append(copy_of(module.model))

    monkeypatch.setattr(LanguageModule, "on_train_batch_end", keep)
    return steps


def copy_of(model: torch.nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def plain_mean(steps: list[Weights]) -> Weights:
    return {name: torch.stack([step[name] for step in steps]).mean(dim=0) for name in steps[0]}


def exponential(steps: list[Weights]) -> Weights:
    average = steps[0]
    for step in steps[1:]:
        average = {name: 0.75 * average[name] + 0.25 * step[name] for name in step}
    return average


def assert_same(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def raw_of(outcome: Outcome) -> Weights:
    return {name.removeprefix("model."): tensor for name, tensor in outcome.checkpoint()["state_dict"].items()}


def loss_of_loaded(outcome: Outcome, split: str, *, checkpoint: str = "last", batches: int) -> float:
    """What the loaded model makes of a split's first batches, by the evaluation that knows nothing of a run."""
    config = config_of(outcome.folder)
    data = build.open_data(config, announce=lambda _: None)
    source = data.lanes(split, batch_size=4, segment_len=5, evaluation=True)  # type: ignore[arg-type]
    model = txl.load_model(outcome.folder / "checkpoints" / f"{checkpoint}.ckpt")
    score = read_split(
        model,
        source,
        context_of(config.eval),
        max_tokens=20 * batches,
        zero_start=False,
        autocast=contextlib.nullcontext,
    ).score
    return score.loss


@pytest.mark.parametrize(
    ("settings", "recomputed"),
    [
        ([], plain_mean),
        ([EMA], exponential),
        (["trainer.accumulate_grad_batches=2", "data.lane_chunks=2"], plain_mean),
    ],
)
def test_the_average_is_that_of_the_weights_after_each_step_from_the_first_on(
    tiny_run: Run, raw_weights: list[Weights], settings: list[str], recomputed: Callable[[list[Weights]], Weights]
) -> None:
    outcome = tiny_run(FROM_3, "trainer.precision=64-true", *settings)
    assert outcome.status == 0
    assert len(raw_weights) == 6
    for name in ("best", "last"):
        checkpoint = outcome.checkpoint(name)
        steps = raw_weights[2 : checkpoint["global_step"]]
        assert checkpoint["averaged"]["count"] == len(steps)
        assert checkpoint["averaged"]["weights"].keys() == steps[0].keys()
        torch.testing.assert_close(checkpoint["averaged"]["weights"], recomputed(steps), rtol=1e-12, atol=1e-14)
    assert outcome.checkpoint()["averaged"]["count"] == 4
    assert_same(raw_of(outcome), raw_weights[-1])
    assert_same(copy_of(txl.load_model(outcome.folder)), outcome.checkpoint("best")["averaged"]["weights"])


def test_training_never_reads_the_average(tiny_run: Run) -> None:
    every_step = ["model.dropout=0.2", "trainer.val_check_interval=1", "trainer.num_sanity_val_steps=1"]
    plain = tiny_run(*every_step, name="plain")
    averaged = tiny_run(*every_step, FROM_3, "callbacks.sample.n_tokens=2", name="averaged")
    assert averaged.values("train/loss") == plain.values("train/loss")
    assert_same(raw_of(averaged), raw_of(plain))
    raw, other = plain.values("val/loss"), averaged.values("val/loss")
    assert [raw[step] == other[step] for step in range(1, 7)] == [True, True, True, False, False, False]
    assert "averaged" not in plain.checkpoint()


def test_validation_test_and_samples_read_the_average(tiny_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[Weights] = []

    def sample(model: torch.nn.Module) -> str:
        sampled.append(copy_of(model))
        return ""

    monkeypatch.setattr(build, "sampler", lambda config, data: sample)
    outcome = tiny_run(FROM_3, "trainer.val_check_interval=6", "callbacks.sample.n_tokens=1")
    average = outcome.checkpoint()["averaged"]["weights"]
    assert outcome.values("val/loss")[6] == pytest.approx(loss_of_loaded(outcome, "valid", batches=4), rel=1e-6)
    assert outcome.values("test/loss")[6] == pytest.approx(loss_of_loaded(outcome, "test", batches=2), rel=1e-6)
    assert len(sampled) == 2  # after the validation, and in the report
    for weights in sampled:
        assert_same(weights, average)


def test_a_best_checkpoint_from_before_the_first_averaged_step_is_its_raw_weights(tiny_run: Run) -> None:
    """A learning rate that grows until the loss does: the first validation is the best."""
    grows = [
        "optimizer=sgd",
        "scheduler=constant",
        "scheduler.warmup_steps=100",
        "optimizer.lr=100",
        "trainer.max_steps=4",
    ]
    outcome = tiny_run(FROM_3, *grows, "trainer.gradient_clip_val=null", "trainer.val_check_interval=1")
    best = outcome.checkpoint("best")
    assert best["global_step"] < 3
    assert "averaged" not in best
    assert outcome.summary["metrics"]["test"]["loss"] == pytest.approx(
        loss_of_loaded(outcome, "test", checkpoint="best", batches=2), rel=1e-6
    )


def test_a_resume_that_begins_the_average_later_forgets_the_one_before(
    tiny_run: Run, raw_weights: list[Weights]
) -> None:
    first = tiny_run(FROM_3, "trainer.max_steps=4", "scheduler.total_steps=6")
    later = [f"resume={first.folder}", "trainer.max_steps=6", "callbacks.weight_average.start_step=5"]
    assert tiny_run(*later, base=False).status == 0
    averaged = first.checkpoint()["averaged"]
    assert averaged["count"] == 2
    torch.testing.assert_close(averaged["weights"], plain_mean(raw_weights[4:]))


def test_bfloat16_weights_have_a_float32_average(tiny_run: Run, raw_weights: list[Weights]) -> None:
    outcome = tiny_run(FROM_3, "trainer.precision=bf16-true", "trainer.val_check_interval=6")
    average = outcome.checkpoint()["averaged"]["weights"]
    assert {tensor.dtype for tensor in average.values()} == {torch.float32}
    wide = [{name: tensor.float() for name, tensor in step.items()} for step in raw_weights[2:]]
    torch.testing.assert_close(average, plain_mean(wide))
    assert_same(raw_of(outcome), raw_weights[-1])
    loaded = copy_of(txl.load_model(outcome.folder))
    assert_same(loaded, {name: tensor.bfloat16() for name, tensor in average.items()})
    assert outcome.values("val/loss")[6] == pytest.approx(loss_of_loaded(outcome, "valid", batches=4), rel=1e-6)
