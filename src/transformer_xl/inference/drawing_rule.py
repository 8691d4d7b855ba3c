"""The rule by which the next token is drawn, and what it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from transformer_xl.model_checks import at_least, within

MOST_SEEDS = 2**63
_STRONGEST_PENALTY = 1e6
"""Log-probabilities multiplied by it stay finite in float32."""


@dataclass(frozen=True, kw_only=True)
class DrawingRule:
    """What is done to log-probabilities before a token is drawn, in this order.

    Attributes:
        repetition_penalty: multiplies the log-probabilities of all tokens that the text holds already, prompt and
            drawn ones; 1: off. Keskar et al., 2019 (CTRL, section 4.1) divide scores by it, which above 1 would favour
            what is negative, as log-probabilities are: as everywhere since, such are multiplied.
        temperature: divides log-probabilities; 0, or too small for float32: the likeliest token is taken, and nothing
            is drawn.
        top_k: only so many of the likeliest tokens are left; None: all.
        top_p: of these only the likeliest are left, as few as have at least this probability together, once those of
            all that are left add up to 1; None: all. The nucleus of Holtzman et al., 2019 (section 3.1).
        min_p: of these only tokens are left that are at least so likely, as a share of the likeliest; None: all. Nguyen
            et al., 2024 (min-p sampling, section 4).
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def problems(self, *, prefix: str = "") -> list[str]:
        """Give a sentence for each value that makes no sense.

        Args:
            prefix: of the settings' names.
        """
        found = within(0, math.inf, **{f"{prefix}temperature": self.temperature})
        found += at_least(1, **{f"{prefix}top_k": self.top_k})
        if self.top_p is not None and not 0 < self.top_p <= 1:
            found.append(f"{prefix}top_p is {self.top_p}, and must be above 0 and at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            found.append(f"{prefix}min_p is {self.min_p}, and must be at least 0 and at most 1")
        penalty = self.repetition_penalty
        if not 1 / _STRONGEST_PENALTY <= penalty <= _STRONGEST_PENALTY:
            found.append(f"{prefix}repetition_penalty is {penalty}, and must be at least 0.000001 and at most 1000000")
        return found
