"""Adaptive embedding and softmax: a distribution, the same one in the loss, and only as much work as tokens ask for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import tiny_model_config
from tests.model.tiny import assert_equal_to, random_tokens, tiny_model
from transformer_xl.model import embedding
from transformer_xl.model.embedding import make_clusters
from transformer_xl.model.kernels import cross_entropy
from transformer_xl.model.transformer import Transformer

V = 32
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_sum_to_one(shape: dict[str, Any], dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype, **shape)
    log_probs = model.log_probs(random_tokens(2, 5), model.empty_memory(2)).log_probs_BTV
    assert log_probs.shape == (2, 5, V)
    assert_equal_to(log_probs.exp().sum(dim=-1), torch.ones(2, 5, dtype=dtype), within=1e-5)


@every_shape
def test_under_bfloat16_probabilities_sum_to_one_and_the_loss_is_of_the_same_distribution(
    shape: dict[str, Any],
) -> None:
    model = tiny_model(dtype=torch.float32, **shape)
    tokens_BT = random_tokens(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = model.log_probs(tokens_BT, model.empty_memory(3)).log_probs_BTV
        nll = model.nll(tokens_BT, tokens_BT, model.empty_memory(3)).nll_BT
    assert log_probs.dtype == nll.dtype == torch.float32
    assert_equal_to(log_probs.exp().sum(dim=-1), torch.ones(3, 5), within=1e-5)
    assert_equal_to(nll, -log_probs.gather(-1, tokens_BT[..., None])[..., 0], within=1e-5)


@every_shape
def test_the_loss_in_token_order_is_minus_the_log_probability(shape: dict[str, Any]) -> None:
    model = tiny_model(**shape)
    hidden_BTD, targets_BT = hidden_and_targets()
    targets_BT[1, 3:6] = -100
    nll_BT = model.head_nll(hidden_BTD, targets_BT)
    expected = -model.head_log_probs(hidden_BTD).gather(-1, targets_BT.clamp(min=0)[..., None])[..., 0]
    assert_equal_to(nll_BT, expected.masked_fill(targets_BT == -100, 0.0), within=1e-12)


@every_shape
def test_log_probabilities_and_embeddings_are_those_of_the_definition(shape: dict[str, Any]) -> None:
    """A token at a time: its cluster, its row, its cluster's projection."""
    model = tiny_model(**shape)
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
    assert_equal_to(model.head_log_probs(hidden_D[None, None])[0, 0], torch.stack(expected), within=1e-12)


