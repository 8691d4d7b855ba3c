"""What is evaluated, and what reading a split gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from transformer_xl.commands.evaluating.corpus import open_corpus_of
from transformer_xl.commands.sources import Source
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.stream import Batch
from transformer_xl.data_config import DataConfig
from transformer_xl.inference.breakdown import LossByDistance, LossByPosition
from transformer_xl.inference.evaluation import read_split
from transformer_xl.placement import Placed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated.

    Attributes:
        source: of the model.
        data: settings of its corpus.
        is_own: whether that is the run's own.
        device: of torch, or `auto`.
        precision: as Lightning names it, or `own`.
    """

    source: Source
    data: DataConfig
    is_own: bool
    device: str
    precision: str

    def opened(self) -> Opened:
        """Load the model and open the corpus."""
        placed = self.source.placed(device=self.device, precision=self.precision)
        data = open_corpus_of(self.source, placed.model, self.data, is_own=self.is_own)
        return Opened(placed, data, self.data)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What reading a split gave.

    Attributes:
        nll_sum: nats.
        tokens: predictions.
        by_position: losses by the place in the segment.
        by_distance: losses by the distance from the document's beginning.
    """

    nll_sum: float
    tokens: int
    by_position: LossByPosition
    by_distance: LossByDistance


@dataclass(frozen=True)
class Opened:
    """A model where it runs, its corpus, and the settings of that."""

    placed: Placed
    data: Dataset
    settings: DataConfig


Progress = Callable[[int, Callable[[], float]], None]
"""Told after each segment how many predictions were read; gives what computes the mean loss so far."""


def read_share(
    opened: Opened,
    *,
    split: str,
    lengths: EvalConfig,
    max_tokens: int | None,
    progress: Progress | None,
) -> Share:
    """Read a split."""
    model, autocast, _ = opened.placed
    lanes_of_split = opened.data.lanes(
        split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True
    )
    sums: list[torch.Tensor] = [torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)]
    longest = min(lengths.segment_len, lanes_of_split.lane_len)
    by_position, by_distance = LossByPosition(longest), LossByDistance(lengths.batch_size, stride=lengths.stride)
    read = 0

    def take(batch: Batch, nll: torch.Tensor) -> None:
        nonlocal read
        sums[0] += nll.sum(dtype=torch.float64)
        by_position.take(batch, nll)
        by_distance.take(batch, nll)
        read += batch.counted
        if progress is not None:
            progress(read, lambda: float(sums[0]) / max(read, 1))

    tokens = read_split(
        model,
        lanes_of_split,
        lengths=lengths,
        lanes=range(lengths.batch_size),
        take=take,
        max_tokens=max_tokens,
        autocast=autocast,
    )
    return Share(nll_sum=float(sums[0]), tokens=tokens, by_position=by_position, by_distance=by_distance)
