"""Adaptive embedding and softmax: the definition, a token at a time; fused losses; only as much work as asked for."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import tiny_model_config
from tests.model.kinds import model_of
from tests.model.tiny import V, assert_equal_to, random_tokens
from transformer_xl.model.embedding import Clusters
from transformer_xl.model.kernels import cross_entropy
from transformer_xl.model.kernels import linear as onednn
from transformer_xl.model.kernels.cross_entropy import Softmax, Table, softmax_losses
from transformer_xl.model.transformer import Transformer

CUTOFFS: list[list[int]] = [[], [9], [4, 10, 21]]
TIES: list[dict[str, Any]] = [
    {"tie_weights": True, "tie_projs": "tails"},
    {"tie_weights": True, "tie_projs": "none"},
    {"tie_weights": True, "tie_projs": "all"},
    {"tie_weights": False, "tie_projs": "none"},
]
SHAPES = [
    {"cutoffs": cutoffs, "div_val": div_val, "d_embed": d_embed, **ties}
    for cutoffs, div_val, d_embed, ties in itertools.product(CUTOFFS, (1, 2, 4), (None, 64), TIES)
    if (div_val == 1 or cutoffs) and (d_embed or 16) // div_val ** len(cutoffs) >= 1
]


def name_of(shape: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in shape.items())


every_shape = pytest.mark.parametrize("shape", SHAPES, ids=name_of)


def hidden_and_targets(rows: int = 11) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, rows, 16, generator=generator, dtype=torch.float64), random_tokens(2, rows)


@every_shape
def test_under_bfloat16_probabilities_sum_to_one_and_the_loss_is_of_the_same_distribution(
    shape: dict[str, Any],
) -> None:
    model = model_of("transformer_xl", dtype=torch.float32, **shape)
    tokens_BT = random_tokens(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = model.log_probs(tokens_BT, model.empty_memory(3)).log_probs_BTV
        nll = model.nll(tokens_BT, tokens_BT, model.empty_memory(3)).nll_BT
    assert log_probs.dtype == nll.dtype == torch.float32
    assert_equal_to(log_probs.exp().sum(dim=-1), torch.ones(3, 5), within=1e-5)
    assert_equal_to(nll, -log_probs.gather(-1, tokens_BT[..., None])[..., 0], within=1e-5)


@every_shape
def test_the_loss_in_token_order_is_minus_the_log_probability(shape: dict[str, Any]) -> None:
    model = model_of("transformer_xl", **shape)
    hidden_BTD, targets_BT = hidden_and_targets()
    targets_BT[1, 3:6] = -100
    nll_BT = model.softmax.nll(hidden_BTD, targets_BT)
    expected = -model.softmax.log_probs(hidden_BTD).gather(-1, targets_BT.clamp(min=0)[..., None])[..., 0]
    assert_equal_to(nll_BT, expected.masked_fill(targets_BT == -100, 0.0), within=1e-12)


@every_shape
def test_log_probabilities_and_embeddings_are_those_of_the_definition(shape: dict[str, Any]) -> None:
    """A token at a time: its cluster, its row, its cluster's projection."""
    model = model_of("transformer_xl", **shape)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    edges = [0, *shape["cutoffs"], V]
    wide = shape["d_embed"] or 16

    def cluster_of(token: int) -> int:
        return sum(token >= edge for edge in edges[1:-1])

    def row(kind: str, token: int) -> Tensor:
        if shape["div_val"] == 1:
            return weights[f"{kind}.0"][token]
        cluster = cluster_of(token)
        return weights[f"{kind}.{cluster}"][token - edges[cluster]]

    def projection(side: str, cluster: int) -> Tensor:
        if shape["div_val"] == 1 and wide == 16:
            return torch.eye(16, dtype=torch.float64)
        own = weights.get(f"{side}.projections.{cluster}") if side == "softmax" else None
        shared = weights[f"embedding.projections.{0 if shape['div_val'] == 1 else cluster}"]
        return shared if own is None else own

    embedded = model.embedding(torch.arange(V)[None])[0]
    for token in range(V):
        expected = projection("embedding", cluster_of(token)) @ row("embedding.weights", token) * math.sqrt(16)
        assert_equal_to(embedded[token], expected, within=1e-12)

    output = "embedding.weights" if shape["tie_weights"] else "softmax.weights"
    hidden_D = hidden_and_targets()[0][0, 0]

    def logit(token: int) -> Tensor:
        inner = hidden_D @ projection("softmax", cluster_of(token))
        return inner @ row(output, token) + row("softmax.biases", token)

    inner = hidden_D @ projection("softmax", 0)
    tails = [
        inner @ weights["softmax.cluster_weight"][tail] + weights["softmax.cluster_bias"][tail]
        for tail in range(len(edges) - 2)
    ]
    head = torch.stack([*map(logit, range(edges[1])), *tails]).log_softmax(0)
    expected = [*head[: edges[1]]]
    for tail in range(len(edges) - 2):
        within = torch.stack([*map(logit, range(edges[tail + 1], edges[tail + 2]))]).log_softmax(0)
        expected += [*(head[edges[1] + tail] + within)]
    assert_equal_to(model.softmax.log_probs(hidden_D[None, None])[0, 0], torch.stack(expected), within=1e-12)


@every_shape
def test_a_cluster_without_a_token_gets_a_gradient_of_zeros(shape: dict[str, Any]) -> None:
    model = model_of("transformer_xl", **shape)
    tokens_BT = random_tokens(2, 5) % (shape["cutoffs"] or [V])[0]
    model.nll(tokens_BT, tokens_BT, model.empty_memory(2)).nll_BT.sum().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert missing == []
    rare = [parameter.grad for name, parameter in model.named_parameters() if name == "embedding.weights.1"]
    assert all(gradient is not None and not gradient.any() for gradient in rare)


