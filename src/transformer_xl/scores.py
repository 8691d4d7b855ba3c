"""A mean loss, and the units in which people read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

LOSS = "loss"
ACCURACY = "accuracy"
PERPLEXITY = "ppl"
BITS_PER_CHARACTER = "bpc"
BITS_PER_BYTE = "bpb"


class Score(NamedTuple):
    """A mean loss in nats and the number of targets it was taken over; NaN over none.

    Of a task's answers also the share that was the most probable token.
    """

    loss: float
    tokens: int
    accuracy: float | None = None


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

    def of(self, loss: float) -> float:
        """Return the figure that belongs to the vocabulary, of a loss in nats per token."""
        return self.figures(loss)[self.name]

    def figures(self, loss: float) -> dict[str, float]:
        """Return that figure by its name, and bits per byte too wherever the data is text."""
        figures = {}
        if self.name == PERPLEXITY:
            figures[PERPLEXITY] = math.inf if loss >= 700 else math.exp(loss)
        elif self.name == BITS_PER_CHARACTER:
            figures[BITS_PER_CHARACTER] = loss / math.log(2)
        if self.tokens_per_byte is not None:
            figures[BITS_PER_BYTE] = loss / math.log(2) * self.tokens_per_byte
        return figures

    def scored(self, score: Score) -> dict[str, float]:
        """Return all that is kept of a score by name: `loss`, its figures, and `accuracy` where it has one."""
        accuracy = {} if score.accuracy is None else {ACCURACY: score.accuracy}
        return {LOSS: score.loss, **self.figures(score.loss), **accuracy}

    def shown(self, loss: float) -> dict[str, float]:
        """Return the figures without bits per byte where they are `bpc`: where each token is a byte."""
        figures = self.figures(loss)
        if self.name == BITS_PER_CHARACTER and self.tokens_per_byte == 1:
            del figures[BITS_PER_BYTE]
        return figures


def in_words(name: str) -> str:
    """Return a unit's name for a table or a sentence."""
    return "bits per byte" if name == BITS_PER_BYTE else name
