"""What all sides do alike: random text, and the optimizer's step; only the model differs.

Letters: B lanes, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

LEARNING_RATE = 2.5e-4
CLIP = 0.25
WARM_STEPS = 2
"""Steps beyond those that fill the memory: the first ones allocate."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""From tokens and targets (B, T) to their mean loss in nats, the model's memory carried on."""


class Text:
    """Random token ids, lane by lane: a target is the next token's id.

    `uniform`: all ids alike. `zipf`: id k with probability proportional to 1 / (k + 1), as in a vocabulary that is
    sorted by frequency.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.lanes = request["batch_size"]
        self.vocab_size = request["vocab_size"]
        self.zipf = request["ids"] == "zipf"
        self.last_B1 = self._draw(1)

    def segment(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the next tokens and targets (B, T)."""
        text = torch.cat([self.last_B1, self._draw(length)], dim=1)
        self.last_B1 = text[:, -1:]
        return text[:, :-1].clone(), text[:, 1:].clone()

    def _draw(self, length: int) -> Tensor:
        if not self.zipf:
            return torch.randint(self.vocab_size, (self.lanes, length))
        chances = 1 / torch.arange(1, self.vocab_size + 1, dtype=torch.float64)
        return torch.multinomial(chances, self.lanes * length, replacement=True).view(self.lanes, length)


def autocast(request: dict[str, Any]) -> AbstractContextManager[object]:
    """Return the context of a forward pass in the request's precision."""
    return torch.autocast("cpu", torch.bfloat16, enabled=request["precision"] == "bfloat16")


class _Segments:
    """Segments of one text, one after the other, each of which the model reads with the memory of those before."""

    def __init__(self, request: dict[str, Any], loss: Loss) -> None:
        """Fill the memory, and let the first steps allocate.

        Args:
            request: see `works.py`.
            loss: of the model.
        """
        self.tokens = request["batch_size"] * request["segment_len"]
        self._request = request
        self._text = Text(request)
        self._loss = loss
        for _ in range(-(-request["mem_len"] // request["segment_len"]) + WARM_STEPS):
            self.step(self.draw())

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return tokens and targets."""
        return self._text.segment(self._request["segment_len"])

    def step(self, drawn: tuple[Tensor, Tensor]) -> float:
        raise NotImplementedError


class Training(_Segments):
    """Steps of training: forward, backward, gradients clipped, fused Adam."""

    def __init__(self, request: dict[str, Any], parameters: Iterable[nn.Parameter], loss: Loss) -> None:
        self._parameters = list(parameters)
        self._optimizer = torch.optim.Adam(self._parameters, lr=LEARNING_RATE, fused=True)
        super().__init__(request, loss)

    def step(self, drawn: tuple[Tensor, Tensor]) -> float:
        """Train on one segment of every lane."""
        self._optimizer.zero_grad(set_to_none=True)
        with autocast(self._request):
            loss = self._loss(*drawn)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, CLIP)
        self._optimizer.step()
        return float(loss.detach())


class Evaluation(_Segments):
    """Reading, one segment of every lane a step."""

    @torch.no_grad()
    def step(self, drawn: tuple[Tensor, Tensor]) -> float:
        """Read one segment of every lane."""
        with autocast(self._request):
            return float(self._loss(*drawn))


class Generation:
    """Tokens made one at a time, the likeliest each, from a memory that is full."""

    tokens = 1

    def __init__(self, request: dict[str, Any], log_probs: Callable[[Tensor], Tensor], *, fill: int) -> None:
        """Fill the memory.

        Args:
            request: see `works.py`.
            log_probs: from tokens (1, T) to what follows each (1, T, V), the model's memory carried on.
            fill: how many tokens are read first.
        """
        self._request = request
        self._log_probs = log_probs
        text = Text(request)
        while fill > 0:
            tokens_1T, _ = text.segment(min(fill, request["segment_len"]))
            self._next(tokens_1T)
            fill -= tokens_1T.shape[1]
        for _ in range(WARM_STEPS):
            self.step(None)

    def draw(self) -> None:
        """Return nothing: each token follows from the one before."""

    def step(self, drawn: None) -> float:
        """Make one token."""
        return self._next(torch.tensor([[self._token]]))

    @torch.no_grad()
    def _next(self, tokens_1T: Tensor) -> float:
        with autocast(self._request):
            last_V = self._log_probs(tokens_1T)[0, -1]
        self._token = int(last_V.argmax())
        return float(last_V[self._token])
