"""Attention without gradients, against the plain one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.test_blockwise_attention import drawn_inputs
from tests.model.tiny import assert_equal_to
from transformer_xl.model.attention import plain_attention
from transformer_xl.model.kernels import forward_attention as module
from transformer_xl.model.kernels.blockwise import blockwise_attention
from transformer_xl.model.mask import AttentionMask, attention_mask


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
def test_it_equals_the_plain_one_however_it_is_cut(
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
        patch.setattr(module, "SCORES_AT_ONCE", scores_at_once)
        actual = blockwise_attention(**inputs, mask=AttentionMask(mask.visible_BTS), dropout=0.0)
        assert_equal_to(actual, expected, within=1e-12)
        patch.setattr(module, "QUERIES_ALONE", 1)
        patch.setattr(module, "SCORES_ALONE", 1)
        single = {name: tensor.float() for name, tensor in inputs.items()}
        actual = blockwise_attention(**single, mask=AttentionMask(mask.visible_BTS), dropout=0.0)
    assert_equal_to(actual, expected.float(), within=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("lanes", "queries"), [(1, 1), (2, 1), (1, 6), (2, 6)])
def test_in_bfloat16_it_is_as_near_to_exact_as_the_plain_one(lanes: int, queries: int) -> None:
    inputs = drawn_inputs(lanes=lanes, queries=queries, keys=14, heads=2, width=8, value_width=8)
    mask = AttentionMask(torch.ones(lanes, queries, 14, dtype=torch.bool).tril(14 - queries))
    rounded = {name: tensor.bfloat16() for name, tensor in inputs.items()}
    exact = plain_attention(**inputs, mask=mask, dropout=0.0)
    plain = plain_attention(**rounded, mask=mask, dropout=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = blockwise_attention(**rounded, mask=mask, dropout=0.0)
    assert actual.dtype == torch.bfloat16
    assert_equal_to(actual.double(), exact, within=2 * float((plain.double() - exact).abs().max()) + 1e-3)
