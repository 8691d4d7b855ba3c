"""Texts cut at random: by the model over its memory, and by sessions over cached keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import transformer_xl as txl
from tests.model.kinds import KINDS, TRANSFORMERS, model_of, one_reset
from tests.model.tiny import SEGMENT_LEN, assert_equal_to, cut, difference, random_tokens, read
from transformer_xl.model.streaming import KVCache, Stream

EXACT = 1e-9


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_memory_zero_length_memory_and_masked_memory_are_the_same(pre_norm: bool, dtype: torch.dtype) -> None:
    model = model_of("transformer_xl", pre_norm=pre_norm, dtype=dtype)
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
    long, short = model_of("transformer_xl", mem_len=7), model_of("transformer_xl", mem_len=3)
    tokens_BT = random_tokens(2, 15)
    asked, memory = read(long, tokens_BT, long.empty_memory(2, mem_len=3), [5, 5, 5])
    made, _ = read(short, tokens_BT, short.empty_memory(2), [5, 5, 5])
    usual, _ = read(long, tokens_BT, long.empty_memory(2), [5, 5, 5])
    assert memory.hidden_LBMD.shape[2] == 3
    assert torch.equal(asked, made)
    assert difference(asked, usual) > 1e-3


def read_on(session: Stream, tokens_BT: Tensor, pieces: list[int], resets_BT: Tensor | None = None) -> Tensor:
    return torch.cat(
        [
            session.log_probs(tokens_BT[:, piece], None if resets_BT is None else resets_BT[:, piece])
            for piece in cut(tokens_BT.shape[1], pieces)
        ],
        dim=1,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_can_go_on_from_a_memory_of_the_model(kind: str) -> None:
    model, tokens_BT = model_of(kind), random_tokens(2, 12)
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
