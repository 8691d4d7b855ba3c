from __future__ import annotations

import math

import pytest
import torch

from transformer_xl.training.metrics import TokenLoss


def test_a_mean_weighs_tokens_not_batches() -> None:
    metric = TokenLoss()
    metric.update(torch.full((1, 10), 1.0), torch.zeros(1, 10, dtype=torch.int64))
    metric.update(torch.full((1, 1), 5.0), torch.zeros(1, 1, dtype=torch.int64))
    score = metric.score()
    assert score.tokens == 11
    assert score.loss == pytest.approx(15 / 11)


def test_targets_that_do_not_count_are_not_counted() -> None:
    metric = TokenLoss()
    metric.update(torch.tensor([[2.0, 0.0]]), torch.tensor([[3, -100]]))
    assert metric.score() == (2.0, 1)


def test_nothing_counted_is_not_a_number() -> None:
    metric = TokenLoss()
    metric.update(torch.zeros(1, 2), torch.full((1, 2), -100))
    assert math.isnan(metric.score().loss)


def test_the_sum_is_kept_in_float64() -> None:
    metric = TokenLoss()
    targets = torch.zeros(1, 1, dtype=torch.int64)
    metric.update(torch.full((1, 1), 2.0**24), targets)
    for _ in range(10):
        metric.update(torch.ones(1, 1), targets)
    assert metric.score().loss == (2.0**24 + 10) / 11


def test_the_sum_stays_float64_in_a_module_that_turns_to_bfloat16() -> None:
    metric = TokenLoss().to(torch.bfloat16)
    metric.reset()
    for _ in range(1000):
        metric.update(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64))
    assert metric.score() == (1.0, 1000)
