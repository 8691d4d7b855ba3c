"""Losses of the same tokens at different lengths of context, each predicted from exactly so many tokens.

Every model, whatever its kind, reads each token's c tokens as a window of their own, from nothing. A memory of c tokens
would be read faster, and tell more than c tokens do: through n layers it reaches n (c - 1) + 1 tokens back, and the
state of a recurrent network as far as it will; beside it a model that sees c tokens would look worse than it is. It
costs c tokens a prediction, which is why only some thousand predictions are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.config import EvalConfig
from transformer_xl.data.batch import Batch
from transformer_xl.data.lanes import NOT_COUNTED, LaneSource, Segment
from transformer_xl.errors import UserError
from transformer_xl.inference.evaluation import read_split
from transformer_xl.model.base import LanguageModel

WINDOWS_AT_ONCE = 32
"""Lanes: enough to keep a device busy, and to lie all over a split."""


def lanes_for(predictions: int, *, longest: int) -> int:
    """Choose how many lanes to lay a split out in, so that each has room for contexts and some predictions.

    Args:
        predictions: of the split.
        longest: context, in tokens.
    """
    return max(1, min(WINDOWS_AT_ONCE, predictions // (2 * longest)))


@torch.no_grad()
def losses_by_context(
    model: LanguageModel,
    source: LaneSource,
    *,
    lengths: Sequence[int],
    max_tokens: int,
    clamp_len: int | None,
    trained_len: int | None,
    autocast: Callable[[], AbstractContextManager[object]],
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float64]:
    """Measure one model's losses at each context length; see the top of the file.

    The predictions are the first of each lane that have the longest context before them, so that all models of a group
    make the same ones of the same `source`. Where a document begins in a window, nothing before it is seen, as ever.

    A model that knows places has seen none beyond training's segments: it reads the longest of the contexts that fits
    in place of a longer one, which is of no use to it. Its guesses there would count wherever one happens to be right.

    Args:
        model: in evaluation mode.
        source: the lanes of a split, `lanes_for` of them.
        lengths: c, rising.
        max_tokens: predictions, rounded up to a whole number in each lane.
        clamp_len: distances above it count as it; None: no limit.
        trained_len: the longest segment that the model has seen in training; None: not known.
        autocast: gives the context in which the model is called.
        progress: told after each context length how many tokens were read, and how many will be.

    Returns:
        Losses in nats: an axis of context lengths, one of predictions.

    Raises:
        UserError: the lanes are shorter than the longest context.
    """
    longest = max(lengths)
    rows = min(math.ceil(max_tokens / source.batch_size), source.lane_len - longest + 1)
    if rows < 1:
        raise UserError(
            f"eval.relative_context_lengths goes up to {longest}, and the split has only {source.lane_len} tokens a "
            f"lane in {source.batch_size} lanes: choose shorter ones, or a longer split"
        )
    windows = _readable(lengths, limit=_limit(model, trained_len=trained_len))
    every = rows * source.batch_size * sum(set(windows))
    measured: dict[int, NDArray[np.float64]] = {}
    for window in windows:
        if window not in measured:
            part = _Part(source=source, first=longest - window, lane_len=window - 1 + rows)
            measured[window] = _last_losses(model, part, window=window, clamp_len=clamp_len, autocast=autocast)
            if progress is not None:
                progress(rows * source.batch_size * sum(measured), every)
    return np.stack([measured[window] for window in windows])


def _limit(model: LanguageModel, *, trained_len: int | None) -> float:
    """Give the most tokens that a model makes sense of without a memory."""
    most = math.inf if model.max_segment_len is None else model.max_segment_len
    return most if model.relative or trained_len is None else min(most, trained_len)


def _readable(lengths: Sequence[int], *, limit: float) -> list[int]:
    """Put the longest context that a model can read in place of those that it cannot."""
    fitting = [length for length in lengths if length <= limit] or [int(limit)]
    return [length if length <= limit else fitting[-1] for length in lengths]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Some positions of every lane, from `first` on."""

    source: LaneSource
    first: int
    lane_len: int

    @property
    def batch_size(self) -> int:
        return self.source.batch_size

    @property
    def predictions(self) -> int:
        return self.counted(epoch=0, start=0, stop=self.lane_len)

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        return self.source.read(epoch=epoch, lanes=lanes, start=self.first + start, stop=self.first + stop)

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        return self.source.counted(epoch=epoch, start=self.first + start, stop=self.first + stop)


def _last_losses(
    model: LanguageModel,
    part: LaneSource,
    *,
    window: int,
    clamp_len: int | None,
    autocast: Callable[[], AbstractContextManager[object]],
) -> NDArray[np.float64]:
    """Give the loss of the last target of every window, those that count."""
    lengths = EvalConfig(
        batch_size=part.batch_size,
        segment_len=window,
        mem_len=0,
        clamp_len=clamp_len,
        same_length=False,
        stride=1,
    )
    losses: list[Tensor] = []
    targets: list[Tensor] = []

    def take(batch: Batch, nll: Tensor) -> None:
        losses.append(nll[:, -1])
        targets.append(batch.targets_BT[:, -1])

    read_split(model, part, lengths=lengths, lanes=range(part.batch_size), take=take, autocast=autocast)
    counted = (torch.cat(targets) != NOT_COUNTED).cpu().numpy()
    values: NDArray[np.float64] = torch.cat(losses).cpu().double().numpy()[counted]
    return values
