from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.model.tiny import assert_equal_to
from transformer_xl.model.kernels import onednn
from transformer_xl.model.kernels.cross_entropy import Columns, Softmax, softmax_losses

V, D = 11, 4
EDGES = [0, 5, 7, V]


def leaf(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
    )


class Softmaxes:
    """Three softmaxes over one table; the first has two more columns of another."""

    def __init__(self, rows: list[int], *, dtype: torch.dtype = torch.float64) -> None:
        self.table, self.bias = leaf(V, D, seed=0, dtype=dtype), leaf(V, seed=1, dtype=dtype)
        self.extra, self.extra_bias = leaf(2, D, seed=2, dtype=dtype), leaf(2, seed=3, dtype=dtype)
        self.hidden = [leaf(count, D, seed=4 + number, dtype=dtype) for number, count in enumerate(rows)]
        sizes = [EDGES[1] + 2, 2, 4]
        generator = torch.Generator().manual_seed(9)
        self.targets = [
            torch.randint(size, (count,), generator=generator) for size, count in zip(sizes, rows, strict=True)
        ]
        for target_R in self.targets:
            target_R[2:3] = -100

    @property
    def leaves(self) -> list[Tensor]:
        return [self.table, self.bias, self.extra, self.extra_bias, *self.hidden]

    def losses(self) -> Tensor:
        columns = [[Columns(self.table, self.bias, *edges)] for edges in pairwise(EDGES)]
        columns[0].append(Columns(self.extra, self.extra_bias, 0, 2))
        parts = zip(self.hidden, columns, self.targets, strict=True)
        return torch.cat(softmax_losses([Softmax(hidden, tuple(some), target) for hidden, some, target in parts]))

    def expected(self) -> Tensor:
        losses = []
        for number, (hidden, target_R) in enumerate(zip(self.hidden, self.targets, strict=True)):
            rows = slice(EDGES[number], EDGES[number + 1])
            logits = functional.linear(hidden, self.table[rows], self.bias[rows])
            if number == 0:
                logits = torch.cat([logits, functional.linear(hidden, self.extra, self.extra_bias)], dim=-1)
            losses.append(functional.cross_entropy(logits.double(), target_R, reduction="none"))
        return torch.cat(losses)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.integers(0, 6), min_size=3, max_size=3), at_once=st.sampled_from([1, 8, 20, 1 << 28]))
def test_losses_and_gradients_are_those_of_linear_and_cross_entropy(rows: list[int], at_once: int) -> None:
    softmaxes = Softmaxes(rows)
    upstream = torch.randn(sum(rows), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_xl.model.kernels.cross_entropy.LOGITS_AT_ONCE", at_once)
        losses = softmaxes.losses()
        gradients = torch.autograd.grad(losses, softmaxes.leaves, upstream)
    expected = softmaxes.expected()
    assert_equal_to(losses, expected, within=1e-12)
    wanted = torch.autograd.grad(expected, softmaxes.leaves, upstream)
    for actual, gradient in zip(gradients, wanted, strict=True):
        assert_equal_to(actual, gradient, within=1e-11)


@pytest.mark.parametrize("at_once", [20, 1 << 28])
def test_gradients_are_those_of_the_losses(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_xl.model.kernels.cross_entropy.LOGITS_AT_ONCE", at_once)
    softmaxes = Softmaxes([4, 0, 3])

    def losses(*leaves: Tensor) -> Tensor:
        softmaxes.table, softmaxes.bias, softmaxes.extra, softmaxes.extra_bias, *softmaxes.hidden = leaves
        return softmaxes.losses()

    assert torch.autograd.gradcheck(losses, tuple(softmaxes.leaves))


@pytest.mark.parametrize("at_once", [20, 1 << 28])
def test_under_autocast_products_are_rounded_and_sums_are_not(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_xl.model.kernels.cross_entropy.LOGITS_AT_ONCE", at_once)
    softmaxes = Softmaxes([6, 3, 5], dtype=torch.float32)
    expected = softmaxes.expected()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = softmaxes.losses()
    assert losses.dtype == torch.float32
    assert 0 < float((losses - expected).detach().abs().max()) < 0.1
    gradients = torch.autograd.grad(losses.sum(), softmaxes.leaves)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected.sum(), softmaxes.leaves), strict=True):
        assert gradient.dtype == torch.float32
        assert_equal_to(gradient, wanted, within=0.1)


@pytest.mark.parametrize("rows", [[5, 4, 3], [1, 0, 6]], ids=str)
def test_products_made_some_outputs_at_a_time_give_the_same(rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_WORTH_A_CALL", 1)
    monkeypatch.setattr(onednn, "_OUTPUTS_AT_ONCE", 2)
    softmaxes = Softmaxes(rows, dtype=torch.float32)
    losses, expected = softmaxes.losses(), softmaxes.expected()
    assert_equal_to(losses, expected.float(), within=1e-5)
    gradients = torch.autograd.grad(losses.sum(), softmaxes.leaves)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected.sum(), softmaxes.leaves), strict=True):
        assert_equal_to(gradient, wanted, within=1e-5)


def test_a_target_that_is_no_column_is_refused() -> None:
    softmaxes = Softmaxes([4, 1, 1])
    softmaxes.targets[1][0] = 2
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        softmaxes.losses()


def test_a_second_backward_pass_over_kept_logits_gives_the_same() -> None:
    softmaxes = Softmaxes([4, 2, 3])
    total = softmaxes.losses().sum()
    first = torch.autograd.grad(total, softmaxes.leaves, retain_graph=True)
    for one, other in zip(first, torch.autograd.grad(total, softmaxes.leaves), strict=True):
        assert torch.equal(one, other)