class _Largest(TorchDispatchMode):
    """Notes the most numbers that any operation gave at once."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numel = max(self.numel, out.numel())
        return out


def test_the_loss_never_holds_all_logits_of_a_large_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab_size, rows = 5000, 64
    config = tiny_model_config(cutoffs=[100, 1000], div_val=2, d_embed=16)
    model = Transformer(config, vocab_size=vocab_size)
    hidden_BTD = torch.randn(1, rows, 16)
    targets_BT = torch.randint(100, (1, rows))
    targets_BT[0, :2] = torch.tensor([500, 4000])
    with _Largest() as adaptive:
        model.softmax.nll(hidden_BTD, targets_BT)
    assert adaptive.numel < rows * vocab_size / 4
    plain = Transformer(tiny_model_config(), vocab_size=vocab_size)
    monkeypatch.setattr(cross_entropy, "LOGITS_AT_ONCE", 8 * vocab_size)
    with _Largest() as in_parts:
        plain.softmax.nll(hidden_BTD, targets_BT)
    assert in_parts.numel <= max(8, 16) * vocab_size


def test_cutoffs_beyond_the_vocabulary_fall_away() -> None:
    trimmed = Clusters(
        tiny_model_config(cutoffs=[9, V, 99], div_val=2, tie_projs=[False, True, False, True]), vocab_size=V
    )
    as_cut = Clusters(tiny_model_config(cutoffs=[9], div_val=2, tie_projs=[False, True]), vocab_size=V)
    assert vars(trimmed) == vars(as_cut)
    none = Clusters(tiny_model_config(cutoffs=[99]), vocab_size=V)
    assert none.edges == (0, V)


@pytest.mark.parametrize("token", [-1, V])
@pytest.mark.parametrize("cutoffs", [[], [4, 10]])
def test_an_id_outside_of_the_vocabulary_is_refused(token: int, cutoffs: list[int]) -> None:
    model = model_of("transformer_xl", cutoffs=cutoffs, div_val=2 if cutoffs else 1)
    with pytest.raises(IndexError):
        model(torch.tensor([[token]]), model.empty_memory(1))


TABLE_ROWS, D = 11, 4
EDGES = [0, 5, 7, TABLE_ROWS]


def leaf(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
    )


class Softmaxes:
    """Three softmaxes over one table; the first has two more columns of another."""

    def __init__(self, rows: list[int], *, dtype: torch.dtype = torch.float64) -> None:
        self.table, self.bias = leaf(TABLE_ROWS, D, seed=0, dtype=dtype), leaf(TABLE_ROWS, seed=1, dtype=dtype)
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
        columns = [[(0, slice(*edges))] for edges in pairwise(EDGES)]
        columns[0].append((1, slice(0, 2)))
        parts = zip(self.hidden, columns, self.targets, strict=True)
        tables = [Table(self.table, self.bias), Table(self.extra, self.extra_bias)]
        softmaxes = [Softmax(hidden, tuple(some), target) for hidden, some, target in parts]
        return torch.cat(softmax_losses(softmaxes, tables))

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
    monkeypatch.setattr(cross_entropy, "OUTPUTS_AT_ONCE", 2)
    softmaxes = Softmaxes(rows, dtype=torch.float32)
    losses, expected = softmaxes.losses(), softmaxes.expected()
    assert_equal_to(losses, expected.float(), within=1e-5)
    gradients = torch.autograd.grad(losses.sum(), softmaxes.leaves)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected.sum(), softmaxes.leaves), strict=True):
        assert_equal_to(gradient, wanted, within=1e-5)


TIED: list[dict[str, Any]] = [
    {},
    {"tie_weights": False},
    {"cutoffs": [4, 10]},
    {"cutoffs": [4, 10], "div_val": 2},
    {"cutoffs": [4, 10], "div_val": 2, "tie_weights": False},
]


@pytest.mark.parametrize("shape", TIED, ids=str)
@pytest.mark.parametrize("tokens", [2, 3 * V])
def test_the_loss_of_a_segment_has_the_gradients_of_its_two_halves(shape: dict[str, Any], tokens: int) -> None:
    model = model_of("transformer_xl", **shape)
    tokens_BT, targets_BT = random_tokens(1, tokens), random_tokens(1, tokens, seed=5)
    model.softmax.nll(model(tokens_BT, model.empty_memory(1)).hidden_BTD, targets_BT).sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model.nll(tokens_BT, targets_BT, model.empty_memory(1)).nll_BT.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.layout == torch.strided, name
        assert_equal_to(parameter.grad, expected[name], within=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
def test_logits_of_rounded_products_are_made_some_columns_at_a_time(
    monkeypatch: pytest.MonkeyPatch, autocast: bool
) -> None:
    model = model_of("transformer_xl", dtype=torch.float32 if autocast else torch.bfloat16)
    hidden_BTD, targets_BT = torch.randn(2, 5, 16).to(model.embedding.weights[0].dtype), random_tokens(2, 5)
    found = []
    for columns in (8192, 7):
        monkeypatch.setattr(cross_entropy, "COLUMNS_AT_ONCE", columns)
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            nll_BT = model.softmax.nll(hidden_BTD, targets_BT)
        nll_BT.sum().backward()
        found.append((nll_BT, model.embedding.weights[0].grad))
    assert_equal_to(found[1][0], found[0][0], within=1e-6)
    assert_equal_to(found[1][1].float(), found[0][1].float(), within=1e-2)
