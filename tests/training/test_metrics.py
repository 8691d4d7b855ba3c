from __future__ import annotations

import math

import torch

from transformer_xl.training.metrics import TokenLoss


def loss_of(*batches: tuple[list[float], list[int]]) -> tuple[float, int]:
    loss = TokenLoss(torch.device("cpu"))
    for nll, targets in batches:
        loss.update(torch.tensor([nll]), torch.tensor([targets]))
    score = loss.compute()
    assert score.accuracy is None
    return score.loss, score.tokens


def test_of_answers_the_right_ones_are_counted() -> None:
    loss = TokenLoss(torch.device("cpu"), answers=True)
    for right in ([True, False, False], [True, True, False]):
        loss.update(torch.zeros(1, 3), torch.tensor([[1, 2, -100]]), torch.tensor([right]))
    assert loss.compute() == (0.0, 4, 0.75)


def test_a_mean_weighs_counted_tokens_not_batches() -> None:
    assert loss_of(([1.0] * 10, [0] * 10), ([5.0, 0.0], [3, -100])) == (15 / 11, 11)


def test_nothing_counted_is_not_a_number() -> None:
    loss, tokens = loss_of(([0.0, 0.0], [-100, -100]))
    assert math.isnan(loss)
    assert tokens == 0


def test_the_sum_is_kept_in_float64() -> None:
    assert loss_of(([2.0**24], [0]), *[([1.0], [0])] * 10) == ((2.0**24 + 10) / 11, 11)
