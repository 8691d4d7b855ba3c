from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import Tensor

from tests.model.tiny import assert_equal_to, attended
from transformer_xl.model.attention import relative_shift
from transformer_xl.model.kernels import ATTENTION, relative_attention

B, T, M, N, H = 2, 5, 7, 2, 8
S = M + T

Inputs = dict[str, Tensor]
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

TERMS: dict[str, Score] = {
    "content to content": lambda q, k, r, u, v: q @ k,
    "content to position": lambda q, k, r, u, v: q @ r,
    "global content bias": lambda q, k, r, u, v: u @ k,
    "global position bias": lambda q, k, r, u, v: v @ r,
}

OTHERS = {name: attend for name, attend in ATTENTION.items() if name != "fused"}  # which has tests of its own
every_attention = pytest.mark.parametrize("attend", OTHERS.values(), ids=OTHERS)


def four_terms(q: Tensor, k: Tensor, r: Tensor, u: Tensor, v: Tensor) -> Tensor:
    return q @ k + q @ r + u @ k + v @ r


def random_inputs(*, lanes: int = B, width: int = H, dtype: torch.dtype = torch.float64, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "query_BTNH": (lanes, T, N, width),
        "key_BSNH": (lanes, S, N, width),
        "value_BSNH": (lanes, S, N, width),
        "position_RNH": (S + 1, N, width),
        "content_bias_NH": (N, width),
        "position_bias_NH": (N, width),
    }
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()
    }


def random_visibility(*, lanes: int = B, seed: int = 0) -> Tensor:
    """Every query sees itself and each earlier key or not, by chance; never a later one."""
    chosen = torch.rand(lanes, T, S, generator=torch.Generator().manual_seed(seed)) < 0.6
    for i in range(T):
        chosen[:, i, M + i] = True
        chosen[:, i, M + i + 1 :] = False
    return chosen


def weights_by_loop(inputs: Inputs, visible_BTS: Tensor, score: Score) -> Tensor:
    """Attention weights (B, N, T, S): one key at a time."""
    query, key, position = inputs["query_BTNH"], inputs["key_BSNH"], inputs["position_RNH"]
    lanes, _, _, width = query.shape
    rows = []
    for b in range(lanes):
        for n in range(N):
            u, v = inputs["content_bias_NH"][n], inputs["position_bias_NH"][n]
            for i in range(T):
                seen = [j for j in range(S) if visible_BTS[b, i, j]]
                scores = []
                for j in seen:
                    distance = (M + i) - j
                    r = position[S - 1 - distance, n]
                    scores.append(score(query[b, i, n], key[b, j, n], r, u, v) / sqrt(width))
                exponentials = [s.exp() for s in scores]
                total = sum(exponentials)
                row = [torch.zeros((), dtype=query.dtype)] * S
                for j, exponential in zip(seen, exponentials, strict=True):
                    row[j] = exponential / total
                rows.append(torch.stack(row))
    return torch.stack(rows).view(lanes, N, T, S)


def attention_by_loop(inputs: Inputs, visible_BTS: Tensor) -> Tensor:
    weights, value = weights_by_loop(inputs, visible_BTS, four_terms), inputs["value_BSNH"]
    out = [
        sum(weights[b, n, i, j] * value[b, j, n] for j in range(S))
        for b in range(B)
        for i in range(T)
        for n in range(N)
    ]
    return torch.stack(out).view(B, T, N, H)


