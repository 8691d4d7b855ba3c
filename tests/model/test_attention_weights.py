"""Attention weights of every kind of model, against the loop that its attention is tested with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.kinds import RECURRENT, TRANSFORMERS, aged, contents, joined, model_of, one_reset
from tests.model.test_attention import TERMS, B, H, Inputs, M, N, S, Score, T, four_terms, weights_by_loop
from tests.model.test_networks import normed, turned
from tests.model.tiny import assert_equal_to, random_tokens

AGES = (9, 3)
RESETS = one_reset(B, T, lane=1, place=2)
every_kind = pytest.mark.parametrize("kind", TRANSFORMERS)


def visible_by_definition() -> Tensor:
    """Memory is as full as a lane is old; nothing comes from later, or from before the document."""
    visible_BTS = torch.zeros(B, T, S, dtype=torch.bool)
    for b in range(B):
        for i in range(T):
            first = M - min(AGES[b], M)
            for border in range(i + 1):
                if RESETS[b, border]:
                    first = M + border
            visible_BTS[b, i, first : M + i + 1] = True
    return visible_BTS


def per_head(rows_BSD: Tensor, weight: Tensor) -> Tensor:
    return (rows_BSD @ weight.T).unflatten(-1, (N, H))


def turned_by_slot(vector_BSNH: Tensor, *, first: int) -> Tensor:
    """Turn every head's vector as a list of complex numbers; their real products are those of the parts."""
    turned_BSNH = torch.empty_like(vector_BSNH)
    for b, s, n in torch.cartesian_prod(*map(torch.arange, vector_BSNH.shape[:3])).tolist():
        pairs = turned(vector_BSNH[b, s, n], first + s)
        parts = [*(pair.real for pair in pairs), *(pair.imag for pair in pairs)]
        turned_BSNH[b, s, n] = torch.tensor(parts, dtype=torch.float64)
    return turned_BSNH


def by_distance(model: Any, attention: Any) -> Tensor:
    """What scores know of the distances S-1 ... 0, for the loop's score."""
    distances = range(S - 1, -1, -1)
    if model.config.position.kind == "shaw":
        table = attention.distance_embedding
        nearest = [min(distance, 4) for distance in distances]
        return torch.cat([table.weight[nearest], table.bias[nearest][..., None]], dim=-1)
    angles = [[distance / 10000 ** (2 * f / 16) for f in range(8)] for distance in distances]
    rows = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    return per_head(torch.tensor(rows, dtype=torch.float64), attention.position.weight)


def shaw_score(q: Tensor, k: Tensor, r: Tensor, u: Tensor, v: Tensor) -> Tensor:
    return (q + u) @ k + q @ r[:-1] + r[-1]


def inputs_of(model: Any, number: int, rows_BSD: Tensor) -> tuple[Inputs, Score]:
    kind, layer = model.config.position.kind, model.layers[number]
    attention = layer.attention
    if kind == "rotary":
        rows_BSD = torch.stack([torch.stack([normed(row, layer.attention_norm.weight) for row in b]) for b in rows_BSD])
    elif model.config.pre_norm:
        rows_BSD = layer.attention_norm(rows_BSD)
    query_BTNH = per_head(rows_BSD[:, M:], attention.query.weight)
    key_BSNH = per_head(rows_BSD, attention.key_value.weight[: N * H])
    nothing = {
        "position_RNH": torch.zeros(S, N, H, dtype=torch.float64),
        "content_bias_NH": torch.zeros(N, H, dtype=torch.float64),
        "position_bias_NH": torch.zeros(N, H, dtype=torch.float64),
    }
    known: Inputs = {}
    score = TERMS["content to content"]
    if kind == "rotary":
        query_BTNH, key_BSNH = turned_by_slot(query_BTNH, first=M), turned_by_slot(key_BSNH, first=0)
    elif kind == "shaw":
        known = {"position_RNH": by_distance(model, attention), "content_bias_NH": attention.content_bias}
        score = shaw_score
    elif kind == "relative":
        pair = number if model.config.untie_r else 0
        known = {
            "position_RNH": by_distance(model, attention),
            "content_bias_NH": model.content_bias[pair],
            "position_bias_NH": model.position_bias[pair],
        }
        score = four_terms
    return {"query_BTNH": query_BTNH, "key_BSNH": key_BSNH, **nothing, **known}, score


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {}) for kind in TRANSFORMERS), ("transformer_xl", {"pre_norm": True, "untie_r": True})],
)
@torch.no_grad()
def test_the_weights_of_every_layer_equal_a_loop_and_sum_to_one(kind: str, changes: dict[str, Any]) -> None:
    model = model_of(kind, **changes)
    memory = joined(aged(model, *AGES))
    tokens_BT = random_tokens(B, T)
    read: list[Tensor] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args, kwargs: read.append(args[0]), with_kwargs=True)
    weights_LBNTS, after = model.attention_weights(tokens_BT, memory, RESETS)
    assert weights_LBNTS.shape == (2, B, N, T, S)
    assert_equal_to(weights_LBNTS.sum(-1), torch.ones(2, B, N, T, dtype=torch.float64), within=1e-12)
    for number in range(2):
        inputs, score = inputs_of(model, number, torch.cat([contents(memory)[number], read[number]], dim=1))
        expected_BNTS = weights_by_loop(inputs, visible_by_definition(), score)
        assert_equal_to(weights_LBNTS[number], expected_BNTS, within=1e-12)
    assert torch.equal(contents(after), contents(model(tokens_BT, memory, RESETS).memory))


@every_kind
@torch.no_grad()
def test_weights_are_those_before_dropout(kind: str) -> None:
    model = model_of(kind, dropatt=0.5)
    (memory,) = aged(model, 9)
    tokens_BT = random_tokens(1, T)
    expected = model.attention_weights(tokens_BT, memory).weights_LBNTS
    first_layer = model.train().attention_weights(tokens_BT, memory).weights_LBNTS[0]
    assert torch.equal(first_layer, expected[0])


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_network_without_attention_says_so(kind: str) -> None:
    model = model_of(kind)
    with pytest.raises(ValueError, match=f"{kind} has no attention"):
        model.attention_weights(random_tokens(1, T), model.empty_memory(1))
