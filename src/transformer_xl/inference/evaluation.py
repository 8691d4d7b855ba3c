"""Reading a split with a memory, outside of training.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import LaneSource
from transformer_xl.data.stream import Batch, EvalStream
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.streaming import stream
from transformer_xl.scores import Score

Take = Callable[[Batch, Tensor], None]
"""Gets a segment or window that was read, and the loss (B, T) of each target in nats, 0 where none counts."""


@torch.no_grad()
def read_split(
    model: LanguageModel,
    source: LaneSource,
    *,
    lengths: EvalConfig,
    lanes: range,
    take: Take,
    max_tokens: int | None = None,
    limit: int | None = None,
    zero_start: bool = False,
    autocast: Callable[[], AbstractContextManager[object]],
) -> int:
    """Read a split, every prediction once; windows (`lengths.stride`) never see memory.

    Args:
        model: in evaluation mode.
        source: the split's lanes, `lengths.batch_size` of them.
        lengths: how to read.
        lanes: those that are read here; all, or a process's share.
        take: called with each segment or window, in order.
        max_tokens: stop after the segment or window by which this many predictions are counted; None: read all.
        limit: stop after so many segments or windows; None: read all.
        zero_start: begin with a memory of zeros that are attended to, instead of an empty one.
        autocast: gives the context in which the model is called.

    Returns:
        How many predictions of ALL lanes the segments and windows counted that were read.
    """
    device = next(model.parameters()).device
    session = stream(
        model,
        batch_size=len(lanes),
        mem_len=lengths.mem_len,
        clamp_len=lengths.clamp_len,
        same_length=lengths.same_length,
    )
    batches = EvalStream(
        source=source, segment_len=lengths.segment_len, stride=lengths.stride, lanes=lanes, device=device
    )
    tokens = 0
    with autocast():  # once for all segments: it keeps the weights that it rounds until it ends
        for batch in batches:
            if zero_start and batch.step == 1:
                batch.resets_BT[:, 0] = False  # which would hide the zeros
                session.start_from(model.zero_memory(batch_size=len(lanes), mem_len=lengths.mem_len))
            nll = session.nll(batch.tokens_BT.to(device), batch.targets_BT.to(device), batch.resets_BT.to(device))
            take(batch, nll)
            tokens += batch.counted
            if batch.step == limit or (max_tokens is not None and tokens >= max_tokens):
                break
    return tokens


def evaluate(
    model: LanguageModel,
    source: LaneSource,
    *,
    lengths: EvalConfig,
    max_tokens: int | None = None,
    limit: int | None = None,
    zero_start: bool = False,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Score:
    """Score a split on all of its lanes; see `read_split`."""
    nll_sum = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)

    def add(batch: Batch, nll: Tensor) -> None:
        nll_sum.add_(nll.sum(dtype=torch.float64))

    tokens = read_split(
        model,
        source,
        lengths=lengths,
        lanes=range(lengths.batch_size),
        take=add,
        max_tokens=max_tokens,
        limit=limit,
        zero_start=zero_start,
        autocast=autocast,
    )
    return Score(float(nll_sum) / tokens if tokens else math.nan, tokens)
