"""Attention by distance, against sums over single weights."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.laid_out import evaluation_lanes
from tests.model.kinds import model_of
from tests.model.tiny import V
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import LaneSource
from transformer_xl.data.stream import EvalStream
from transformer_xl.inference.evaluate import AttentionByDistance, attention_by_distance, context_of

T, M = 5, 7
TOKENS = np.random.default_rng(0).integers(0, V, 51).astype(np.uint8)
BORDERS = (0, 8, 21, 40)
"""Documents begin inside of segments; the last lane ends in positions that do not count."""


def source(batch_size: int, *, borders: tuple[int, ...]) -> LaneSource:
    return evaluation_lanes(TOKENS, batch_size=batch_size, split="test", starts=np.array(borders, np.int64))


def lengths(**changes: Any) -> EvalConfig:
    values = {"batch_size": 3, "segment_len": T, "mem_len": M, "clamp_len": None, "same_length": False, "stride": None}
    return EvalConfig(**(values | changes))


def looked_at(
    model: Any, reading: EvalConfig, *, max_tokens: int, borders: tuple[int, ...] = BORDERS
) -> AttentionByDistance:
    lanes = source(reading.batch_size, borders=borders)
    return attention_by_distance(model, lanes, context_of(reading), max_tokens=max_tokens, autocast=nullcontext)


@torch.no_grad()
def by_hand(model: Any, reading: EvalConfig, *, lanes: int) -> tuple[np.ndarray, ...]:
    reader = model.with_context(clamp_len=reading.clamp_len, same_length=reading.same_length)
    mem_len = 0 if reading.stride else reading.mem_len
    memory = reader.empty_memory(lanes, mem_len)
    weight, seen, share = np.zeros((2, 2, mem_len + T)), np.zeros(mem_len + T), np.zeros((2, 2))
    predictions = 0
    for batch in EvalStream(
        source=source(reading.batch_size, borders=BORDERS),
        segment_len=T,
        stride=reading.stride,
        lanes=range(lanes),
        device=torch.device("cpu"),
    ):
        weights, memory = reader.attention_weights(batch.tokens_BT, memory, batch.resets_BT)
        slots = weights.shape[-1] - weights.shape[-2]
        for place in range(weights.shape[-2]):
            for lane in range(lanes):
                if batch.targets_BT[lane, place] == -100:
                    continue
                predictions += 1
                for key in range(slots + place + 1):
                    weighs = weights[:, lane, :, place, key].numpy()
                    weight[:, :, slots + place - key] += weighs
                    seen[slots + place - key] += bool((weighs > 0).all())
                    share += weighs * (key < slots)
    return weight / predictions, seen / predictions, share / predictions, np.array(predictions)


@pytest.mark.parametrize(
    ("kind", "changes", "max_tokens", "lanes", "predictions"),
    [
        ("transformer_xl", {}, 144, 3, 50),
        ("transformer_xl", {"same_length": True, "clamp_len": 3}, 100, 2, 34),
        ("transformer_rope", {"stride": 2}, 61, 3, 50),
    ],
)
def test_means_equal_sums_over_single_weights(
    kind: str, changes: dict[str, Any], max_tokens: int, lanes: int, predictions: int
) -> None:
    model, reading = model_of(kind), lengths(**changes)
    found = looked_at(model, reading, max_tokens=max_tokens)
    weight, seen, share, counted = by_hand(model, reading, lanes=lanes)
    assert (found.predictions, int(counted)) == (predictions, predictions)
    np.testing.assert_allclose(found.weight_by_distance, weight, atol=1e-12)
    np.testing.assert_allclose(found.share_seen, seen, atol=1e-12)
    np.testing.assert_allclose(found.memory_share, share, atol=1e-12)
    np.testing.assert_allclose(found.weight_by_distance.sum(-1), 1.0, atol=1e-12)
    assert bool(found.memory_share.max() > 0.1) is (reading.stride is None)
