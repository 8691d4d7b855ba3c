"""Learned encodings of the distance, against loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.model.kinds import contents, model_of
from tests.model.tiny import SEGMENT_LEN, assert_equal_to, random_tokens
from transformer_xl.model.mask import AttentionMask


def attention_in_loops(attention: Any, context_SD: torch.Tensor, segment_len: int, furthest: int) -> torch.Tensor:
    keys, width = len(context_SD), 8
    key_weight, value_weight = attention.key_value.weight.chunk(2)
    table = attention.distance_embedding
    rows = []
    for i in range(keys - segment_len, keys):
        heads = []
        for n in range(2):
            part = slice(n * width, (n + 1) * width)
            query = attention.query.weight[part] @ context_SD[i]
            exponentials, values = [], []
            for j in range(i + 1):
                distance = min(i - j, furthest)
                key = key_weight[part] @ context_SD[j]
                learned = query @ table.weight[distance, n] + table.bias[distance, n]
                score = ((query + attention.content_bias[n]) @ key + learned) / math.sqrt(width)
                exponentials.append(score.exp())
                values.append(value_weight[part] @ context_SD[j])
            total = sum(exponentials)
            heads.append(sum(e / total * value for e, value in zip(exponentials, values, strict=True)))
        rows.append(attention.output.weight @ torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("slots", [0, 7])
@pytest.mark.parametrize(
    ("changes", "furthest"),
    [
        ({"max_distance": 4}, 4),
        ({"max_distance": 30}, 30),
        ({"max_distance": 0}, 0),
        ({"max_distance": 4, "clamp_len": 2}, 2),
        ({"max_distance": 4, "clamp_len": 9}, 4),
        ({"max_distance": 4, "clamp_len": 0}, 0),
    ],
    ids=str,
)
def test_attention_equals_one_written_in_loops_with_its_gradients(
    slots: int, changes: dict[str, Any], furthest: int
) -> None:
    model = model_of("shaw", **changes)
    generator = torch.Generator().manual_seed(1)
    context_BSD = torch.randn(2, slots + SEGMENT_LEN, 16, generator=generator, dtype=torch.float64)
    upstream = torch.randn(2, SEGMENT_LEN, 16, generator=generator, dtype=torch.float64)
    attention = model.layers[1].attention
    encoding = model.encodings(keys=slots + SEGMENT_LEN, like=context_BSD)[1]
    visible_TS = torch.ones(SEGMENT_LEN, slots + SEGMENT_LEN, dtype=torch.bool).tril(slots)
    actual = attention(
        context_BSD[:, slots:],
        attention.keys_and_values(context_BSD),
        mask=AttentionMask(visible_TS.expand(2, -1, -1)),
        encoding=encoding,
    )
    expected = torch.stack([attention_in_loops(attention, lane, SEGMENT_LEN, furthest) for lane in context_BSD])
    assert_equal_to(actual, expected, within=1e-12)
    names, parameters = zip(*attention.named_parameters(), strict=True)
    gradients = torch.autograd.grad(actual, parameters, upstream)
    wanted = torch.autograd.grad(expected, parameters, upstream)
    for name, gradient, loop in zip(names, gradients, wanted, strict=True):
        assert torch.allclose(gradient, loop, rtol=0, atol=1e-11), name


def test_every_layer_has_tables_and_a_bias_of_its_own() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in model_of("shaw").named_parameters()}
    for layer in range(2):
        attention = f"layers.{layer}.attention."
        assert shapes[attention + "distance_embedding.weight"] == (5, 2, 8)
        assert shapes[attention + "distance_embedding.bias"] == (5, 2)
        assert shapes[attention + "content_bias"] == (2, 8)


def test_another_clamp_reads_as_a_model_made_with_it() -> None:
    model, made = model_of("shaw"), model_of("shaw", clamp_len=2)
    twin = model.with_context(clamp_len=2, same_length=False)
    tokens_BT = random_tokens(1, 9)
    actual, expected, unclamped = (m(tokens_BT, m.empty_memory(1)) for m in (twin, made, model))
    assert torch.equal(actual.hidden_BTD, expected.hidden_BTD)
    assert torch.equal(contents(actual.memory), contents(expected.memory))
    assert (actual.hidden_BTD - unclamped.hidden_BTD).abs().max() > 1e-3
