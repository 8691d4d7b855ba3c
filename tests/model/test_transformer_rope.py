"""The rotary decoder, against complex numbers; and its memory of keys and values, against that of layer inputs."""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.model.kinds import contents, model_of, one_reset
from tests.model.test_streaming import drawn_resets
from tests.model.tiny import SEGMENT_LEN, assert_equal_to, difference, random_tokens, read
from transformer_xl.model.memory import KeyValueMemory, join_lanes, memory_from_state_dict

EXACT = 1e-9


def rope_model(**changes: Any) -> Any:
    return model_of("transformer_rope", **changes)


def turned(vector: Tensor, slot: int) -> list[complex]:
    """Take the halves of a head's vector as real and imaginary parts, and turn each pair h by slot / base^(2h/H)."""
    half = len(vector) // 2
    return [
        complex(vector[h], vector[half + h]) * cmath.exp(1j * slot / 100.0 ** (2 * h / len(vector)))
        for h in range(half)
    ]


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / ((x**2).mean() + 1e-6).sqrt() * gain


def model_in_loops(model: Any, tokens: list[int]) -> Tensor:
    """Give the last hidden states (T, D) of a text read at once."""
    rows = [model.embedding.weights[0][token] * 4.0 for token in tokens]
    for layer in model.layers:
        context = [normed(row, layer.attention_norm.weight) for row in rows]
        rows = [row + attended(layer.attention, context, i) for i, row in enumerate(rows)]
        rows = [row + fed(layer.feed_forward, normed(row, layer.feed_forward_norm.weight)) for row in rows]
    return torch.stack([normed(row, model.last_norm.weight) for row in rows])


def attended(attention: Any, context: list[Tensor], i: int) -> Tensor:
    key_weight, value_weight = attention.key_value.weight.chunk(2)
    heads = []
    for n in range(2):
        part = slice(8 * n, 8 * n + 8)
        query = turned(attention.query.weight[part] @ context[i], i)
        exponentials = []
        for j in range(i + 1):
            key = turned(key_weight[part] @ context[j], j)
            score = sum((q * k.conjugate()).real for q, k in zip(query, key, strict=True))
            exponentials.append(math.exp(score / math.sqrt(8)))
        values = [value_weight[part] @ context[j] for j in range(i + 1)]
        heads.append(sum(e / sum(exponentials) * value for e, value in zip(exponentials, values, strict=True)))
    return attention.output.weight @ torch.cat(heads)


def fed(feed_forward: Any, x: Tensor) -> Tensor:
    gate, up = (feed_forward.gate_up.weight @ x).chunk(2)
    return feed_forward.down.weight @ (gate / (1 + (-gate).exp()) * up)


@torch.no_grad()
def test_the_model_equals_one_written_in_loops() -> None:
    model, tokens_BT = rope_model(), random_tokens(1, 9)
    actual = model(tokens_BT, model.empty_memory(1)).hidden_BTD[0]
    assert_equal_to(actual, model_in_loops(model, tokens_BT[0].tolist()), within=EXACT)


def test_no_layer_has_a_bias_and_the_last_norm_is_there() -> None:
    names = [name for name, _ in rope_model().named_parameters()]
    assert [name for name in names if "bias" in name] == ["softmax.biases.0"]
    assert "last_norm.weight" in names


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    pieces=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    mem_len=st.integers(0, 9),
    same_length=st.booleans(),
)
def test_a_memory_of_keys_and_values_reads_as_one_of_layer_inputs(
    data: st.DataObject, pieces: list[int], mem_len: int, same_length: bool
) -> None:
    model = rope_model().with_context(clamp_len=None, same_length=same_length and mem_len > 0)
    tokens_BT, length = random_tokens(2, sum(pieces)), sum(pieces)
    resets_BT = drawn_resets(data, 2, length)
    with torch.no_grad():
        expected, hidden = read(model, tokens_BT, model.empty_memory(2, mem_len), pieces, resets_BT)
        actual, cache = read(model, tokens_BT, model.empty_cache(2, mem_len), pieces, resets_BT)
        assert_equal_to(actual, expected, within=EXACT)
        assert isinstance(cache, KeyValueMemory)
        assert torch.equal(cache.length_B, hidden.length_B)
        assert cache.mem_len == hidden.mem_len == mem_len
        for number, layer in enumerate(model.layers):
            key_value = layer.attention.key_value(layer.attention_norm(hidden.hidden_LBMD[number]))
            assert_equal_to(cache.key_value_LBMC[number], key_value, within=EXACT)


