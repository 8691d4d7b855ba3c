"""A mean loss, and the units in which people read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

PERPLEXITY = "ppl"
BITS_PER_CHARACTER = "bpc"
BITS_PER_BYTE = "bpb"

MUCH_UNKNOWN = 0.05
"""Share of unknown tokens from which on a score is no longer what it seems."""


class Score(NamedTuple):
    """A mean loss in nats and the number of targets it was taken over; NaN over none."""

    loss: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Unit:
    """How the losses of one split are read; bits per byte compare texts read with any vocabularies.

    Attributes:
        name: of the figure that belongs to the vocabulary: `ppl` (perplexity), `bpc` (bits per character, byte or
            symbol) or `bpb` (bits per byte of the text's UTF-8).
        tokens_per_byte: of the whole split; None where the data is no text, NaN where the split is empty.
    """

    name: str
    tokens_per_byte: float | None

    def __post_init__(self) -> None:
        assert self.name in _IN_WORDS
        assert self.name != BITS_PER_BYTE or self.tokens_per_byte is not None, "bits per byte are those of a text"

    def of(self, loss: float) -> float:
        """Turn nats a token into the figure that belongs to the vocabulary."""
        if self.name == PERPLEXITY:
            return math.inf if loss >= 700 else math.exp(loss)
        if self.name == BITS_PER_CHARACTER:
            return loss / math.log(2)
        return self.figures(loss)[BITS_PER_BYTE]

    def figures(self, loss: float) -> dict[str, float]:
        """Give that figure by its name, and bits per byte too wherever the data is text."""
        figures = {} if self.name == BITS_PER_BYTE else {self.name: self.of(loss)}
        if self.tokens_per_byte is not None:
            figures[BITS_PER_BYTE] = loss / math.log(2) * self.tokens_per_byte
        return figures

    def shown(self, loss: float) -> dict[str, float]:
        """Give the figures without saying bits per byte twice, which where each token is a byte are `bpc`."""
        is_twice = self.name == BITS_PER_CHARACTER and self.tokens_per_byte == 1
        return {name: value for name, value in self.figures(loss).items() if not (is_twice and name == BITS_PER_BYTE)}


_IN_WORDS = {PERPLEXITY: "ppl", BITS_PER_CHARACTER: "bpc", BITS_PER_BYTE: "bits per byte"}


def in_words(name: str) -> str:
    """Write a unit's name for a table or a sentence."""
    return _IN_WORDS[name]
