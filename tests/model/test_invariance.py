"""Models that know distances, or a state, read a text alike however it is cut into segments."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.kinds import INVARIANT, OF_PLACES, RECURRENT, contents, model_of
from tests.model.test_streaming import drawn_resets
from tests.model.tiny import assert_equal_to, difference, random_tokens, read

EXACT = 1e-9
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in INVARIANT if kind != "transformer_xl"),
    ("shaw", {"pre_norm": True, "max_distance": 0}),
    ("shaw", {"max_distance": 30}),
    ("shaw", {"clamp_len": 2, "max_distance": 6}),
]
SAME_LENGTH = [(kind, changes) for kind, changes in VARIANTS if kind not in RECURRENT]
pieces = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@cache
def model_numbered(number: int, same_length: bool) -> Any:
    kind, changes = (SAME_LENGTH if same_length else VARIANTS)[number]
    return model_of(kind, **changes, same_length=same_length).requires_grad_(False)


@pytest.mark.parametrize("number", range(len(VARIANTS)), ids=[str(variant) for variant in VARIANTS])
@settings(deadline=None, max_examples=15)
@given(data=st.data(), pieces=pieces, spare=st.integers(0, 4))
def test_with_memory_for_the_whole_text_any_cut_equals_one_pass(
    number: int, data: st.DataObject, pieces: list[int], spare: int
) -> None:
    model, length = model_numbered(number, False), sum(pieces)
    tokens_BT, resets_BT = random_tokens(2, length), drawn_resets(data, 2, length)
    empty = model.empty_memory(2, mem_len=length + spare)
    expected, at_once = read(model, tokens_BT, empty, [length], resets_BT)
    actual, memory = read(model, tokens_BT, empty, pieces, resets_BT)
    assert_equal_to(actual, expected, within=EXACT)
    assert_equal_to(contents(memory), contents(at_once), within=EXACT)


@pytest.mark.parametrize("number", range(len(SAME_LENGTH)), ids=[str(variant) for variant in SAME_LENGTH])
@settings(deadline=None, max_examples=15)
@given(data=st.data(), pieces=pieces, mem_len=st.integers(1, 9))
def test_with_same_length_any_cut_equals_one_pass_at_any_mem_len(
    number: int, data: st.DataObject, pieces: list[int], mem_len: int
) -> None:
    model, length = model_numbered(number, True), sum(pieces)
    tokens_BT, resets_BT = random_tokens(2, length), drawn_resets(data, 2, length)
    empty = model.empty_memory(2, mem_len=mem_len)
    expected, at_once = read(model, tokens_BT, empty, [length], resets_BT)
    actual, memory = read(model, tokens_BT, empty, pieces, resets_BT)
    assert_equal_to(actual, expected, within=EXACT)
    assert_equal_to(contents(memory), contents(at_once), within=EXACT)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("mem_len", [1, 2, 64])
def test_a_state_is_carried_whole_by_any_memory_above_nothing(kind: str, mem_len: int) -> None:
    model = model_of(kind)
    tokens_BT = random_tokens(2, 15)
    at_once, _ = read(model, tokens_BT, model.empty_memory(2, mem_len=0), [15])
    in_pieces, memory = read(model, tokens_BT, model.empty_memory(2, mem_len=mem_len), [4, 1, 10])
    assert_equal_to(in_pieces, at_once, within=EXACT)
    assert memory.mem_len == mem_len
    assert model.memory_size(mem_len) == model.memory_size(1)
    assert not model.attends


@pytest.mark.parametrize("kind", OF_PLACES)
def test_models_of_places_in_the_segment_read_it_otherwise_when_cut(kind: str) -> None:
    model, tokens_BT = model_of(kind), random_tokens(2, 15)
    empty = model.empty_memory(2, mem_len=15)
    at_once, _ = read(model, tokens_BT, empty, [15])
    in_pieces, _ = read(model, tokens_BT, empty, [5, 5, 5])
    assert_equal_to(in_pieces[:, :5], at_once[:, :5], within=EXACT)
    assert difference(in_pieces[:, 5:10], at_once[:, 5:10]) > 1e-3
    assert difference(in_pieces[:, 10:], at_once[:, 10:]) > 1e-3


def test_distances_beyond_the_last_learned_one_count_as_it() -> None:
    """The last learned distance itself still has an encoding of its own."""
    model = model_of("shaw", n_layer=1, max_distance=4, mem_len=20)
    tokens_BT = random_tokens(1, 12)
    expected = model.log_probs(tokens_BT, model.empty_memory(1)).log_probs_BTV[:, -1]
    for earlier, equal in (([0, 1], True), ([6, 7], True), ([7, 8], False), ([9, 10], False)):
        swapped = tokens_BT.clone()
        swapped[0, earlier] = tokens_BT[0, earlier[::-1]]
        assert not torch.equal(swapped, tokens_BT)
        actual = model.log_probs(swapped, model.empty_memory(1)).log_probs_BTV[:, -1]
        assert (difference(actual, expected) < EXACT) is equal
