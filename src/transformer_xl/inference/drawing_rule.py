"""The rule by which the next token is drawn, and what it may be."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from transformer_xl.settings import Amount, Count, Settings

MOST_SEEDS = 2**63


class DrawingRule(Settings):
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

    temperature: Amount
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0  # log-probabilities stay finite in float32
