"""What encodings of the place in the segment do, with a memory and without."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.model.kinds import OF_PLACES, model_of
from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, difference, random_tokens, read

every_kind = pytest.mark.parametrize("kind", OF_PLACES)


def last_prediction(model: Any, *segments: torch.Tensor) -> torch.Tensor:
    memory = model.empty_memory(1, mem_len=20)
    for segment in segments:
        log_probs_BTV, memory = model.log_probs(segment, memory)
    return log_probs_BTV[:, -1]


def swapped_with_memory(place: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Give two segments, and the same with their tokens at a place exchanged."""
    first = random_tokens(1, SEGMENT_LEN)
    second = (first + 7) % V
    changed = first.clone(), second.clone()
    changed[0][0, place], changed[1][0, place] = second[0, place], first[0, place]
    return [first, second], list(changed)


@every_kind
@pytest.mark.parametrize("place", range(SEGMENT_LEN - 1))
def test_place_p_of_the_last_segment_cannot_be_told_from_place_p_of_this_one(kind: str, place: int) -> None:
    """The last query of one layer sees both places, and what stands where makes no difference to it."""
    segments, swapped = swapped_with_memory(place)
    of_places, relative = model_of(kind, n_layer=1), model_of("transformer_xl", n_layer=1)
    assert_equal_to(last_prediction(of_places, *swapped), last_prediction(of_places, *segments), within=1e-12)
    assert difference(last_prediction(relative, *swapped), last_prediction(relative, *segments)) > 1e-3


@every_kind
def test_places_of_one_segment_can_be_told_apart(kind: str) -> None:
    model, segment = model_of(kind, n_layer=1), random_tokens(1, SEGMENT_LEN)
    swapped = segment[:, [1, 0, 2, 3, 4]]
    assert difference(last_prediction(model, swapped), last_prediction(model, segment)) > 1e-3


@every_kind
def test_a_segment_read_twice_looks_to_its_last_token_as_if_read_once(kind: str) -> None:
    """Every key stands there twice, with the same weight each time."""
    segment = random_tokens(1, SEGMENT_LEN)
    of_places, relative = model_of(kind, n_layer=1), model_of("transformer_xl", n_layer=1)
    assert_equal_to(last_prediction(of_places, segment, segment), last_prediction(of_places, segment), within=1e-12)
    assert difference(last_prediction(relative, segment, segment), last_prediction(relative, segment)) > 1e-3


@every_kind
def test_memory_keeps_each_segments_own_encodings(kind: str) -> None:
    model = model_of(kind)
    _, memory = read(model, random_tokens(1, 9), model.empty_memory(1, mem_len=9), [5, 4])
    table = model.embedding.weights[0]
    read_by_first_layer = memory.hidden_LBMD[0, 0]
    for row, token, place in zip(read_by_first_layer, random_tokens(1, 9)[0], [*range(5), *range(4)], strict=True):
        assert_equal_to(row, 4.0 * table[token] + encoding(model, place), within=1e-12)


def encoding(model: Any, place: int) -> torch.Tensor:
    if model.config.position.kind == "learned":
        return model.place_embedding[0, place]
    angles = [place / 10000 ** (2 * f / 16) for f in range(8)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def test_learned_places_are_added_to_every_layers_input() -> None:
    model = model_of("al_rfou", mem_len=20)
    outputs = []
    model.layers[0].register_forward_hook(lambda _, inputs, output: outputs.append(output))
    _, memory = model(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))
    expected = outputs[0] + model.place_embedding[1, :SEGMENT_LEN]
    assert_equal_to(memory.hidden_LBMD[1], expected, within=1e-12)
    assert model.place_embedding.shape == (2, 20, 16)


def test_embedding_and_sinusoid_have_one_dropout() -> None:
    torch.manual_seed(0)
    model = model_of("vaswani", dropout=0.5)
    tokens_BT = random_tokens(3, SEGMENT_LEN)
    kept = model(tokens_BT, model.empty_memory(3)).memory.hidden_LBMD[0]
    dropped = model.train()(tokens_BT, model.empty_memory(3)).memory.hidden_LBMD[0]
    survives = dropped != 0
    assert 0.35 < float(survives.double().mean()) < 0.65
    assert_equal_to(dropped[survives], 2 * kept[survives], within=1e-12)


def test_a_segment_longer_than_the_places_is_refused_with_both_numbers() -> None:
    model = model_of("al_rfou", n_positions=8)
    assert model.max_segment_len == 8
    assert model_of("vaswani").max_segment_len is None
    model(random_tokens(1, 8), model.empty_memory(1))
    with pytest.raises(ValueError, match=r"9 tokens.* at most 8"):
        model(random_tokens(1, 9), model.empty_memory(1))


@every_kind
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