@every_shape
def test_a_cluster_without_a_token_gets_a_gradient_of_zeros(shape: dict[str, Any]) -> None:
    model = tiny_model(**shape)
    tokens_BT = random_tokens(2, 5) % (shape["cutoffs"] or [V])[0]
    model.nll(tokens_BT, tokens_BT, model.empty_memory(2)).nll_BT.sum().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert missing == []
    rare = [parameter.grad for name, parameter in model.named_parameters() if name == "embedding.weights.1"]
    assert all(gradient is not None and not gradient.any() for gradient in rare)


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=name_of)
def test_a_batch_that_counts_nothing_has_a_loss_of_zeros_and_gradients_of_zeros(shape: dict[str, Any]) -> None:
    model = tiny_model(**shape)
    hidden_BTD, targets_BT = hidden_and_targets()
    losses = model.head_nll(hidden_BTD.requires_grad_(), torch.full_like(targets_BT, -100))
    losses.sum().backward()
    assert not losses.any()
    assert hidden_BTD.grad is not None
    assert not hidden_BTD.grad.any()


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=name_of)
def test_logits_in_parts_give_the_same_losses_and_gradients(
    shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden_BTD, targets_BT = hidden_and_targets()

    def losses_and_gradients() -> tuple[Tensor, list[Tensor]]:
        model = tiny_model(**shape)
        hidden = hidden_BTD.clone().requires_grad_()
        nll_BT = model.head_nll(hidden, targets_BT)
        (nll_BT * torch.arange(22.0).view(2, 11)).sum().backward()
        gradients = [parameter.grad for parameter in model.softmax.parameters() if parameter.grad is not None]
        return nll_BT, [hidden.grad, *gradients]  # type: ignore[list-item]

    whole, gradients = losses_and_gradients()
    monkeypatch.setattr(cross_entropy, "LOGITS_AT_ONCE", 3 * V)
    in_parts, gradients_in_parts = losses_and_gradients()
    assert_equal_to(in_parts, whole, within=1e-12)
    for part, expected in zip(gradients_in_parts, gradients, strict=True):
        assert_equal_to(part, expected, within=1e-11)


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
        model.head_nll(hidden_BTD, targets_BT)
    assert adaptive.numel < rows * vocab_size / 4
    plain = Transformer(tiny_model_config(), vocab_size=vocab_size)
    monkeypatch.setattr(cross_entropy, "LOGITS_AT_ONCE", 8 * vocab_size)
    with _Largest() as in_parts:
        plain.head_nll(hidden_BTD, targets_BT)
    assert in_parts.numel <= max(8, 16) * vocab_size


@contextmanager
def counted_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note each time that Python asks for a tensor's value, which makes it wait for a device."""
    waits: list[str] = []
    for name in ("tolist", "item", "nonzero", "__bool__", "__int__", "__float__", "cpu"):
        original = getattr(Tensor, name)
        monkeypatch.setattr(
            Tensor,
            name,
            lambda self, *args, _original=original, _name=name: waits.append(_name) or _original(self, *args),
        )
    yield waits
    monkeypatch.undo()


def test_the_host_waits_once_whatever_the_number_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    # on a device other than the CPU, where "auto" is plain
    model = tiny_model(cutoffs=[4, 10, 21], div_val=2, attention="plain")
    tokens_BT, memory = random_tokens(2, 5), model.empty_memory(2)
    with counted_waits(monkeypatch) as waits:
        model.nll(tokens_BT, tokens_BT, memory)
        model.log_probs(tokens_BT, memory)
    assert waits == ["tolist"]


def test_cutoffs_beyond_the_vocabulary_fall_away() -> None:
    trimmed = make_clusters(
        tiny_model_config(cutoffs=[9, V, 99], div_val=2, tie_projs=[False, True, False, True]), vocab_size=V
    )
    assert trimmed == make_clusters(tiny_model_config(cutoffs=[9], div_val=2, tie_projs=[False, True]), vocab_size=V)
    none = make_clusters(tiny_model_config(cutoffs=[99]), vocab_size=V)
    assert none.edges == (0, V)


@pytest.mark.parametrize("token", [-1, V])
@pytest.mark.parametrize("cutoffs", [[], [4, 10]])
def test_an_id_outside_of_the_vocabulary_is_refused(token: int, cutoffs: list[int]) -> None:
    model = tiny_model(cutoffs=cutoffs, div_val=2 if cutoffs else 1)
    with pytest.raises(IndexError):
        model(torch.tensor([[token]]), model.empty_memory(1))


def test_initial_weights_of_an_adaptive_vocabulary() -> None:
    torch.manual_seed(0)
    config = tiny_model_config(d_model=64, cutoffs=[200, 400], div_val=2, tie_projs="none", tie_weights=False)
    model = Transformer(config, vocab_size=1000)
    for name, parameter in model.named_parameters():
        if "projections" in name:
            assert float(parameter.detach().std()) == pytest.approx(0.01, rel=0.1), name
        elif "biases" in name or name.endswith("cluster_bias"):
            assert not parameter.any(), name
        elif "weights" in name or "cluster_weight" in name:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.2), name


def test_output_operations_follow_the_tokens_shares() -> None:
    clusters = make_clusters(tiny_model_config(cutoffs=[8, 16], div_val=2), vocab_size=V)
    head = 2 * 16 * 16 + 2 * 16 * (8 + 2)
    first, second = 2 * 16 * 8 + 2 * 8 * 8, 2 * 16 * 4 + 2 * 4 * 16
    assert clusters.output_flops(tokens=100, shares=[0.7, 0.2, 0.1]) == 100 * head + 20 * first + 10 * second
    assert clusters.input_flops(tokens=100, shares=[0.7, 0.2, 0.1]) == 2 * 16 * (70 * 16 + 20 * 8 + 10 * 4)


def test_the_rows_of_a_tail_are_few_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny_model(cutoffs=[4, 10]), set()

    def spied(softmaxes: list[cross_entropy.Softmax]) -> tuple[Tensor, ...]:
        seen.update(len(softmax.target_R) for softmax in softmaxes[1:])
        return cross_entropy.softmax_losses(softmaxes)

    monkeypatch.setattr(embedding, "softmax_losses", spied)
    hidden_1TD = torch.randn(1, 100, 16, dtype=model.embedding.weights[0].dtype)
    for tail_tokens in range(17, 60):
        targets_1T = torch.zeros(1, 100, dtype=torch.int64)
        targets_1T[:, :tail_tokens] = 5
        expected = -model.head_log_probs(hidden_1TD).gather(2, targets_1T[..., None])[..., 0]
        assert_equal_to(model.head_nll(hidden_1TD, targets_1T), expected, within=1e-5)
    assert seen == {0, 32, 48, 64}
