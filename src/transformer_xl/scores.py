"""A mean loss, and the unit in which people read it."""

from __future__ import annotations

import math
from typing import NamedTuple


class Score(NamedTuple):
    """A mean loss in nats and the number of targets it was taken over; NaN over none."""

    loss: float
    tokens: int


def in_unit(loss: float, unit: str) -> float:
    """Turn nats a token into `ppl` (perplexity) or `bpc` (bits a character or byte)."""
    if unit == "bpc":
        return loss / math.log(2)
    return math.exp(loss) if loss < 700 else math.inf
