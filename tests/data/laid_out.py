"""Lanes of plain arrays of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data import lanes
from transformer_xl.data.lanes import CorpusLanes, Sequential


def training_lanes(tokens: NDArray[np.unsignedinteger[Any]], *, batch_size: int, segment_len: int) -> CorpusLanes:
    order = Sequential(tokens=tokens, starts=None)
    return lanes.training_lanes(order, batch_size=batch_size, segment_len=segment_len, resets=False)


def evaluation_lanes(tokens: NDArray[np.unsignedinteger[Any]], *, batch_size: int, split: str) -> CorpusLanes:
    order = Sequential(tokens=tokens, starts=None)
    return lanes.evaluation_lanes(order, batch_size=batch_size, split=split, resets=False)
