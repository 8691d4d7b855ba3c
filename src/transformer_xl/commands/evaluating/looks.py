"""What an evaluation looks at besides scores: attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_xl.commands.evaluating.looking_pictures import draw_attention
from transformer_xl.commands.evaluating.readings import Reading
from transformer_xl.commands.evaluating.shares import Opened
from transformer_xl.errors import UserError
from transformer_xl.inference.breakdown import LossByDistance, LossByPosition
from transformer_xl.inference.looking import attending, attention_by_distance
from transformer_xl.inference_config import ReadingConfig
from transformer_xl.model.base import LanguageModel

_SHORT = 12
"""Layers whose numbers are printed in full."""


class FoundOut(NamedTuple):
    """What a look gave: plain containers for `evaluation.json`, and lines for people."""

    record: Any
    words: Sequence[str]


def numbers_of(losses: LossByPosition | LossByDistance) -> dict[str, list[Any]]:
    """Give mean losses and counts as plain containers; None where there is nothing to average."""
    counts: list[int] = losses.counts.tolist()
    filled = 1 + max((number for number, count in enumerate(counts) if count), default=-1)
    counts = counts[:filled]
    means = [value if math.isfinite(value) else None for value in losses.means.tolist()[:filled]]
    if isinstance(losses, LossByPosition):
        return {"loss": means, "predictions": counts}
    return {"tokens_read": losses.shortest.tolist()[:filled], "loss": means, "predictions": counts}


def attention(
    opened: Opened, way: Reading, asked: ReadingConfig, *, split: str, folder: Path, title: str
) -> tuple[Path, FoundOut]:
    """Measure and draw attention's weight by distance.

    Raises:
        UserError: the model has no attention.
    """
    lengths = way.lengths
    result = attention_by_distance(
        opened.placed.model,
        opened.data.lanes(split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True),
        lengths=lengths,
        lanes=range(lengths.batch_size),
        max_tokens=asked.attention_tokens,
        autocast=opened.placed.autocast,
    )
    if not np.isfinite(result.weight).all():
        raise UserError("eval.attention is true, and the model's attention is not finite: its weights are damaged")
    path = folder / "attention.png"
    draw_attention(result, path, title=title)
    shares = result.memory_share.mean(axis=1).tolist()
    words = f"Attention's share on memory, first layer to last: {_few(f'{share:.0%}' for share in shares)}"
    found = {
        "weight_by_distance": np.round(result.weight, 9).tolist(),
        "share_seen": result.seen.tolist(),
        "memory_share": result.memory_share.tolist(),
        "predictions": result.predictions,
    }
    return path, FoundOut(found, [words])


def check_looks(model: LanguageModel, asked: ReadingConfig) -> None:
    """Refuse, before anything is read, to look at attention where there is none.

    Raises:
        UserError: naming the setting.
    """
    if asked.attention:
        attending(model, setting="eval.attention", clamp_len=model.clamp_len, same_length=model.same_length)


def _few(words: Iterable[str]) -> str:
    listed = list(words)
    if len(listed) <= _SHORT:
        return ", ".join(listed)
    half = _SHORT // 2
    return ", ".join([*listed[:half], "...", *listed[-half:]])
