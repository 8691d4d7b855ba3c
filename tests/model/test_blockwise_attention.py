from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny import assert_equal_to
from transformer_xl.model.attention import plain_attention
from transformer_xl.model.kernels.blockwise import blockwise_attention
from transformer_xl.model.mask import AttentionMask, attention_mask

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


def causal(*, lanes: int, queries: int, keys: int) -> AttentionMask:
    return AttentionMask(torch.ones(lanes, queries, keys, dtype=torch.bool).tril(keys - queries))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_xl.model.mask.QUERIES_AT_ONCE", 2)
    monkeypatch.setattr("transformer_xl.model.kernels.blockwise.SCORES_AT_ONCE", 20)


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
def test_it_equals_the_plain_one_forward_and_backward_however_it_is_cut(
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
def test_its_gradients_are_those_of_its_results(dropout: float) -> None:
    inputs = drawn_inputs(lanes=2, queries=3, keys=5, heads=2, width=2, value_width=2)

    def attend(*tensors: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same weights are dropped each time
        named: dict[str, Any] = dict(zip(inputs, tensors, strict=True))
        return blockwise_attention(**named, mask=causal(lanes=2, queries=3, keys=5), dropout=dropout)

    assert torch.autograd.gradcheck(attend, tuple(inputs.values()))


def test_the_same_seed_gives_the_same_bits() -> None:
    inputs = drawn_inputs(lanes=2, queries=5, keys=9, heads=2, width=4, value_width=4)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        attended = blockwise_attention(**inputs, mask=causal(lanes=2, queries=5, keys=9), dropout=0.3)
        results.append([attended, *torch.autograd.grad(attended.square().sum(), list(inputs.values()))])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_in_bfloat16_it_is_as_near_to_exact_as_the_plain_one() -> None:
    sizes = {"lanes": 2, "queries": 6, "keys": 14, "heads": 2}
    inputs = drawn_inputs(**sizes, width=8, value_width=8)
    mask = causal(lanes=2, queries=6, keys=14)
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


def test_keys_that_lie_heads_first_are_read_where_they_are() -> None:
    inputs = drawn_inputs(lanes=2, queries=3, keys=5, heads=2, width=2, value_width=2)
    mask = causal(lanes=2, queries=3, keys=5)
    expected = blockwise_attention(**inputs, mask=mask, dropout=0.0)
    stored = torch.zeros(2, 2, 9, 2, dtype=torch.float64)  # of which the keys are a part
    stored[:, :, 3:8] = inputs["key_BSNH"].detach().permute(2, 0, 1, 3)
    with torch.no_grad():
        actual = blockwise_attention(
            **{**inputs, "key_BSNH": stored[:, :, 3:8].permute(1, 2, 0, 3)}, mask=mask, dropout=0.0
        )
    assert_equal_to(actual, expected, within=EXACT)
