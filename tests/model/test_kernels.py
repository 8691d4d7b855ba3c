"""Fast attention against the plain one, however it is cut; what CUDA demands of its inputs, without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.model.tiny import assert_equal_to, attended
from transformer_xl.model.attention import attention_mask, plain_attention
from transformer_xl.model.kernels import blockwise as module
from transformer_xl.model.kernels.blockwise import blockwise_attention
from transformer_xl.model.kernels.sdpa import sdpa_attention

EXACT = 1e-12
Inputs = dict[str, Tensor]


def drawn_inputs(*, queries: int, keys: int, width: int, value_width: int, lanes: int = 2, heads: int = 2) -> Inputs:
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


def causal(*, queries: int, keys: int, lanes: int = 2, hidden: int = 0) -> Tensor:
    """Every query sees itself and what is before it but for the first keys."""
    visible_BTS = torch.ones(lanes, queries, keys, dtype=torch.bool).tril(keys - queries)
    visible_BTS[:, :, :hidden] = False
    return visible_BTS


def with_gradients(attend: Any, inputs: Inputs, visible_BTS: Tensor, upstream: Tensor) -> list[Tensor]:
    output = attended(attend, inputs, visible_BTS)
    return [output, *torch.autograd.grad(output, list(inputs.values()), upstream)]


@settings(deadline=None, max_examples=120)
@given(
    data=st.data(),
    lanes=st.integers(1, 3),
    heads=st.integers(1, 3),
    segment_len=st.integers(1, 6),
    mem_len=st.integers(0, 6),
    same_length=st.booleans(),
    number_given=st.sampled_from([3, 6]),
    queries_at_once=st.sampled_from([1, 2, 3, 256]),
    scores_at_once=st.sampled_from([1, 20, 30, 60, 100, 1 << 20]),
    heads_first=st.booleans(),
    many_keys=st.sampled_from([1, 1024]),
)
def test_blockwise_equals_plain_with_and_without_gradients_however_it_is_cut(
    data: st.DataObject,
    lanes: int,
    heads: int,
    segment_len: int,
    mem_len: int,
    same_length: bool,
    number_given: int,
    queries_at_once: int,
    scores_at_once: int,
    heads_first: bool,
    many_keys: int,
) -> None:
    slots = data.draw(st.integers(0, mem_len))
    visible_BTS = attention_mask(
        length_B=torch.tensor(data.draw(st.lists(st.integers(0, slots), min_size=lanes, max_size=lanes))),
        slots=slots,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=same_length and mem_len > 0,
        resets_BT=torch.rand(lanes, segment_len, generator=torch.Generator().manual_seed(slots)) < 0.2,
    ).visible_BTS
    keys = slots + segment_len
    drawn = drawn_inputs(queries=segment_len, keys=keys, lanes=lanes, heads=heads, width=4, value_width=3)
    inputs = {name: drawn[name] for name in list(drawn)[:number_given]}
    upstream = torch.randn(lanes, segment_len, heads, 3, dtype=torch.float64)
    expected = with_gradients(plain_attention, inputs, visible_BTS, upstream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_xl.model.attention.QUERIES_AT_ONCE", queries_at_once)
        patch.setattr("transformer_xl.model.attention.MANY_KEYS", many_keys)
        patch.setattr("transformer_xl.model.attention.KEYS_ROUNDED_TO", 3)
        patch.setattr(module, "SCORES_AT_ONCE", scores_at_once)
        patch.setattr(module, "READING_SCORES_AT_ONCE", scores_at_once)
        actual = with_gradients(blockwise_attention, inputs, visible_BTS, upstream)
        for ours, plain in zip(actual, expected, strict=True):
            assert_equal_to(ours, plain, within=EXACT)
        with torch.no_grad():
            if heads_first:
                inputs = {name: as_kept(name, tensor) for name, tensor in inputs.items()}
            assert_equal_to(attended(blockwise_attention, inputs, visible_BTS), expected[0], within=EXACT)
            patch.setattr(module, "QUERIES_ALONE", 1)
            patch.setattr(module, "SCORES_ALONE", 1)
            single = {name: tensor.float() for name, tensor in inputs.items()}
            assert_equal_to(
                attended(blockwise_attention, single, visible_BTS), expected[0].detach().float(), within=1e-5
            )


def as_kept(name: str, tensor: Tensor) -> Tensor:
    """Lay an input out as sessions keep it."""
    if name in ("key_BSNH", "value_BSNH"):
        stored = functional.pad(tensor.permute(2, 0, 1, 3), (0, 0, 2, 3), value=1e30)
        return stored[:, :, 2:-3].permute(1, 2, 0, 3)
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_blockwise_gradients_are_those_of_its_results(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_xl.model.attention.QUERIES_AT_ONCE", 2)
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 20)
    inputs = drawn_inputs(queries=3, keys=5, width=2, value_width=2)

    def attend(*tensors: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same weights are dropped each time
        named = dict(zip(inputs, tensors, strict=True))
        return attended(blockwise_attention, named, causal(queries=3, keys=5), dropout=dropout)

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()))


@pytest.mark.parametrize(("lanes", "queries"), [(1, 1), (2, 1), (2, 6)])
def test_in_bfloat16_blockwise_is_as_near_to_exact_as_the_plain_one(lanes: int, queries: int) -> None:
    inputs = drawn_inputs(lanes=lanes, queries=queries, keys=14, width=8, value_width=8)
    visible_BTS = causal(lanes=lanes, queries=queries, keys=14)
    upstream = torch.randn(lanes, queries, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rounded = {name: tensor.detach().bfloat16().requires_grad_() for name, tensor in inputs.items()}
    exact = with_gradients(plain_attention, inputs, visible_BTS, upstream)
    plain = with_gradients(plain_attention, rounded, visible_BTS, upstream.bfloat16())
    blockwise = with_gradients(blockwise_attention, rounded, visible_BTS, upstream.bfloat16())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        read = attended(blockwise_attention, rounded, visible_BTS)
    for expected, one, other in zip([*exact, exact[0]], [*plain, plain[0]], [*blockwise, read], strict=True):
        assert other.dtype == torch.bfloat16
        allowed = 2 * float((one.double() - expected).detach().abs().max()) + 1e-3
        assert_equal_to(other.double(), expected, within=allowed)


BYTES_AT_ONCE = 16
"""What CUDA's kernel reads at once, from an address that must be a multiple of it."""


