"""The step, without processes: its gradient, its memory, and what validation may not touch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conftest import Outcome
from transformer_xl.training.module import dropout_seed, seed_generators

Run = Callable[..., Outcome]
DROPOUT = ["model.dropout=0.2", "model.dropatt=0.1"]
EXACT = ["trainer.precision=64-true", "trainer.limit_val_batches=0"]


def losses(outcome: Outcome) -> list[float | None]:
    assert outcome.status == 0
    return list(outcome.values("train/loss").values())


def weights(outcome: Outcome) -> dict[str, torch.Tensor]:
    return outcome.checkpoint()["state_dict"]


def test_another_seed_gives_another_run(tiny_run: Run) -> None:
    assert losses(tiny_run(name="one")) != losses(tiny_run("seed=2", name="other"))


def test_lane_chunks_do_not_change_the_gradient(tiny_run: Run) -> None:
    whole, chunked = tiny_run(*EXACT, name="whole"), tiny_run(*EXACT, "data.lane_chunks=3", name="chunked")
    assert losses(chunked) == pytest.approx(losses(whole), rel=1e-9)
    assert chunked.values("train/grad_norm") == pytest.approx(whole.values("train/grad_norm"), rel=1e-9)
    assert chunked.values("lr") == whole.values("lr")


def test_learning_rate_by_step_is_the_same_however_it_is_accumulated(tiny_run: Run) -> None:
    every_step = ["trainer.log_every_n_steps=1", "trainer.limit_val_batches=0"]
    plain = tiny_run(*every_step, name="plain").values("lr")
    assert list(plain) == [1, 2, 3, 4, 5, 6]
    parts = ["trainer.accumulate_grad_batches=4", "data.lane_chunks=2"]
    assert tiny_run(*every_step, *parts, name="parts").values("lr") == plain


def test_accumulation_averages_over_the_tokens_of_all_its_segments(tiny_run: Run) -> None:
    """Four segments in one step, memory carried between them: its loss is the mean of theirs at frozen weights."""
    frozen = [*EXACT, "optimizer.lr=0"]
    single = losses(tiny_run(*frozen, "trainer.max_steps=4", name="single"))
    together = losses(tiny_run(*frozen, "trainer.max_steps=1", "trainer.accumulate_grad_batches=4", name="together"))
    assert together[0] == pytest.approx(sum(single) / 4, rel=1e-12)


def test_validation_sampling_and_sanity_steps_change_no_training_loss(tiny_run: Run) -> None:
    plain = tiny_run(*DROPOUT, "trainer.limit_val_batches=0", name="plain")
    often = ["trainer.val_check_interval=1", "trainer.num_sanity_val_steps=2", "callbacks.sample.n_tokens=3"]
    changed = tiny_run(*DROPOUT, *often, "eval.batch_size=3", "eval.segment_len=4", "eval.mem_len=11", name="changed")
    assert losses(changed) == losses(plain)
    assert all(torch.equal(weights(plain)[name], tensor) for name, tensor in weights(changed).items())


def test_validation_by_epochs_and_by_shares_of_one(tiny_run: Run) -> None:
    limited = ["trainer.limit_train_batches=4", "trainer.max_steps=8"]
    by_epoch = tiny_run(*limited, "trainer.check_val_every_n_epoch=1", name="epoch")
    assert list(by_epoch.values("val/loss")) == [4, 8]
    by_share = tiny_run(*limited, "trainer.val_check_interval=0.5", name="share")
    assert list(by_share.values("val/loss")) == [2, 4, 6, 8]


def test_max_epochs_ends_a_run(tiny_run: Run) -> None:
    epochs = ["trainer.limit_train_batches=3", "trainer.max_epochs=2", "trainer.max_steps=-1"]
    assert max(tiny_run(*epochs, name="plain").values("train/loss")) == 6
    accumulated = tiny_run(*epochs, "trainer.accumulate_grad_batches=2", name="accumulated")
    assert max(accumulated.values("train/loss")) == 3


def test_gradient_norm_is_measured_before_clipping(tiny_run: Run) -> None:
    tight = tiny_run("trainer.gradient_clip_val=1e-3", "trainer.log_every_n_steps=1", name="tight")
    off = tiny_run("trainer.gradient_clip_val=null", "trainer.log_every_n_steps=1", name="off")
    assert tight.values("train/grad_norm")[1] == off.values("train/grad_norm")[1] > 1e-3
    assert set(tight.values("train/clipped_share").values()) == {1.0}
    assert tight.values("train/grad_norm")[2] != off.values("train/grad_norm")[2]
    assert not off.values("train/clipped_share")


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipping_changes_the_update(tiny_run: Run, algorithm: str) -> None:
    sgd = ["optimizer=sgd", "optimizer.lr=1", "scheduler=constant", "scheduler.warmup_steps=0", "trainer.max_steps=1"]
    clip = [f"trainer.gradient_clip_algorithm={algorithm}", "trainer.gradient_clip_val=1e-4"]
    free = tiny_run(*sgd, "trainer.gradient_clip_val=null", name="free")
    clipped = tiny_run(*sgd, *clip, name="clipped")
    start = tiny_run(*sgd, "optimizer.lr=0", name="start")
    moved = [(weights(clipped)[name] - tensor).flatten() for name, tensor in weights(start).items()]
    size = torch.cat(moved).norm() if algorithm == "norm" else torch.cat(moved).abs().max()
    assert float(size) == pytest.approx(1e-4, rel=1e-2)
    assert not torch.equal(weights(free)["model.embedding.weights.0"], weights(clipped)["model.embedding.weights.0"])


def test_a_step_that_counts_nothing_is_null_and_changes_nothing(tiny_run: Run) -> None:
    """Blocks of 40 symbols, segments of 1, one lane: whole stretches of steps count no target."""
    recall = ["data=recall", "data.segment_len=1", "data.batch_size=1", "data.block_len=40", "eval.batch_size=1"]
    small = ["data.train_tokens=100", "data.eval_tokens=100"]
    rest = ["trainer.limit_val_batches=0", "optimizer=adamw", "optimizer.weight_decay=0.1", "trainer.precision=32-true"]
    from tests.conftest import QUIET, TINY_MODEL

    common = [*TINY_MODEL, *QUIET, *recall, *small, *rest, "trainer.accelerator=cpu", "scheduler.warmup_steps=0"]
    longest = tiny_run(*common, "trainer.max_steps=90", name="long", base=False)
    values = longest.values("train/loss")
    assert len(values) == 90
    uncounted = [step for step, value in values.items() if value is None]
    assert 30 <= len(uncounted) <= 65
    inside = next(step for step in uncounted if step > 1 and step + 1 in uncounted)
    before = tiny_run(*common, f"trainer.max_steps={inside}", "scheduler.total_steps=90", name="before", base=False)
    after = tiny_run(*common, f"trainer.max_steps={inside + 1}", "scheduler.total_steps=90", name="after", base=False)
    assert all(torch.equal(weights(before)[name], tensor) for name, tensor in weights(after).items())


def test_dropout_seeds_differ_by_step_rank_and_micro_batch() -> None:
    seeds = {
        dropout_seed(seed, step=step, rank=rank, micro=micro)
        for seed in range(3)
        for step in range(3)
        for rank in range(3)
        for micro in range(3)
    }
    assert len(seeds) == 81


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_precisions_train(tiny_run: Run, precision: str) -> None:
    assert losses(tiny_run(f"trainer.precision={precision}"))[-1] < 5.7


def test_seeding_draws_what_torchs_own_would() -> None:
    torch.manual_seed(2**62 + 5)
    expected = torch.rand(3)
    torch.rand(3)
    seed_generators(2**62 + 5, device=torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)
