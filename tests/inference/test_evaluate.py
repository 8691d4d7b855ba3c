"""Scores of a split, against predictions made one by one, and where its losses lie, against counting them."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import tiny_model_config
from tests.data.laid_out import evaluation_lanes
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import LaneSource
from transformer_xl.data.stream import EvalStream
from transformer_xl.inference.evaluate import (
    context_of,
    distance_classes,
    mean_by_class,
    position_classes,
    read_split,
)
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.scores import Score

TOKENS = np.random.default_rng(0).integers(0, 8, 48).astype(np.uint8)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    torch.manual_seed(0)
    return make_model(tiny_model_config(init_std=0.5), vocab_size=8).double().eval()


def lengths(**changes: Any) -> EvalConfig:
    values = {"batch_size": 3, "segment_len": 5, "mem_len": 7, "clamp_len": None, "same_length": False, "stride": None}
    return EvalConfig(**(values | changes))


def source(batch_size: int) -> LaneSource:
    return evaluation_lanes(TOKENS, batch_size=batch_size, split="test")


def score(model: LanguageModel, lanes: LaneSource, *, max_tokens: int | None = None, **changes: Any) -> Score:
    changed = lengths(batch_size=lanes.batch_size, **changes)
    return read_split(model, lanes, context_of(changed), max_tokens=max_tokens, autocast=nullcontext).score


@torch.no_grad()
def one_by_one(model: LanguageModel, lanes: LaneSource, *, segment_len: int, stride: int) -> float:
    """Mean loss of all predictions, each from a reading of nothing but the tokens that its window shows it."""
    losses = []
    for prediction in range(len(TOKENS) - 1):
        place = prediction % lanes.lane_len
        context = segment_len - stride + 1 + (place - segment_len) % stride if place >= segment_len else place + 1
        tokens = torch.as_tensor(TOKENS[prediction - context + 1 : prediction + 2].astype(np.int64))[None]
        log_probs = model.log_probs(tokens[:, :-1], model.empty_memory(batch_size=1, mem_len=0)).log_probs_BTV
        losses.append(-float(log_probs[0, -1, tokens[0, -1]]))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("stride", [1, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_windows_score_each_prediction_from_its_own_context(model: LanguageModel, stride: int, batch_size: int) -> None:
    lanes = source(batch_size)
    found = score(model, lanes, stride=stride)
    assert found.tokens == 47
    assert found.loss == pytest.approx(one_by_one(model, lanes, segment_len=5, stride=stride), rel=1e-9)


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("zero_start", [False, True])
@torch.no_grad()
def test_a_split_is_scored_as_the_model_reads_it(model: LanguageModel, same_length: bool, zero_start: bool) -> None:
    changes = {"clamp_len": 4, "same_length": same_length, "segment_len": 4}
    reader = model.with_context(clamp_len=4, same_length=same_length)
    memory = model.zero_memory(3, 7) if zero_start else model.empty_memory(3, 7)
    nll_sum = 0.0
    for batch in EvalStream(source=source(3), segment_len=4, stride=None, lanes=range(3), device=torch.device("cpu")):
        resets_BT = batch.resets_BT & (not zero_start or batch.step > 1)
        nll_BT, memory = reader.nll(batch.tokens_BT, batch.targets_BT, memory, resets_BT)
        nll_sum += float(nll_BT.sum())
    context = context_of(lengths(**changes))
    found = read_split(model, source(3), context, zero_start=zero_start, autocast=nullcontext).score
    assert found.tokens == 47
    assert found.loss == pytest.approx(nll_sum / 47, rel=1e-9)


@pytest.mark.parametrize(
    ("stride", "max_tokens", "tokens"),
    [
        (None, 15, 15),
        (None, 16, 30),
        (2, 16, 21),
        (2, 99, 47),
    ],
)
def test_a_limit_counts_predictions(model: LanguageModel, stride: int | None, max_tokens: int, tokens: int) -> None:
    assert score(model, source(3), max_tokens=max_tokens, stride=stride).tokens == tokens


STARTS = np.array([0, 4, 11, 12, 30, 47])
WITH_DOCUMENTS = evaluation_lanes(
    TOKENS, batch_size=3, split="test", starts=STARTS
)  # 47 predictions in lanes of 16, the last of which is padded


def place_of(prediction: int, stride: int | None) -> int:
    position = prediction % 16
    if stride is None:
        return position % 5
    return position - max(0, -(-(position - 4) // stride)) * stride


@pytest.mark.parametrize("stride", [None, 1, 3])
def test_every_prediction_counts_once_in_its_class(stride: int | None) -> None:
    losses = 0.5 + np.arange(47) % 13 + np.arange(47) / 64
    found = np.append(losses, math.nan).reshape(3, 16)
    places = [place_of(prediction, stride) for prediction in range(47)]
    starts = [max(prediction // 16 * 16, int(STARTS[prediction >= STARTS].max())) for prediction in range(47)]
    buckets = [int(math.log2(prediction - start + 1)) for prediction, start in enumerate(starts)]
    for classes, expected in (
        (position_classes(WITH_DOCUMENTS, context_of(lengths(stride=stride))), places),
        (distance_classes(WITH_DOCUMENTS), buckets),
    ):
        means = mean_by_class(found, classes)
        for number in range(max(expected) + 1):
            group = losses[np.array(expected) == number]
            assert means.counts[number] == len(group)
            assert means.means[number] == pytest.approx(group.mean() if len(group) else math.nan, nan_ok=True)
            error = group.std(ddof=1) / math.sqrt(len(group)) if len(group) > 1 else math.nan
            assert means.errors[number] == pytest.approx(error, nan_ok=True)
    assert distance_classes(WITH_DOCUMENTS).labels[:4].tolist() == [1, 2, 4, 8]


@pytest.mark.parametrize("stride", [None, 2])
def test_each_loss_stands_at_its_place_in_the_text(model: LanguageModel, stride: int | None) -> None:
    read = [
        read_split(model, source(lanes), context_of(lengths(stride=stride)), autocast=nullcontext) for lanes in (1, 3)
    ]
    for found in read:
        assert np.isfinite(found.losses).sum() == 47
        assert np.nanmean(found.losses) == pytest.approx(found.score.loss, rel=1e-12)
    # the first lane begins where the text does, with any number of lanes
    assert read[0].losses[0, :16] == pytest.approx(read[1].losses[0], rel=1e-9)
    part = read_split(model, source(3), context_of(lengths()), max_tokens=15, autocast=nullcontext)
    assert np.isfinite(part.losses).sum(axis=1).tolist() == [5, 5, 5]