@pytest.mark.parametrize(("queries", "keys", "width"), [(5, 12, 8), (7, 23, 41), (1, 9, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_and_the_heads_are_what_the_fused_kernel_reads(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int, dtype: torch.dtype
) -> None:
    given: dict[str, Any] = {}

    def attention(query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Tensor:
        given.update(rest, query=query, key=key, value=value)
        return torch.zeros_like(query)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    drawn = drawn_inputs(queries=queries, keys=keys, width=width, value_width=width)
    inputs = {name: tensor.float() if "bias" in name else tensor.to(dtype) for name, tensor in drawn.items()}
    visible_BTS = causal(queries=queries, keys=keys, hidden=2)
    out = attended(sdpa_attention, inputs, visible_BTS, dropout=0.25)
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
    drawn = drawn_inputs(queries=9, keys=701, width=12, value_width=12)
    inputs = {name: tensor.detach().to(dtype).requires_grad_(requires_grad) for name, tensor in drawn.items()}
    visible_BTS = causal(queries=9, keys=701, hidden=690)
    out = attended(sdpa_attention, inputs, visible_BTS)
    assert_equal_to(out, attended(plain_attention, inputs, visible_BTS), within=within)
    if requires_grad:
        for grad in torch.autograd.grad(out.float().square().sum(), list(inputs.values())):
            assert grad.isfinite().all()
            assert grad.any()