def test_losses_are_the_same_with_keys_and_values() -> None:
    model, tokens_BT = rope_model().requires_grad_(False), random_tokens(2, SEGMENT_LEN)
    _, hidden = model(random_tokens(2, 9, seed=3), model.empty_memory(2))
    _, cache = model(random_tokens(2, 9, seed=3), model.empty_cache(2))
    expected, actual = (model.nll(tokens_BT, tokens_BT, memory).nll_BT for memory in (hidden, cache))
    assert_equal_to(actual, expected, within=EXACT)


def test_with_keys_and_values_a_token_costs_its_own_projections_and_not_its_memorys() -> None:
    model = rope_model().requires_grad_(False)
    rows: list[int] = []
    for module in model.layers.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, inputs, output: rows.append(inputs[0].shape[1]))
    projected = {}
    for name, empty in (("inputs", model.empty_memory(1)), ("keys and values", model.empty_cache(1))):
        _, memory = read(model, random_tokens(1, 9), empty, [9])
        rows.clear()
        model(random_tokens(1, 1), memory)
        projected[name] = list(rows)
    one_layer = 5  # keys and values, query, output, gate, down
    assert projected["keys and values"] == [1] * (2 * one_layer)
    assert sorted(projected["inputs"]) == [1] * (2 * one_layer - 2) + [8, 8]


def test_lanes_of_keys_and_values_join_and_survive_a_checkpoint() -> None:
    model = rope_model().requires_grad_(False)
    ages = [model(random_tokens(1, age), model.empty_cache(1)).memory for age in (2, 5, 9)]
    joined = join_lanes(ages)
    assert joined.length_B.tolist() == [2, 5, 7]
    loaded = memory_from_state_dict(joined.state_dict())
    assert type(loaded) is KeyValueMemory
    tokens_BT = random_tokens(3, SEGMENT_LEN)
    actual = model(tokens_BT, loaded).hidden_BTD
    for lane, memory in enumerate(ages):
        assert_equal_to(actual[lane : lane + 1], model(tokens_BT[lane : lane + 1], memory).hidden_BTD, within=EXACT)
        assert torch.equal(contents(joined.lanes(slice(lane, lane + 1)))[:, :, -2:], contents(memory)[:, :, -2:])


def test_a_reset_lane_forgets_its_keys_and_values() -> None:
    model = rope_model().requires_grad_(False)
    _, memory = model(random_tokens(2, 9), model.empty_cache(2))
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    _, after = model(tokens_BT, memory, one_reset(2, SEGMENT_LEN, lane=1, place=3))
    assert after.length_B.tolist() == [7, 2]
    assert not after.key_value_LBMC[:, 1, :-2].any()
    assert after.key_value_LBMC[:, 1, -2:].all()


def test_keys_and_values_are_refused_while_weights_change() -> None:
    model = rope_model()
    with pytest.raises(ValueError, match="eval"):
        model.train()(random_tokens(2, SEGMENT_LEN), model.empty_cache(2))
    with pytest.raises(ValueError, match="mem_len is -1"):
        model.empty_cache(2, mem_len=-1)


def test_keys_and_values_keep_the_type_that_autocast_gives_them() -> None:
    model = rope_model(dtype=torch.float32).requires_grad_(False)
    memory = model.empty_cache(2)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden_BTD, memory = model(random_tokens(2, SEGMENT_LEN), memory)
        assert memory.key_value_LBMC.dtype == torch.bfloat16
    exact = rope_model(dtype=torch.float32)
    expected, _ = read(exact, random_tokens(2, SEGMENT_LEN).repeat(1, 2), exact.empty_memory(2), [5, 5])
    assert difference(exact.head_log_probs(hidden_BTD.float()), expected[:, 5:]) < 0.3


def test_what_either_half_adds_is_dropped_besides_embedding_and_last_hidden_states() -> None:
    model = rope_model(dropout=0.5).train()
    dropped: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, inputs, output, name=name: dropped.append(name))
    model(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))
    layers = [f"layers.{number}.dropout" for number in (0, 0, 1, 1)]
    assert dropped == ["dropout", *layers, "dropout"]
