"""Reading a split with a memory, outside of training.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import LaneSource
from transformer_xl.data.stream import EvalStream
from transformer_xl.model.interface import LanguageModel
from transformer_xl.scores import Score


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    source: LaneSource,
    *,
    lengths: EvalConfig,
    max_tokens: int | None,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Score:
    """Score a split, every prediction once, from empty memory.

    Args:
        model: in evaluation mode.
        source: the split's lanes, `lengths.batch_size` of them.
        lengths: how to read.
        max_tokens: stop after the segments that hold this many predictions; None: read all.
        autocast: gives the context of a forward pass.
    """
    reader = model.with_context(clamp_len=lengths.clamp_len, same_length=lengths.same_length)
    device = next(model.parameters()).device
    memory = reader.empty_memory(batch_size=lengths.batch_size, mem_len=lengths.mem_len)
    limit = None if max_tokens is None else math.ceil(max_tokens / (lengths.batch_size * lengths.segment_len))
    stream = EvalStream(source=source, segment_len=lengths.segment_len, lanes=range(lengths.batch_size), limit=limit)
    nll_sum = torch.zeros((), dtype=torch.float64, device=device)
    tokens = 0
    for batch in stream:
        with autocast():
            nll, memory = reader.nll(
                batch.tokens_BT.to(device), batch.targets_BT.to(device), memory, batch.resets_BT.to(device)
            )
        nll_sum += nll.sum(dtype=torch.float64)
        tokens += batch.counted
    return Score(float(nll_sum) / tokens if tokens else math.nan, tokens)
