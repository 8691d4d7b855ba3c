"""Fast attention against the plain one, however it is cut; what CUDA demands of its inputs, without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.model.tiny import assert_equal_to
from transformer_xl.model.attention import plain_attention
from transformer_xl.model.kernels import blockwise as module
from transformer_xl.model.kernels import sdpa
from transformer_xl.model.kernels.blockwise import blockwise_attention
from transformer_xl.model.mask import AttentionMask, attention_mask
from transformer_xl.model.positions import CONTENT_ATTENTION

EXACT = 1e-12


def drawn_inputs(*, lanes: int, queries: int, keys: int, heads: int, width: int, value_width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "query_BTNH": (lanes, queries, heads, width),
        "key_BSNH": (lanes, keys, heads, width),
        "value_BSNH": (lanes, keys, heads, value_width),
        "position_RNH": (keys + 1, heads, width),
        "content_bias_NH": (heads, width),
        "position_bias_NH": (heads, width),
    }
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


def causal_mask(*, lanes: int, queries: int, keys: int) -> AttentionMask:
    return AttentionMask(torch.ones(lanes, queries, keys, dtype=torch.bool).tril(keys - queries))


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    lanes=st.integers(1, 3),
    heads=st.integers(1, 3),
    segment_len=st.integers(1, 6),
    mem_len=st.integers(0, 6),
    same_length=st.booleans(),
    queries_at_once=st.sampled_from([1, 2, 3, 256]),
    scores_at_once=st.sampled_from([1, 30, 100, 1 << 20]),
)
def test_blockwise_equals_plain_forward_and_backward_however_it_is_cut(
    data: st.DataObject,
    lanes: int,
    heads: int,
    segment_len: int,
    mem_len: int,
    same_length: bool,
    queries_at_once: int,
    scores_at_once: int,
) -> None:
    slots = data.draw(st.integers(0, mem_len))
    mask = attention_mask(
        length_B=torch.tensor(data.draw(st.lists(st.integers(0, slots), min_size=lanes, max_size=lanes))),
        slots=slots,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=same_length and mem_len > 0,
        resets_BT=torch.rand(lanes, segment_len, generator=torch.Generator().manual_seed(slots)) < 0.2,
    )
    sizes = {"lanes": lanes, "queries": segment_len, "keys": slots + segment_len, "heads": heads}
    inputs = drawn_inputs(**sizes, width=4, value_width=3)
    upstream = torch.randn(lanes, segment_len, heads, 3, dtype=torch.float64)
    results: list[list[Tensor]] = []
    for attend in (plain_attention, blockwise_attention):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("transformer_xl.model.mask.QUERIES_AT_ONCE", queries_at_once)
            patch.setattr("transformer_xl.model.kernels.blockwise.SCORES_AT_ONCE", scores_at_once)
            attended = attend(**inputs, mask=AttentionMask(mask.visible_BTS), dropout=0.0)
            results.append([attended, *torch.autograd.grad(attended, list(inputs.values()), upstream)])
    for expected, actual in zip(*results, strict=True):
        assert_equal_to(actual, expected, within=EXACT)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_blockwise_gradients_are_those_of_its_results(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_xl.model.mask.QUERIES_AT_ONCE", 2)
    monkeypatch.setattr("transformer_xl.model.kernels.blockwise.SCORES_AT_ONCE", 20)
    inputs = drawn_inputs(lanes=2, queries=3, keys=5, heads=2, width=2, value_width=2)

    def attend(*tensors: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same weights are dropped each time
        named: dict[str, Any] = dict(zip(inputs, tensors, strict=True))
        return blockwise_attention(**named, mask=causal_mask(lanes=2, queries=3, keys=5), dropout=dropout)

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()))


def test_in_bfloat16_blockwise_is_as_near_to_exact_as_the_plain_one() -> None:
    sizes = {"lanes": 2, "queries": 6, "keys": 14, "heads": 2}
    inputs = drawn_inputs(**sizes, width=8, value_width=8)
    mask = causal_mask(lanes=2, queries=6, keys=14)
    upstream = torch.randn(2, 6, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def results(attend: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in inputs.items()}
        attended = attend(**leaves, mask=mask, dropout=0.0)
        return [attended, *torch.autograd.grad(attended, list(leaves.values()), upstream.to(dtype))]

    exact = results(plain_attention, torch.float64)
    plain, blockwise = (results(attend, torch.bfloat16) for attend in (plain_attention, blockwise_attention))
    for expected, one, other in zip(exact, plain, blockwise, strict=True):
        assert other.dtype == torch.bfloat16
        allowed = 2 * float((one.double() - expected).detach().abs().max()) + 1e-3
        assert_equal_to(other.double(), expected, within=allowed)


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    lanes=st.integers(1, 3),
    heads=st.integers(1, 3),
    segment_len=st.integers(1, 4),
    mem_len=st.integers(0, 6),
    same_length=st.booleans(),
    queries_at_once=st.sampled_from([1, 2, 256]),
    scores_at_once=st.sampled_from([1, 20, 60, 1 << 16]),
    heads_first=st.booleans(),
    many_keys=st.sampled_from([1, 1024]),
)
@torch.no_grad()
def test_without_gradients_it_equals_plain_however_it_is_cut(
    data: st.DataObject,
    lanes: int,
    heads: int,
    segment_len: int,
    mem_len: int,
    same_length: bool,
    queries_at_once: int,
    scores_at_once: int,
    heads_first: bool,
    many_keys: int,
) -> None:
    slots = data.draw(st.integers(0, mem_len))
    mask = attention_mask(
        length_B=torch.tensor(data.draw(st.lists(st.integers(0, slots), min_size=lanes, max_size=lanes))),
        slots=slots,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=same_length and mem_len > 0,
        resets_BT=torch.rand(lanes, segment_len, generator=torch.Generator().manual_seed(slots)) < 0.2,
    )
    sizes = {"lanes": lanes, "queries": segment_len, "keys": slots + segment_len, "heads": heads}
    inputs = drawn_inputs(**sizes, width=4, value_width=3)
    expected = plain_attention(**inputs, mask=mask, dropout=0.0)
    if heads_first:
        for name in ("key_BSNH", "value_BSNH"):
            stored = torch.nn.functional.pad(inputs[name].permute(2, 0, 1, 3), (0, 0, 2, 3), value=1e30)
            inputs[name] = stored[:, :, 2:-3].permute(1, 2, 0, 3)
        inputs["position_RNH"] = inputs["position_RNH"].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_xl.model.mask.QUERIES_AT_ONCE", queries_at_once)
        patch.setattr("transformer_xl.model.mask.MANY_KEYS", many_keys)
        patch.setattr("transformer_xl.model.mask.KEYS_ROUNDED_TO", 3)
        patch.setattr(module, "FORWARD_SCORES_AT_ONCE", scores_at_once)
        actual = blockwise_attention(**inputs, mask=AttentionMask(mask.visible_BTS), dropout=0.0)
        assert_equal_to(actual, expected, within=1e-12)
        patch.setattr(module, "QUERIES_ALONE", 1)
        patch.setattr(module, "SCORES_ALONE", 1)
        single = {name: tensor.float() for name, tensor in inputs.items()}
        actual = blockwise_attention(**single, mask=AttentionMask(mask.visible_BTS), dropout=0.0)
    assert_equal_to(actual, expected.float(), within=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("lanes", "queries"), [(1, 1), (2, 1), (1, 6), (2, 6)])
def test_in_bfloat16_without_gradients_it_is_as_near_to_exact_as_the_plain_one(lanes: int, queries: int) -> None:
    inputs = drawn_inputs(lanes=lanes, queries=queries, keys=14, heads=2, width=8, value_width=8)
    mask = AttentionMask(torch.ones(lanes, queries, 14, dtype=torch.bool).tril(14 - queries))
    rounded = {name: tensor.bfloat16() for name, tensor in inputs.items()}
    exact = plain_attention(**inputs, mask=mask, dropout=0.0)
    plain = plain_attention(**rounded, mask=mask, dropout=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = blockwise_attention(**rounded, mask=mask, dropout=0.0)
    assert actual.dtype == torch.bfloat16
    assert_equal_to(actual.double(), exact, within=2 * float((plain.double() - exact).abs().max()) + 1e-3)


BYTES_AT_ONCE = 16
"""What the kernel reads at once, from an address that must be a multiple of it."""


def sdpa_inputs(*, queries: int, keys: int, width: int, dtype: torch.dtype, requires_grad: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(queries + keys + width)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_(requires_grad)

    return {
        "query_BTNH": draw(2, queries, 2, width),
        "key_BSNH": draw(2, keys, 2, width),
        "value_BSNH": draw(2, keys, 2, width),
        "position_RNH": draw(keys + 1, 2, width),
        "content_bias_NH": draw(2, width),
        "position_bias_NH": draw(2, width),
    }


def causal_but_hidden(*, queries: int, keys: int, hidden: int) -> Tensor:
    """Every query sees itself and what is before it but for the first keys."""
    visible_BTS = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries).repeat(2, 1, 1)
    visible_BTS[:, :, :hidden] = False
    return visible_BTS


@pytest.mark.parametrize(("queries", "keys", "width"), [(5, 12, 8), (5, 16, 5), (7, 23, 41), (1, 9, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_and_the_heads_are_what_the_kernel_reads(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int, dtype: torch.dtype
) -> None:
    given: dict[str, Any] = {}

    def attention(query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Tensor:
        given.update(rest, query=query, key=key, value=value)
        return torch.zeros_like(query)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    inputs = sdpa_inputs(queries=queries, keys=keys, width=width, dtype=dtype, requires_grad=True)
    for name in ("content_bias_NH", "position_bias_NH"):
        inputs[name] = inputs[name].float()  # as under autocast, where parameters stay float32
    visible_BTS = causal_but_hidden(queries=queries, keys=keys, hidden=2)
    out = sdpa.sdpa_attention(**inputs, mask=AttentionMask(visible_BTS), dropout=0.25)
    bias = given["attn_mask"]
    assert out.shape == (2, queries, 2, width)
    assert bias.shape == (2, 2, queries, keys)
    assert bias.requires_grad
    assert given["dropout_p"] == 0.25
    assert given["scale"] == width**-0.5
    assert {bias.dtype, given["query"].dtype, given["key"].dtype, given["value"].dtype} == {dtype}
    assert bias.stride(-1) == 1
    assert all(stride % 8 == 0 for stride in bias.stride()[:-1])
    assert bias.data_ptr() % BYTES_AT_ONCE == 0
    assert all(given[name].shape[-1] % 8 == 0 for name in ("query", "key", "value"))
    assert torch.equal(bias.isinf(), ~visible_BTS[:, None].expand_as(bias))


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 6e-2)])
def test_long_stretches_of_hidden_keys_change_nothing(requires_grad: bool, dtype: torch.dtype, within: float) -> None:
    """Memory of full size that is nearly empty; without gradients torch takes another kernel on a CPU too."""
    sizes = {"queries": 9, "keys": 701}
    inputs = sdpa_inputs(**sizes, width=12, dtype=dtype, requires_grad=requires_grad)
    visible_BTS = causal_but_hidden(**sizes, hidden=690)
    out = sdpa.sdpa_attention(**inputs, mask=AttentionMask(visible_BTS), dropout=0.0)
    expected = plain_attention(**inputs, mask=AttentionMask(visible_BTS), dropout=0.0)
    torch.testing.assert_close(out, expected, rtol=0, atol=within)
    if requires_grad:
        for grad in torch.autograd.grad(out.float().square().sum(), list(inputs.values())):
            assert grad.isfinite().all()
            assert grad.any()


B, T, S, N, H = 2, 5, 12, 2, 4


every_kernel = pytest.mark.parametrize("content_attention", CONTENT_ATTENTION.values(), ids=CONTENT_ATTENTION)


def parts(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, T, N, H), (B, S, N, H), (B, S, N, H), (B, T, N, H)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def some_visible() -> torch.Tensor:
    visible_BTS = torch.rand(B, T, S, generator=torch.Generator().manual_seed(3)) < 0.5
    visible_BTS[:, :, 0] = True
    return visible_BTS


@every_kernel
def test_it_equals_a_loop_over_queries_and_keys_with_its_gradients(
    content_attention: Callable[..., torch.Tensor],
) -> None:
    *inputs, upstream = parts(0)
    visible_BTS = some_visible()
    query, key, value = (tensor.clone().requires_grad_() for tensor in inputs)
    rows = []
    for b in range(B):
        for t in range(T):
            for n in range(N):
                seen = [s for s in range(S) if visible_BTS[b, t, s]]
                weights = torch.stack([(query[b, t, n] @ key[b, s, n] / math.sqrt(H)).exp() for s in seen])
                rows.append(sum(w / weights.sum() * value[b, s, n] for w, s in zip(weights, seen, strict=True)))
    expected = torch.stack(rows).view(B, T, N, H)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    names = ("query_BTNH", "key_BSNH", "value_BSNH")
    actual = content_attention(**dict(zip(names, leaves, strict=True)), mask=AttentionMask(visible_BTS), dropout=0.0)
    assert_equal_to(actual, expected, within=1e-12)
    wanted = torch.autograd.grad(expected, (query, key, value), upstream)
    for gradient, loop in zip(torch.autograd.grad(actual, leaves, upstream), wanted, strict=True):
        assert_equal_to(gradient, loop, within=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@every_kernel
def test_weights_are_dropped_and_the_others_made_up_for_it(
    content_attention: Callable[..., torch.Tensor], dropout: float
) -> None:
    torch.manual_seed(0)
    ones = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    attended = content_attention(
        query_BTNH=ones.expand(200, 1, 1, 1),
        key_BSNH=ones.expand(200, 10, 1, 1),
        value_BSNH=ones.expand(200, 10, 1, 1),
        mask=AttentionMask(torch.ones(200, 1, 10, dtype=torch.bool)),
        dropout=dropout,
    )
    assert float(attended.mean()) == pytest.approx(1.0, abs=0.1)
    kept = attended.flatten() * 10 * (1 - dropout)  # a whole number of keys, each of weight 1/10
    assert_equal_to(kept, kept.round(), within=1e-9)
    assert (float(kept.std()) > 1) is (dropout > 0)
