"""The rotary decoder, against complex numbers; and its memory of keys and values, against that of layer inputs."""

from __future__ import annotations

import cmath
import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.model.kinds import model_of
from tests.model.tiny import SEGMENT_LEN, assert_equal_to, random_tokens

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


def test_what_either_half_adds_is_dropped_besides_embedding_and_last_hidden_states() -> None:
    model = rope_model(dropout=0.5).train()
    dropped: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, inputs, output, name=name: dropped.append(name))
    model(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))
    layers = [f"layers.{number}.{part}" for number in (0, 1) for part in ("dropout", "feed_forward.dropout")]
    assert dropped == ["dropout", *layers, "dropout"]
