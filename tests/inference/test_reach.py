"""How far back outputs depend on the text: measured, by the rules, and seen in predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.model.kinds import RECURRENT, TRANSFORMERS, model_of
from tests.model.tiny import V, random_tokens
from transformer_xl.errors import UserError
from transformer_xl.inference.reach import reach, reach_by_rule


def measured(model: Any, segment_len: int, mem_len: int, same_length: bool, clamp_len: int | None = None) -> Any:
    return reach(model, segment_len=segment_len, mem_len=mem_len, clamp_len=clamp_len, same_length=same_length)


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize(
    ("segment_len", "mem_len", "same_length", "expected"),
    [
        (5, 7, True, (6, 12, 18)),
        (3, 8, True, (7, 14, 21)),
        (6, 1, True, (0, 0, 0)),
        (5, 7, False, (11, 21, 31)),
        (4, 8, False, (11, 19, 27)),
        (7, 3, False, (9, 16, 23)),
        (6, 0, False, (5, 5, 5)),
    ],
)
def test_each_layer_reaches_as_far_as_the_rules_say(
    kind: str, segment_len: int, mem_len: int, same_length: bool, expected: tuple[int, ...]
) -> None:
    found = measured(model_of(kind, n_layer=3), segment_len, mem_len, same_length)
    assert found.distances == expected
    rule = reach_by_rule(layers=3, segment_len=segment_len, mem_len=mem_len, same_length=same_length)
    assert rule == expected


def test_a_change_that_would_fade_on_its_way_is_followed_to_the_end() -> None:
    model = model_of("transformer_xl", n_layer=12, pre_norm=True)
    assert measured(model, 6, 5, True, clamp_len=3).distances == tuple(4 * layer for layer in range(1, 13))


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_key_that_weighs_next_to_nothing_is_read_all_the_same(kind: str) -> None:
    model = model_of(kind, n_layer=3)
    for name, parameter in model.named_parameters():
        if ".attention." in name or name.endswith("_bias"):
            parameter.data.mul_(30.0)
    assert measured(model, 5, 7, False).distances == (11, 21, 31)


@pytest.mark.parametrize("same_length", [True, False])
@torch.no_grad()
def test_predictions_of_a_small_model_change_exactly_as_far_as_its_last_layer_reaches(same_length: bool) -> None:
    segment_len, mem_len, length = 4, 6, 32
    model = model_of("transformer_xl")
    reader = model.with_context(clamp_len=None, same_length=same_length)
    text = random_tokens(1, length)
    furthest = 0
    for changed in range(segment_len):
        other = text.clone()
        other[0, changed] = (other[0, changed] + 1) % V
        outputs = []
        for tokens_BT in (text, other):
            memory, hidden = reader.empty_memory(1, mem_len), []
            for start in range(0, length, segment_len):
                hidden_BTD, memory = reader(tokens_BT[:, start : start + segment_len], memory)
                hidden.append(hidden_BTD)
            outputs.append(torch.cat(hidden, dim=1)[0])
        moved = (outputs[0] - outputs[1]).abs().amax(dim=-1) > 1e-12
        furthest = max(furthest, int(moved.nonzero().max()) - changed)
    assert measured(model, segment_len, mem_len, same_length).distances[-1] == furthest


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = model_of("transformer_rope", dtype=torch.float32)
    model.vocabulary = "its own"
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measured(model, 3, 4, False)
    assert model.vocabulary == "its own"
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_network_without_attention_is_refused_by_the_settings_name(kind: str) -> None:
    with pytest.raises(UserError, match=f"eval.reach is true, and must be false for {kind}"):
        measured(model_of(kind), 3, 4, False)
