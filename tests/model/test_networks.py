"""What sets the networks apart: rotary positions and SwiGLU, places in the segment, tables of distances, states."""

from __future__ import annotations

import cmath
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.model.kinds import OF_PLACES, RECURRENT, model_of
from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, difference, random_tokens


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
    assert_equal_to(actual, model_in_loops(model, tokens_BT[0].tolist()), within=1e-9)


def test_a_segment_longer_than_the_places_is_refused_with_both_numbers() -> None:
    model = model_of("al_rfou", n_positions=8)
    assert model.max_segment_len == 8
    assert model_of("vaswani").max_segment_len is None
    model(random_tokens(1, 8), model.empty_memory(1))
    with pytest.raises(ValueError, match="segment_len is 9, and must be at most 8"):
        model(random_tokens(1, 9), model.empty_memory(1))


@pytest.mark.parametrize("kind", OF_PLACES)
def test_places_go_on_counting_after_a_document_border(kind: str) -> None:
    model = model_of(kind)
    tokens_BT = random_tokens(1, SEGMENT_LEN)
    resets_BT = torch.tensor([[False, False, True, False, False]])
    inside = model.log_probs(tokens_BT, model.empty_memory(1), resets_BT).log_probs_BTV[:, 2:]
    alone = model.log_probs(tokens_BT[:, 2:], model.empty_memory(1)).log_probs_BTV
    assert difference(inside, alone) > 1e-3
    before = torch.full((1, 2), V - 1)
    other = model.log_probs(torch.cat([before, tokens_BT[:, 2:]], 1), model.empty_memory(1), resets_BT).log_probs_BTV
    assert_equal_to(other[:, 2:], inside, within=1e-12)


NETWORKS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def as_one_network(model: Any, kind: str) -> Any:
    """Give torch's own network of several layers with the model's weights."""
    network = NETWORKS[kind](16, 16, num_layers=len(model.layers), batch_first=True).double()
    for number, layer in enumerate(model.layers):
        for name, parameter in layer.network.named_parameters():
            network.get_parameter(name.replace("l0", f"l{number}")).data.copy_(parameter.data)
    return network


@pytest.mark.parametrize("kind", RECURRENT)
def test_it_equals_torchs_network_of_several_layers(kind: str) -> None:
    model = model_of(kind, n_layer=3)
    network, memory, state = as_one_network(model, kind), model.empty_memory(2), None
    for seed in range(3):
        tokens_BT = random_tokens(2, SEGMENT_LEN, seed=seed)
        hidden_BTD, memory = model(tokens_BT, memory)
        expected, state = network(4.0 * model.embedding.weights[0][tokens_BT], state)
        assert_equal_to(hidden_BTD, expected, within=1e-12)
        states = list(state) if kind == "lstm" else [state]
        assert_equal_to(memory.state_KLBD, torch.stack(states), within=1e-12)


@pytest.mark.parametrize("kind", RECURRENT)
def test_every_lane_begins_anew_exactly_at_its_own_resets(kind: str) -> None:
    model = model_of(kind)
    tokens_BT = random_tokens(3, 6)
    resets_BT = torch.zeros(3, 6, dtype=torch.bool)
    resets_BT[0, [2, 5]] = resets_BT[1, [0, 2]] = True
    (_, memory) = model(random_tokens(3, 4, seed=2), model.empty_memory(3))
    actual, after = model(tokens_BT, memory, resets_BT)
    for lane, borders in enumerate(([0, 2, 5, 6], [0, 2, 6], [0, 6])):
        state = memory.lanes(slice(lane, lane + 1))
        for start, stop in pairwise(borders):
            if resets_BT[lane, start]:
                state = model.empty_memory(1)
            expected, state = model(tokens_BT[lane : lane + 1, start:stop], state)
            assert_equal_to(actual[lane : lane + 1, start:stop], expected, within=1e-12)
        assert_equal_to(after.state_KLBD[:, :, lane : lane + 1], state.state_KLBD, within=1e-12)


@pytest.mark.parametrize("kind", RECURRENT)
def test_what_a_lane_forgets_may_be_infinite(kind: str) -> None:
    model = model_of(kind)
    memory = model.empty_memory(2)
    memory.state_KLBD[:, :, 1] = torch.nan
    resets_BT = torch.zeros(2, SEGMENT_LEN, dtype=torch.bool)
    resets_BT[1, 0] = True
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    poisoned = model(tokens_BT, memory, resets_BT).hidden_BTD
    assert_equal_to(poisoned, model(tokens_BT, model.empty_memory(2)).hidden_BTD, within=1e-12)
