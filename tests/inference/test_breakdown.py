"""Losses by place and by distance, against counting them one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from transformer_xl.data.lanes import CorpusLanes, Sequential
from transformer_xl.data.stream import Batch, EvalStream
from transformer_xl.inference.breakdown import LossByDistance, LossByPosition

TOKENS = np.random.default_rng(0).integers(0, 8, 60).astype(np.uint8)
STARTS = np.array([0, 4, 11, 12, 30, 47])
LANES = CorpusLanes(
    order=Sequential(tokens=TOKENS, starts=STARTS), batch_size=3, evaluation=True, resets=True
)  # 59 predictions in lanes of 20, the last of which is padded
SEGMENT_LEN = 7


def loss_of(prediction: int) -> float:
    """Any loss that tells predictions apart."""
    return 0.5 + prediction % 13 + prediction / 64


def read_by(takers: list[LossByPosition | LossByDistance], *, lanes: range, stride: int | None) -> None:
    """Read as `read_split` does."""
    stream = EvalStream(source=LANES, segment_len=SEGMENT_LEN, stride=stride, lanes=lanes, device=torch.device("cpu"))
    for batch in stream:
        start = (batch.step - 1) * (stride or SEGMENT_LEN)
        nll = torch.tensor(
            [
                [loss_of(lane * LANES.lane_len + start + place) for place in range(batch.targets_BT.shape[1])]
                for lane in lanes
            ]
        )
        for taker in takers:
            taker.take(batch, torch.where(batch.targets_BT == -100, 0.0, nll))


def tokens_read(prediction: int) -> int:
    lane_start = prediction // LANES.lane_len * LANES.lane_len
    return prediction - max(lane_start, int(STARTS[prediction >= STARTS].max())) + 1


def place_of(prediction: int, stride: int | None) -> int:
    position = prediction % LANES.lane_len
    if stride is None:
        return position % SEGMENT_LEN
    window = max(0, -(-(position - SEGMENT_LEN + 1) // stride))
    return position - window * stride


def expected(classes: list[int], count: int) -> tuple[list[int], list[float]]:
    groups: list[list[float]] = [[] for _ in range(count)]
    for prediction, number in enumerate(classes):
        groups[number].append(loss_of(prediction))
    return [len(group) for group in groups], [sum(group) / len(group) if group else math.nan for group in groups]


@pytest.mark.parametrize("stride", [None, 1, 3])
def test_every_prediction_counts_once_in_its_class(stride: int | None) -> None:
    position, distance = LossByPosition(SEGMENT_LEN), LossByDistance(3, stride=stride)
    read_by([position, distance], lanes=range(3), stride=stride)
    counts, means = expected([place_of(prediction, stride) for prediction in range(59)], SEGMENT_LEN)
    assert position.counts.tolist() == counts
    assert position.means == pytest.approx(means, rel=1e-6, nan_ok=True)
    counts, means = expected([int(math.log2(tokens_read(prediction))) for prediction in range(59)], 41)
    assert distance.counts.tolist() == counts
    assert distance.means == pytest.approx(means, rel=1e-6, nan_ok=True)
    assert distance.shortest[:4].tolist() == [1, 2, 4, 8]


def test_many_small_losses_are_summed_in_float64_with_their_error() -> None:
    by_position = LossByPosition(2)
    targets_BT = torch.tensor([[1, 1], [1, -100]])
    batch = Batch(targets_BT, targets_BT, torch.zeros(2, 2, dtype=torch.bool), counted=3, step=1, micro=0, chunk=0)
    for _ in range(1000):
        by_position.take(batch, torch.tensor([[0.1, 1e8], [0.3, 0.0]], dtype=torch.float32))
    by_position.take(batch, torch.tensor([[0.1, 1.0], [0.3, 0.0]], dtype=torch.float32))
    assert by_position.counts.tolist() == [2002, 1001]
    assert by_position.means[0] == pytest.approx(0.2, rel=1e-7)
    assert by_position.means[1] * 1001 == pytest.approx(1e11 + 1, rel=1e-14)
    assert by_position.errors[0] == pytest.approx(0.1 / math.sqrt(2001), rel=1e-6)
    assert math.isnan(LossByPosition(1).errors[0])
