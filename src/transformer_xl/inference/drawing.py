"""Drawing the tokens of a text, one after the other, from what a model expects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transformer_xl.inference.drawing_rule import MOST_SEEDS, DrawingRule

_COLDEST = torch.finfo(torch.float32).tiny
"""Below this temperature a quotient may be 0 / 0; there the likeliest token has all weight long since."""


def seed_of_text(seed: int, number: int) -> int:
    """Give a text's own seed, so that its draws are the same whatever other texts are made with it.

    Args:
        seed: of all texts; the first one's own.
        number: of the text, from 0.
    """
    if number == 0:
        return seed
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]) % MOST_SEEDS


class Drawer:
    """Draws the tokens of one text, with randomness and a past of its own; global random state is left alone."""

    def __init__(self, rule: DrawingRule, *, seed: int, vocab_size: int) -> None:
        self._rule = rule
        self._generator = torch.Generator().manual_seed(seed)
        self._held = torch.zeros(vocab_size, dtype=torch.bool) if rule.repetition_penalty != 1 else None

    def hold(self, tokens: Sequence[int]) -> None:
        """Let tokens be part of the text, and be penalised from now on, where repetition is."""
        if self._held is not None:
            self._held[torch.as_tensor(tokens, dtype=torch.int64)] = True

    def draw(self, log_probs: Tensor) -> int:
        """Draw the next token; see `DrawingRule`.

        Args:
            log_probs: (V), of all tokens, on the CPU.
        """
        if self._held is not None:
            log_probs = torch.where(self._held, log_probs * self._rule.repetition_penalty, log_probs)
        if self._rule.temperature < _COLDEST:
            return int(log_probs.argmax())
        tokens, weights = choices(log_probs, self._rule)
        return int(tokens[torch.multinomial(weights, 1, generator=self._generator)])


def choices(log_probs: Tensor, rule: DrawingRule) -> tuple[Tensor, Tensor]:
    """Give the tokens that may be drawn at a temperature above 0, the likeliest first, and the weight of each.

    Args:
        log_probs: (V), after the penalty.
        rule: of the drawing.

    Returns:
        Tokens (K) and weights (K), which are 0 where a token is left out, and need not add up to 1.
    """
    likeliest, tokens = log_probs.topk(min(rule.top_k or len(log_probs), len(log_probs)))
    weights = ((likeliest - likeliest.max()) / rule.temperature).softmax(dim=-1)
    if rule.top_p is not None and rule.top_p < 1:
        before = weights.double().cumsum(dim=0) - weights
        weights = weights.masked_fill(before >= rule.top_p, 0)
    if rule.min_p is not None:
        weights = weights.masked_fill(weights < rule.min_p * weights[0], 0)
    return tokens, weights
