"""LAMB as NVIDIA's Transformer-XL recipe takes its steps: no bias correction, weight norms of 10 at most."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import Outcome, read_values
from transformer_xl.training.optim import AdamConfig, make_optimizer

Run = Callable[..., Outcome]


def lamb(groups: list[dict[str, Any]], **changes: float) -> torch.optim.Optimizer:
    settings = {"lr": 0.1, "weight_decay": 0.0, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3, **changes}
    return make_optimizer(AdamConfig(kind="lamb", decay_embeddings=False, **settings), groups, fused=True)


def published(weight: Tensor, gradients: list[Tensor], rates: list[float], weight_decay: float) -> Tensor:
    """The weight after these steps, by the formula."""
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for gradient, lr in zip(gradients, rates, strict=True):
        mean = 0.8 * mean + 0.2 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        step = mean / (square**0.5 + 1e-3) + weight_decay * weight
        weight_norm, step_norm = min((weight**2).sum() ** 0.5, 10.0), (step**2).sum() ** 0.5
        trust = weight_norm / (step_norm + 1e-3) if weight_norm > 0 and step_norm > 0 else 1.0
        weight = weight - lr * trust * step
    return weight


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_step_is_the_published_one_at_the_rate_that_each_group_has_then() -> None:
    """Weights of an ordinary norm, of one above 10, and of zero; with decay and without."""
    starts = [random(4, 3, seed=1), 100 * random(5, 6, seed=2), torch.zeros(7, dtype=torch.float64)]
    weights = [torch.nn.Parameter(start.clone()) for start in starts]
    groups = [
        {"params": weights[:1], "weight_decay": 0.3},
        {"params": weights[1:], "weight_decay": 0.0},
    ]
    optimizer = lamb(groups)
    rates = [0.01, 0.2, 0.05, 0.0]
    gradients = [
        [random(*start.shape, seed=10 * step + i) for step in range(len(rates))] for i, start in enumerate(starts)
    ]
    for step, lr in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for weight, per_step in zip(weights, gradients, strict=True):
            weight.grad = per_step[step].clone()
        optimizer.step()
    for weight, start, per_step, decay in zip(weights, starts, gradients, [0.3, 0.0, 0.0], strict=True):
        torch.testing.assert_close(weight.data, published(start, per_step, rates, decay), rtol=1e-12, atol=1e-12)
        assert not torch.equal(weight.data, start)


def test_a_run_follows_its_schedule_and_goes_on_exactly(tiny_run: Run) -> None:
    settings = ["optimizer=lamb", "optimizer.weight_decay=0.1", "trainer.log_every_n_steps=1"]
    whole = tiny_run(*settings, name="whole")
    assert whole.status == 0
    stopped = tiny_run(*settings, "trainer.max_steps=4", "scheduler.total_steps=6", name="stopped")
    assert tiny_run(f"resume={stopped.folder}", "trainer.max_steps=6", base=False).status == 0
    assert read_values(stopped.folder, "train/loss") == whole.values("train/loss")


def test_without_its_library_a_run_says_what_to_install(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    outcome = tiny_run("optimizer=lamb")
    assert outcome.status == 2
    stderr = capsys.readouterr().err
    assert 'pip install "pytorch-optimizer>=4.1,<5"' in stderr
    assert len(stderr.splitlines()) == 1
    assert not (outcome.folder / "config.yaml").exists()  # the run had not begun
    assert tiny_run(name="adam").status == 0
