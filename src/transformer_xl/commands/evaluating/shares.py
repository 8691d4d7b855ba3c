"""What one process reads of a split: some of its lanes, whose sums add up to the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from transformer_xl.commands.evaluating.corpus import open_corpus_of
from transformer_xl.commands.sources import Source
from transformer_xl.config import EvalConfig
from transformer_xl.data.batch import Batch
from transformer_xl.data.lanes import Dataset
from transformer_xl.data_config import AnyDataConfig
from transformer_xl.inference.breakdown import LossByDistance, LossByPosition
from transformer_xl.inference.evaluation import read_split
from transformer_xl.placement import Placed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated; another process can open it from this alone.

    Attributes:
        source: of the model.
        data: settings of its corpus.
        is_own: whether that is the run's own.
        device: of torch, or `auto`.
        precision: as Lightning names it, or `own`.
    """

    source: Source
    data: AnyDataConfig
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
    """What one process found: sums over its lanes.

    Attributes:
        nll_sum: nats.
        tokens: predictions of ALL lanes.
        by_position: losses by the place in the segment.
        by_distance: losses by the distance from the document's beginning.
    """

    nll_sum: float
    tokens: int
    by_position: LossByPosition
    by_distance: LossByDistance

    def __add__(self, other: Share) -> Share:
        """Put two shares together."""
        assert self.tokens == other.tokens, "all read the same segments"
        return Share(
            nll_sum=self.nll_sum + other.nll_sum,
            tokens=self.tokens,
            by_position=self.by_position + other.by_position,
            by_distance=self.by_distance + other.by_distance,
        )


@dataclass(frozen=True)
class Opened:
    """A model where it runs, its corpus, and the settings of that."""

    placed: Placed
    data: Dataset
    settings: AnyDataConfig


Progress = Callable[[int, Callable[[], float]], None]
"""Told after each segment how many predictions of all lanes were read; gives what computes the mean loss so far."""


def read_share(
    opened: Opened,
    *,
    split: str,
    lengths: EvalConfig,
    lanes: range,
    max_tokens: int | None,
    progress: Progress | None,
) -> Share:
    """Read some lanes of a split here."""
    model, autocast, _ = opened.placed
    lanes_of_split = opened.data.lanes(
        split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True
    )
    sums: list[torch.Tensor] = [torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)]
    longest = min(lengths.segment_len, lanes_of_split.lane_len)
    by_position, by_distance = LossByPosition(longest), LossByDistance(len(lanes), stride=lengths.stride)
    read = 0

    def take(batch: Batch, nll: torch.Tensor) -> None:
        nonlocal read
        sums[0] += nll.sum(dtype=torch.float64)
        by_position.take(batch, nll)
        by_distance.take(batch, nll)
        read += batch.counted
        if progress is not None:
            progress(read, lambda: float(sums[0]) * lengths.batch_size / (len(lanes) * max(read, 1)))

    tokens = read_split(
        model,
        lanes_of_split,
        lengths=lengths,
        lanes=lanes,
        take=take,
        max_tokens=max_tokens,
        autocast=autocast,
    )
    return Share(nll_sum=float(sums[0]), tokens=tokens, by_position=by_position, by_distance=by_distance)
