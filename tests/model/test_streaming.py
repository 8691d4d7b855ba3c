"""What a text's predictions may depend on: not on how it is cut, what else is in the batch, or earlier documents."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, difference, random_tokens, read, tiny_model
from transformer_xl.model.memory import join_lanes
from transformer_xl.model.transformer import Transformer

EXACT = 1e-9
pieces = st.lists(st.integers(1, 6), min_size=1, max_size=5)
variants = st.sampled_from([(False, None), (True, None), (False, 3), (True, 2)])


@cache
def model_of(pre_norm: bool, clamp_len: int | None, same_length: bool = False) -> Transformer:
    model = tiny_model(pre_norm=pre_norm, clamp_len=clamp_len, untie_r=pre_norm, same_length=same_length)
    return model.requires_grad_(False)


def drawn_resets(data: st.DataObject, lanes: int, length: int) -> Tensor | None:
    places = data.draw(st.none() | st.sets(st.tuples(st.integers(0, lanes - 1), st.integers(0, length - 1))))
    if places is None:
        return None
    resets_BT = torch.zeros(lanes, length, dtype=torch.bool)
    for lane, place in places:
        resets_BT[lane, place] = True
    return resets_BT


@settings(deadline=None, max_examples=40)
@given(data=st.data(), pieces=pieces, variant=variants, spare=st.integers(0, 4))
def test_with_memory_for_the_whole_text_any_cut_equals_one_pass(
    data: st.DataObject, pieces: list[int], variant: tuple[bool, int | None], spare: int
) -> None:
    model, length = model_of(*variant), sum(pieces)
    tokens_BT, resets_BT = random_tokens(2, length), drawn_resets(data, 2, length)
    empty = model.empty_memory(2, mem_len=length + spare)
    expected, memory_at_once = read(model, tokens_BT, empty, [length], resets_BT)
    actual, memory = read(model, tokens_BT, empty, pieces, resets_BT)
    assert_equal_to(actual, expected, within=EXACT)
    assert torch.equal(memory.length_B, memory_at_once.length_B)
    assert_equal_to(memory.hidden_LBMD, memory_at_once.hidden_LBMD, within=EXACT)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), pieces=pieces, variant=variants, mem_len=st.integers(1, 9))
def test_with_same_length_any_cut_equals_one_pass_at_any_mem_len(
    data: st.DataObject, pieces: list[int], variant: tuple[bool, int | None], mem_len: int
) -> None:
    model, length = model_of(*variant, same_length=True), sum(pieces)
    tokens_BT, resets_BT = random_tokens(2, length), drawn_resets(data, 2, length)
    empty = model.empty_memory(2, mem_len=mem_len)
    expected, memory_at_once = read(model, tokens_BT, empty, [length], resets_BT)
    actual, memory = read(model, tokens_BT, empty, pieces, resets_BT)
    assert_equal_to(actual, expected, within=EXACT)
    assert torch.equal(memory.length_B, memory_at_once.length_B)
    assert_equal_to(memory.hidden_LBMD, memory_at_once.hidden_LBMD, within=EXACT)


@pytest.mark.parametrize("mem_len", [0, 3, 7])
def test_without_same_length_a_short_memory_makes_the_cut_matter(mem_len: int) -> None:
    model, tokens_BT = model_of(False, None), random_tokens(2, 15)
    empty = model.empty_memory(2, mem_len=mem_len)
    at_once, _ = read(model, tokens_BT, empty, [15])
    in_pieces, _ = read(model, tokens_BT, empty, [5, 5, 5])
    assert difference(in_pieces[:, :5], at_once[:, :5]) < EXACT
    assert difference(in_pieces[:, 10:], at_once[:, 10:]) > 1e-3


@pytest.mark.parametrize("same_length", [False, True])
def test_a_token_changes_no_prediction_before_it_and_all_from_it_on(same_length: bool) -> None:
    model = model_of(False, None, same_length)
    _, memory = model(random_tokens(1, 9), model.empty_memory(1))
    tokens_BT = random_tokens(1, SEGMENT_LEN, seed=2)
    expected, after_expected = model.log_probs(tokens_BT, memory)
    for t in range(SEGMENT_LEN):
        changed = tokens_BT.clone()
        changed[0, t] = (changed[0, t] + 1) % V
        actual, after = model.log_probs(changed, memory)
        moved_T = (actual - expected).abs().amax(dim=-1)[0]
        assert torch.equal(actual[:, :t], expected[:, :t])
        assert moved_T[t:].min() > 1e-3
        kept = 7 - SEGMENT_LEN + t
        assert torch.equal(after.hidden_LBMD[:, :, :kept], after_expected.hidden_LBMD[:, :, :kept])


@pytest.mark.parametrize("same_length", [False, True])
def test_lanes_of_different_age_in_one_batch_equal_each_alone(same_length: bool) -> None:
    model = model_of(True, 4, same_length)
    histories = [random_tokens(1, age, seed=age) for age in (2, 5, 9)]
    read_alone = [model(history, model.empty_memory(1)).memory for history in histories]
    alone = [model.empty_memory(1), *read_alone]
    together = join_lanes(alone)
    assert together.length_B.tolist() == [0, 2, 5, 7]
    for seed in (10, 11):
        tokens_BT = random_tokens(4, SEGMENT_LEN, seed=seed)
        log_probs_BTV, together = model.log_probs(tokens_BT, together)
        for lane in range(4):
            expected, alone[lane] = model.log_probs(tokens_BT[lane : lane + 1], alone[lane])
            assert_equal_to(log_probs_BTV[lane : lane + 1], expected, within=EXACT)
            assert together.length_B[lane] == alone[lane].length_B[0]


def test_a_lane_reset_inside_a_segment_reads_as_the_document_alone_and_the_others_go_on() -> None:
    model, border = model_of(False, None), 2
    segments = [SEGMENT_LEN] * 7
    tokens_BT = random_tokens(2, sum(segments))
    start = 3 * SEGMENT_LEN + border
    resets_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    resets_BT[1, start] = True
    empty = model.empty_memory(2, mem_len=3 * SEGMENT_LEN + 2)
    actual, memory = read(model, tokens_BT, empty, segments, resets_BT)
    undisturbed, _ = read(model, tokens_BT, empty, segments)

    document = tokens_BT[1:, start:]
    one_lane = model.empty_memory(1, mem_len=empty.mem_len)
    alone, memory_alone = read(model, document, one_lane, [SEGMENT_LEN - border, *segments[4:]])
    assert_equal_to(actual[1:, start:], alone, within=EXACT)
    assert_equal_to(actual[0], undisturbed[0], within=EXACT)
    assert_equal_to(actual[1, :start], undisturbed[1, :start], within=EXACT)
    assert difference(actual[1, start:], undisturbed[1, start:]) > 1e-3
    assert memory.length_B.tolist() == [empty.mem_len, empty.mem_len]
    assert_equal_to(memory.hidden_LBMD[:, 1:], memory_alone.hidden_LBMD, within=EXACT)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_memory_zero_length_memory_and_masked_memory_are_the_same(pre_norm: bool, dtype: torch.dtype) -> None:
    model = tiny_model(pre_norm=pre_norm, dtype=dtype)
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    none = model.empty_memory(2, mem_len=0)
    no_slots = model.empty_memory(2)
    zeros = model.zero_memory(2)
    zeros.length_B.zero_()
    noise = torch.randn(zeros.hidden_LBMD.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    masked = model.zero_memory(2)
    masked.length_B.zero_()
    masked.hidden_LBMD.copy_(1e30 * noise)

    results = []
    for memory in (none, no_slots, zeros, masked):
        model.zero_grad()
        losses_BT, after = model.nll(tokens_BT, tokens_BT, memory)
        losses_BT.sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        follow_up, _ = model.log_probs(tokens_BT, after)
        results.append((model.log_probs(tokens_BT, memory).log_probs_BTV, gradients, follow_up))

    bound = 1e-12 if dtype == torch.float64 else 1e-4
    for log_probs_BTV, gradients, _ in results:
        assert_equal_to(log_probs_BTV, results[0][0], within=bound)
        assert_equal_to(gradients, results[0][1], within=bound)
    for with_zeros, with_poison in zip(results[2], results[3], strict=True):
        assert torch.equal(with_poison, with_zeros)
    assert_equal_to(results[3][2], results[1][2], within=bound)


def test_a_memory_of_zeros_is_attended_to() -> None:
    model, tokens_BT = model_of(False, None), random_tokens(2, SEGMENT_LEN)
    zeros = model.zero_memory(2)
    assert zeros.length_B.tolist() == [7, 7]
    assert zeros.hidden_LBMD.shape == (2, 2, 7, 16)
    assert not zeros.hidden_LBMD.any()
    with_zeros = model.log_probs(tokens_BT, zeros).log_probs_BTV
    without = model.log_probs(tokens_BT, model.empty_memory(2)).log_probs_BTV
    assert difference(with_zeros, without) > 1e-3


def test_without_memory_every_segment_is_read_as_the_first() -> None:
    with_none, with_some = tiny_model(mem_len=0), tiny_model(mem_len=7)
    memory = with_none.empty_memory(2)
    for seed in range(3):
        tokens_BT = random_tokens(2, SEGMENT_LEN, seed=seed)
        log_probs_BTV, memory = with_none.log_probs(tokens_BT, memory)
        fresh = with_some.log_probs(tokens_BT, with_some.empty_memory(2)).log_probs_BTV
        assert torch.equal(log_probs_BTV, fresh)
        assert memory.hidden_LBMD.shape == (2, 2, 0, 16)
        assert memory.length_B.tolist() == [0, 0]


def test_memory_says_how_long_it_is_whatever_the_model_was_made_with() -> None:
    long, short = tiny_model(mem_len=7), tiny_model(mem_len=3)
    tokens_BT = random_tokens(2, 15)
    asked, memory = read(long, tokens_BT, long.empty_memory(2, mem_len=3), [5, 5, 5])
    made, _ = read(short, tokens_BT, short.empty_memory(2), [5, 5, 5])
    usual, _ = read(long, tokens_BT, long.empty_memory(2), [5, 5, 5])
    assert memory.hidden_LBMD.shape[2] == 3
    assert torch.equal(asked, made)
    assert difference(asked, usual) > 1e-3