def weights_of(attend: Callable[..., Tensor], inputs: Inputs, visible_BTS: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Read the weights off the output: key j's value is the j-th unit vector."""
    lanes = inputs["query_BTNH"].shape[0]
    units = torch.eye(S, dtype=inputs["query_BTNH"].dtype)[None, :, None].expand(lanes, S, N, S)
    return attended(attend, {**inputs, "value_BSNH": units}, visible_BTS, dropout=dropout).transpose(1, 2)


@every_attention
@pytest.mark.parametrize("given", [3, 6], ids=["contents alone", "relative"])
def test_attention_equals_a_loop_over_queries_and_keys_forward_and_backward(
    attend: Callable[..., Tensor], given: int
) -> None:
    visible_BTS, drawn = random_visibility(), random_inputs()
    inputs = {name: drawn[name].requires_grad_() for name in list(drawn)[:given]}
    upstream = torch.randn(B, T, N, H, dtype=torch.float64, generator=torch.Generator().manual_seed(9))

    expected = attention_by_loop({name: torch.zeros_like(t) for name, t in drawn.items()} | inputs, visible_BTS)
    expected_grads = torch.autograd.grad((expected * upstream).sum(), list(inputs.values()))
    actual = attended(attend, inputs, visible_BTS)
    grads = torch.autograd.grad((actual * upstream).sum(), list(inputs.values()))

    assert_equal_to(actual, expected, within=1e-9)
    for name, grad, expected_grad in zip(inputs, grads, expected_grads, strict=True):
        assert expected_grad.abs().max() > 1e-3, name
        assert_equal_to(grad, expected_grad, within=1e-9)


@every_attention
def test_dropout_drops_weights_and_scales_up_the_others(attend: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    inputs, visible_BTS = random_inputs(lanes=40, width=S), random_visibility(lanes=40)
    kept = weights_of(attend, inputs, visible_BTS)
    dropped = weights_of(attend, inputs, visible_BTS, dropout=0.25)
    seen = visible_BTS[:, None].expand_as(kept)
    survives = dropped > 0
    assert abs(float(survives[seen].double().mean()) - 0.75) < 0.03
    assert_equal_to(dropped[survives], kept[survives] / 0.75, within=1e-9)
    assert not dropped[~seen].any()


@every_attention
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_nobody_sees_reach_neither_outputs_nor_gradients(
    attend: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    hidden = 3
    visible_BTS = random_visibility(seed=6)
    visible_BTS[:, :, :hidden] = False

    def run(poison: float) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = random_inputs(dtype=dtype, seed=7)
        for name in ("key_BSNH", "value_BSNH"):
            inputs[name][:, :hidden] = poison
        inputs["position_RNH"][:hidden] = poison  # distances beyond the farthest key that is seen
        inputs["position_RNH"][S] = poison  # no distance
        inputs = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        out = attended(attend, inputs, visible_BTS)
        grads = torch.autograd.grad(out.square().sum(), list(inputs.values()))
        return out, dict(zip(inputs, grads, strict=True))

    (clean, clean_grads), (poisoned, grads) = run(0.0), run(1e30)
    assert torch.equal(poisoned, clean)
    for name, grad in grads.items():
        assert torch.equal(grad, clean_grads[name]), name


def shifted_cells() -> list[tuple[int, int, int]]:
    """Query i, key j that it may see, and the column of their distance."""
    return [(i, j, S - 1 - (M + i - j)) for i in range(T) for j in range(M + i + 1)]


def test_the_shift_puts_each_distance_under_its_key() -> None:
    by_distance = torch.randn(B, N, T, S + 1)
    by_key = relative_shift(by_distance)
    assert by_key.shape == (B, N, T, S)
    for i, j, column in shifted_cells():
        assert torch.equal(by_key[:, :, i, j], by_distance[:, :, i, column])


def test_the_kernel_by_itself_is_causal_and_takes_a_mask() -> None:
    inputs, causal_TS = random_inputs(), torch.ones(T, S, dtype=torch.bool).tril(M)
    given = [*inputs.values()]
    given[3] = given[3][:-1]
    for causal, visible_BTS in (
        (True, causal_TS.expand(B, -1, -1)),
        (random_visibility(seed=3), random_visibility(seed=3)),
    ):
        expected = attention_by_loop(inputs, visible_BTS)
        assert_equal_to(relative_attention(*given, causal=causal), expected, within=1e-9)
    with pytest.raises(ValueError, match=f"position_RNH has {S} rows, and must have {S + T - 1}"):
        relative_attention(*given, causal=False)
