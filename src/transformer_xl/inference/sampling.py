"""Sampling the tokens of a text, one after the other, from what a model expects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transformer_xl.inference_config import SamplingParams

_COLDEST = torch.finfo(torch.float32).tiny
"""Below this temperature a quotient may be 0 / 0; there the likeliest token has all weight long since."""


class Sampler:
    """Samples the tokens of one text, with randomness and a past of its own; global random state is left alone."""

    def __init__(self, params: SamplingParams, *, seed: int, vocab_size: int) -> None:
        self._params = params
        self._generator = torch.Generator().manual_seed(seed)
        self._present = torch.zeros(vocab_size, dtype=torch.bool) if params.repetition_penalty != 1 else None

    def append(self, tokens: Sequence[int]) -> None:
        """Let tokens be part of the text, and be penalised from now on, where repetition is."""
        if self._present is not None:
            self._present[torch.as_tensor(tokens, dtype=torch.int64)] = True

    def sample(self, log_probs: Tensor) -> int:
        """Sample the next token from log-probabilities (V) on the CPU; see `SamplingParams`."""
        if self._present is not None:
            log_probs = torch.where(self._present, log_probs * self._params.repetition_penalty, log_probs)
        if self._params.temperature < _COLDEST:
            return int(log_probs.argmax())
        tokens, weights = filtered(log_probs, self._params)
        return int(tokens[torch.multinomial(weights, 1, generator=self._generator)])


def filtered(log_probs: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the tokens that may be sampled at a temperature above 0, the likeliest first, and the weight of each.

    Weights are 0 where a token is left out, and need not add up to 1.
    """
    likeliest, tokens = log_probs.topk(min(params.top_k or len(log_probs), len(log_probs)))
    weights = ((likeliest - likeliest.max()) / params.temperature).softmax(dim=-1)
    if params.top_p is not None and params.top_p < 1:
        before = weights.double().cumsum(dim=0) - weights
        weights = weights.masked_fill(before >= params.top_p, 0)
    if params.min_p is not None:
        weights = weights.masked_fill(weights < params.min_p * weights[0], 0)
    return tokens, weights


def seed_of_sample(seed: int, number: int) -> int:
    """Return a sample's own seed, so that it is the same whatever other texts are made with it; the first: `seed`."""
    if number == 0:
        return seed
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]) % (1 << 63)
