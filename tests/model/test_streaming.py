"""Texts cut at random: by the model over its memory, and by sessions over cached keys and values."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import transformer_xl as txl
from tests.model.kinds import KINDS, TRANSFORMERS, model_of, one_reset
from tests.model.tiny import SEGMENT_LEN, assert_equal_to, cut, difference, random_tokens, read, tiny_model
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.kernels import linear
from transformer_xl.model.streaming import KVCache, Stream

EXACT = 1e-9


def drawn_resets(data: st.DataObject, lanes: int, length: int) -> Tensor | None:
    places = data.draw(st.none() | st.sets(st.tuples(st.integers(0, lanes - 1), st.integers(0, length - 1))))
    if places is None:
        return None
    resets_BT = torch.zeros(lanes, length, dtype=torch.bool)
    for lane, place in places:
        resets_BT[lane, place] = True
    return resets_BT


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


def test_memory_says_how_long_it_is_whatever_the_model_was_made_with() -> None:
    long, short = tiny_model(mem_len=7), tiny_model(mem_len=3)
    tokens_BT = random_tokens(2, 15)
    asked, memory = read(long, tokens_BT, long.empty_memory(2, mem_len=3), [5, 5, 5])
    made, _ = read(short, tokens_BT, short.empty_memory(2), [5, 5, 5])
    usual, _ = read(long, tokens_BT, long.empty_memory(2), [5, 5, 5])
    assert memory.hidden_LBMD.shape[2] == 3
    assert torch.equal(asked, made)
    assert difference(asked, usual) > 1e-3


ADAPTIVE = {"cutoffs": [8, 20], "div_val": 2, "d_embed": 12}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS},
    "adaptive": ("transformer_xl", ADAPTIVE),
    "blockwise": ("transformer_xl", {"attention": "blockwise", "untie_r": True}),
    "clamped": ("transformer_xl", {"clamp_len": 3, "pre_norm": True}),
    "clamped shaw": ("shaw", {"clamp_len": 2}),
    "pre-norm places": ("vaswani", {"pre_norm": True}),
}
CAN_LIMIT = sorted(name for name, (kind, _) in VARIANTS.items() if kind in TRANSFORMERS)


@cache
def variant(name: str, dtype: torch.dtype = torch.float64) -> LanguageModel:
    kind, changes = VARIANTS[name]
    model: LanguageModel = model_of(kind, dtype=dtype, **changes)
    return model.requires_grad_(False)


def read_on(session: Stream, tokens_BT: Tensor, pieces: list[int], resets_BT: Tensor | None = None) -> Tensor:
    return torch.cat(
        [
            session.log_probs(tokens_BT[:, piece], None if resets_BT is None else resets_BT[:, piece])
            for piece in cut(tokens_BT.shape[1], pieces)
        ],
        dim=1,
    )


@pytest.mark.parametrize("name", sorted(VARIANTS))
@settings(deadline=None, max_examples=8)
@given(
    data=st.data(),
    pieces=st.lists(st.integers(1, 8), min_size=1, max_size=7),
    mem_len=st.integers(0, 9),
    same_length=st.booleans(),
)
def test_a_session_reads_as_the_model_does(
    name: str, data: st.DataObject, pieces: list[int], mem_len: int, same_length: bool
) -> None:
    limits = name in CAN_LIMIT and same_length and mem_len > 0
    model = variant(name)
    tokens_BT, length = random_tokens(2, sum(pieces)), sum(pieces)
    resets_BT = drawn_resets(data, 2, length)
    reader = model.with_context(clamp_len=model.clamp_len, same_length=limits)
    expected, _ = read(reader, tokens_BT, model.empty_memory(2, mem_len), pieces, resets_BT)
    session = txl.stream(model, batch_size=2, mem_len=mem_len, same_length=limits)
    assert_equal_to(read_on(session, tokens_BT, pieces, resets_BT), expected, within=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_can_go_on_from_a_memory_of_the_model(kind: str) -> None:
    model, tokens_BT = variant(kind), random_tokens(2, 12)
    _, aged = read(model, random_tokens(2, 9), model.empty_memory(2), [9], one_reset(2, 9, lane=1, place=5))
    session = txl.stream(model, batch_size=2)
    for memory in (aged, model.zero_memory(2), model.empty_memory(2)):
        session.start_from(memory)
        expected, _ = read(model, tokens_BT, memory, [5, 7])
        assert_equal_to(read_on(session, tokens_BT, [5, 7]), expected, within=EXACT)
    shorter = txl.stream(model, batch_size=2, mem_len=3)
    if kind in TRANSFORMERS:
        shorter.start_from(aged)
        newest = {"hidden_LBMD": aged.hidden_LBMD[:, :, -3:], "length_B": aged.length_B.clamp(max=3)}
        hidden = replace(model.empty_memory(2, 3), **newest)
        expected, _ = read(model, tokens_BT, hidden, [5, 7])
        assert_equal_to(read_on(shorter, tokens_BT, [5, 7]), expected, within=EXACT)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_token_costs_its_own_projections_and_not_its_memorys(kind: str) -> None:
    model = model_of(kind)
    rows: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, inputs, output: rows.append(inputs[0].shape[:-1].numel()))
    session = txl.stream(model, batch_size=1)
    read_on(session, random_tokens(1, 30), [1] * 30)
    rows.clear()
    read_on(session, random_tokens(1, 30), [1] * 30)
    assert set(rows) == {1}  # one token's, and no positions
    assert len(rows) == 30 * 2 * 5  # keys and values, query, output, two of feed-forward


def test_keys_and_values_that_are_kept_take_the_room_of_the_memory_and_half_as_much() -> None:
    buffer, read_so_far = KVCache(), torch.empty(2, 1, 1, 0, 3)
    copies = 0
    for number in range(500):
        new = torch.full((2, 1, 1, 1, 3), float(number))
        place = buffer.newest(0).data_ptr() if number else 0
        read_so_far = torch.cat([read_so_far, new], dim=3)
        seen = buffer.append(new, keep=min(number, 100))
        assert torch.equal(seen, read_so_far[:, :, :, -101:])
        copies += seen.data_ptr() != place
        assert seen.untyped_storage().nbytes() <= 4 * 6 * max(4, 1.5 * min(number, 100) + 2)


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("how", ["autocast", "model"])
def test_in_bfloat16_a_session_reads_about_the_same(kind: str, how: str) -> None:
    exact, model = (model_of(kind, dtype=torch.float32) for _ in range(2))
    if how == "model":
        model.bfloat16()
    tokens_BT = random_tokens(2, 15)
    with torch.no_grad():
        expected, _ = read(exact, tokens_BT, exact.empty_memory(2), [5, 5, 1, 4])
    session = txl.stream(model, batch_size=2)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
        actual = read_on(session, tokens_BT, [5, 5, 1, 4])
    assert actual.dtype == torch.float32  # softmax and logarithm are
    assert 1e-4 < difference(actual, expected) < 0.5


def test_a_session_keeps_no_graph_and_outlives_inference_mode() -> None:
    model, tokens_BT = model_of("transformer_xl"), random_tokens(1, 20)
    session = txl.stream(model, batch_size=1)
    with torch.inference_mode():
        actual = [session.log_probs(tokens_BT[:, :10])]
    actual.append(session.log_probs(tokens_BT[:, 10:]))
    assert not any(part.requires_grad for part in actual)
    expected, _ = read(model, tokens_BT, model.empty_memory(1), [10, 10])
    assert_equal_to(torch.cat(actual, dim=1), expected.detach(), within=EXACT)


def test_what_a_session_cannot_do_is_refused() -> None:
    model, tokens_BT = model_of("transformer_xl"), random_tokens(2, SEGMENT_LEN)
    session = txl.stream(model, batch_size=2)
    with pytest.raises(ValueError, match="3 lanes and the memory has 2"):
        session.log_probs(random_tokens(3, SEGMENT_LEN))
    with pytest.raises(ValueError, match="mem_len is -1"):
        txl.stream(model, batch_size=2, mem_len=-1)
    with pytest.raises(ValueError, match="same_length is true with mem_len 0"):
        txl.stream(model, batch_size=2, mem_len=0, same_length=True).log_probs(tokens_BT)
    with pytest.raises(ValueError, match="clamp_len is 3"):
        txl.stream(model_of("transformer_rope"), batch_size=2, clamp_len=3).log_probs(tokens_BT)
    model.train()
    with pytest.raises(ValueError, match=r"eval\(\)"):
        session.log_probs(tokens_BT)


def test_a_session_made_before_eval_reads_without_dropout() -> None:
    model = model_of("transformer_xl", dtype=torch.float32, dropout=0.5).train()
    session = txl.stream(model, batch_size=2, mem_len=4)
    tokens_BT = random_tokens(2, 5)
    with pytest.raises(ValueError, match="call eval"):
        session.log_probs(tokens_BT)
    expected = txl.stream(model.eval(), batch_size=2, mem_len=4).log_probs(tokens_BT)
    assert torch.equal(session.log_probs(tokens_BT), expected)


def test_a_session_can_be_copied_to_read_on_in_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_WORTH_A_LAYOUT", 1)
    session = txl.stream(variant("transformer_xl", torch.float32), batch_size=2)
    session.log_probs(random_tokens(2, 5))
    copied = copy.deepcopy(session)
    one, other = random_tokens(2, 3, seed=1), random_tokens(2, 3, seed=2)
    session.log_probs(one)
    copied.log_probs(other)
    fresh = txl.stream(variant("transformer_xl", torch.float32), batch_size=2)
    fresh.log_probs(random_tokens(2, 5))
    fresh.log_probs(other)
    assert torch.equal(copied.log_probs(one), fresh.log_probs(one))


def test_the_last_prediction_and_lengths_of_ones_own() -> None:
    model, tokens_BT = model_of("shaw", mem_len=4, clamp_len=2), random_tokens(2, 9)
    expected, _ = read(model, tokens_BT, model.empty_memory(2), [4, 5])
    session = txl.stream(model, batch_size=2)
    actual = torch.stack([session.next_log_probs(tokens_BT[:, piece]) for piece in cut(9, [4, 5])], dim=1)
    assert_equal_to(actual, expected[:, [3, 8]].detach(), within=EXACT)
    unclamped = model.with_context(clamp_len=None, same_length=False)
    expected, _ = read(unclamped, tokens_BT, model.empty_memory(2), [4, 5])
    assert_equal_to(
        read_on(txl.stream(model, batch_size=2, clamp_len=None), tokens_BT, [4, 5]), expected.detach(), within=EXACT
    )
