"""The whole model against one written in loops from the paper: a lane, a layer, a query, a head, a key at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, random_tokens, tiny_model
from transformer_xl.model_config import TransformerConfig

Rows = list[Tensor]


def encoding(distance: int, width: int) -> Tensor:
    angles = [distance / 10000 ** (2 * f / width) for f in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def normed(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean()
    return centred / ((centred**2).mean() + 1e-5).sqrt() * weights[name + ".weight"] + weights[name + ".bias"]


class Reference:
    """One lane of the model."""

    def __init__(self, config: TransformerConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        self.memory: list[Rows] = [[] for _ in range(config.n_layer)]

    def read(self, tokens: list[int]) -> Tensor:
        """Give log-probabilities (T, V), and remember the segment."""
        table, bias = self.weights["embedding.weights.0"], self.weights["softmax.biases.0"]
        rows = [table[token] * math.sqrt(self.config.d_model) for token in tokens]
        for layer in range(self.config.n_layer):
            context = self.memory[layer] + rows
            self.memory[layer] = context[max(len(context) - self.config.mem_len, 0) :]
            rows = [self.layer(layer, context, place) for place in range(len(context) - len(rows), len(context))]
        logits = [torch.stack([table[v] @ row + bias[v] for v in range(V)]) for row in rows]
        return torch.stack([scores - scores.exp().sum().log() for scores in logits])

    def layer(self, layer: int, context: Rows, place: int) -> Tensor:
        weights = {
            name.removeprefix(f"layers.{layer}."): weight
            for name, weight in self.weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        x = context[place]
        if self.config.pre_norm:
            inputs = [normed(row, weights, "attention_norm") for row in context]
            x = x + self.attention(layer, weights, inputs, place)
            return x + self.feed_forward(weights, normed(x, weights, "feed_forward_norm"))
        x = normed(x + self.attention(layer, weights, context, place), weights, "attention_norm")
        return normed(x + self.feed_forward(weights, x), weights, "feed_forward_norm")

    def feed_forward(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        inner = weights["feed_forward.0.weight"] @ x + weights["feed_forward.0.bias"]
        positive = torch.stack([unit if unit > 0 else 0 * unit for unit in inner])
        return weights["feed_forward.3.weight"] @ positive + weights["feed_forward.3.bias"]

    def attention(self, layer: int, weights: Mapping[str, Tensor], inputs: Rows, place: int) -> Tensor:
        config, width = self.config, self.config.d_head
        pair = layer if config.untie_r else 0
        key_weight, value_weight = weights["attention.key_value.weight"].chunk(2)
        first = max(0, place - config.mem_len + 1) if config.same_length else 0
        heads = []
        for head in range(config.n_head):
            part = slice(head * width, (head + 1) * width)
            u, v = self.weights["content_bias"][pair, head], self.weights["position_bias"][pair, head]
            query = weights["attention.query.weight"][part] @ inputs[place]
            exponentials, attended = [], []
            for j in range(first, place + 1):
                distance = place - j if config.clamp_len is None else min(place - j, config.clamp_len)
                key = key_weight[part] @ inputs[j]
                r = weights["attention.position.weight"][part] @ encoding(distance, config.d_model)
                score = (query @ key + query @ r + u @ key + v @ r) / math.sqrt(width)
                exponentials.append(score.exp())
                attended.append(value_weight[part] @ inputs[j])
            total = sum(exponentials)
            heads.append(sum(e / total * value for e, value in zip(exponentials, attended, strict=True)))
        return weights["attention.output.weight"] @ torch.cat(heads)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"untie_r": True},
        {"pre_norm": True},
        {"clamp_len": 3},
        {"clamp_len": 0, "pre_norm": True},
        {"same_length": True, "mem_len": 3},
        {"untie_r": True, "pre_norm": True, "clamp_len": 4, "same_length": True},
        {"mem_len": 0},
    ],
    ids=lambda changes: ", ".join(f"{name} {value}" for name, value in changes.items()) or "as published",
)
def test_the_model_equals_one_written_in_loops(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    lanes = [Reference(model.config, weights) for _ in range(2)]
    memory = model.empty_memory(batch_size=2)
    for number, segment_len in enumerate((SEGMENT_LEN, 4, 3)):
        tokens_BT = random_tokens(2, segment_len, seed=number)
        with torch.no_grad():
            log_probs_BTV, memory = model.log_probs(tokens_BT, memory)
        expected = torch.stack([lane.read(row) for lane, row in zip(lanes, tokens_BT.tolist(), strict=True)])
        assert_equal_to(log_probs_BTV, expected, within=1e-9)
