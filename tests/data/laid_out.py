"""Lanes of plain arrays of tokens."""

from __future__ import annotations

from typing import Any

from transformer_xl.data.lanes import CorpusLanes


def training_lanes(
    tokens: Any, *, batch_size: int, segment_len: int, starts: Any = None, shuffle_seed: int | None = None
) -> CorpusLanes:
    return CorpusLanes(
        tokens,
        starts,
        split="train",
        batch_size=batch_size,
        segment_len=segment_len,
        evaluation=False,
        resets=starts is not None,
        shuffle_seed=shuffle_seed,
    )


def evaluation_lanes(tokens: Any, *, batch_size: int, split: str, starts: Any = None) -> CorpusLanes:
    return CorpusLanes(
        tokens,
        starts,
        split=split,
        batch_size=batch_size,
        segment_len=1,
        evaluation=True,
        resets=starts is not None,
    )
