"""Sampling the tokens of a text, one after the other, from what a model expects, and writing them as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.inference_config import SamplingParams

Ending = Literal["n_tokens", "stop", "document"]
"""What ended a text: its length, a stop string, the end of a document."""
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


class Continuation:
    """What follows one prompt: tokens until something ends it, and their text as soon as it is whole characters.

    Attributes:
        tokens: those that were appended, the end of a document not among them.
        ended: what ended the text; None while it grows.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        after: Sequence[int],
        n_tokens: int,
        stops: Sequence[str] = (),
        end: int | None = None,
    ) -> None:
        """Begin with no token.

        Args:
            tokenizer: writes the text; None: there is none.
            after: the tokens before, which are not written.
            n_tokens: the most that are appended.
            stops: texts that end this one; no part of them is written.
            end: the token that ends the text, and is not written; None: none does.
        """
        self._decoder = None if tokenizer is None else tokenizer.decoder(after)
        self._n_tokens = n_tokens
        self._stops = tuple(stops)
        self._waiting = ""
        self._end = end
        self.tokens: list[int] = []
        self.ended: Ending | None = None

    def append(self, token: int) -> str:
        """Take the next token; return the text that can be written now, which may be none."""
        if token == self._end:
            self.ended = "document"
            return self._finish()
        self.tokens.append(token)
        text = "" if self._decoder is None else self._before_stops(self._decoder.feed(token))
        if self.ended is None and len(self.tokens) == self._n_tokens:
            self.ended = "n_tokens"
            text += self._finish()
        return text

    def _finish(self) -> str:
        """Return what waits for more, where no more comes."""
        if self._decoder is None:
            return ""
        ended = self.ended
        text = self._before_stops(self._decoder.finish())
        if self.ended != ended:  # a stop string that the last characters complete
            if ended == "document":
                self.ended = ended
            return text
        waiting, self._waiting = self._waiting, ""
        return text + waiting

    def _before_stops(self, text: str) -> str:
        """Return what stands before every stop string, whatever comes next; what may begin one waits."""
        if not self._stops:
            return text
        text = self._waiting + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.ended, self._waiting = "stop", ""
            return text[: min(found)[1]]
        begun = (length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
        border = len(text) - max(begun, default=0)
        self._waiting = text[border:]
        return text[:border]
