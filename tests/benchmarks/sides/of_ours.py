"""Our side: training, streaming evaluation and generation, and what is measured of our models alone.

Letters: B lanes, T tokens, D width, N heads, H head width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from products import step_products, timed_products
from serving import Work, serve
from steps import Evaluation, Generation, Text, Training, autocast
from torch import Tensor

from transformer_xl.devices import keep_freed_memory
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model.streaming import Stream, stream
from transformer_xl.model_config import parse_model


def session(request: dict[str, Any], model: LanguageModel) -> Stream:
    """Begin to read or make a text, piece by piece."""
    return stream(
        model.eval(),
        batch_size=request["batch_size"],
        mem_len=request["mem_len"],
        clamp_len=request["clamp_len"],
        same_length=request["same_length"],
    )


class WholeText:
    """One step reads a text of `text_len` tokens from its beginning, in segments, each with the memory before it."""

    def __init__(self, request: dict[str, Any], model: LanguageModel) -> None:
        self.tokens = request["batch_size"] * request["text_len"]
        self._request = request
        self._model = model
        self._text = Text(request)
        self.step(self.draw())

    def draw(self) -> tuple[Tensor, Tensor]:
        """Give tokens and targets."""
        return self._text.segment(self._request["text_len"])

    @torch.no_grad()
    def step(self, drawn: tuple[Tensor, Tensor]) -> float:
        """Read the text; its mean loss."""
        text = session(self._request, self._model)
        pieces = zip(*(torch.split(side, self._request["segment_len"], dim=1) for side in drawn), strict=True)
        total = 0.0
        with autocast(self._request):
            for tokens_BT, targets_BT in pieces:
                total += float(text.nll(tokens_BT, targets_BT).sum())
        return total / self.tokens


class Window:
    """One step predicts one token from the `segment_len` before it, read without memory: a sliding window.

    Attributes:
        tokens: predicted by a step: one.
    """

    tokens = 1

    def __init__(self, request: dict[str, Any], model: LanguageModel) -> None:
        self._request = request
        self._model = model.eval()
        self._text = Text(request)
        self.step(self.draw())

    def draw(self) -> tuple[Tensor, Tensor]:
        """Give tokens, and targets of which the last alone counts."""
        tokens_BT, targets_BT = self._text.segment(self._request["segment_len"])
        targets_BT[:, :-1] = -100
        return tokens_BT, targets_BT

    @torch.no_grad()
    def step(self, drawn: tuple[Tensor, Tensor]) -> float:
        """Read the window; the last token's loss."""
        with autocast(self._request):
            nll_BT, _ = self._model.nll(*drawn, self._model.empty_memory(batch_size=1))
        return float(nll_BT[0, -1])


class Peak:
    """One step times a large matrix product; its value is operations a second.

    Attributes:
        tokens: none.
    """

    tokens = 0

    def __init__(self, request: dict[str, Any]) -> None:
        self._dtype = getattr(torch, request["precision"])

    def draw(self) -> None:
        """Give nothing."""

    def step(self, drawn: None) -> float:
        """Time the product; the best of several, since others disturb most of them."""
        size, best = 1024, math.inf
        left, right = (torch.randn(size, size).to(self._dtype) for _ in range(2))
        began = time.perf_counter()
        while time.perf_counter() - began < 0.5:
            start = time.perf_counter()
            float((left @ right)[0, 0])
            best = min(best, time.perf_counter() - start)
        return 2 * size**3 / best


class Products:
    """One step does the matrix products of a training step, and nothing else.

    Attributes:
        tokens: of the training step.
    """

    def __init__(self, request: dict[str, Any], model: LanguageModel) -> None:
        self.tokens = request["batch_size"] * request["segment_len"]
        products = step_products(model, request)
        self._run = timed_products(products, dtype=getattr(torch, request["precision"]))
        self._run()

    def draw(self) -> None:
        """Give nothing: the numbers do not matter."""

    def step(self, drawn: None) -> float:
        """Do the products."""
        self._run()
        return 0.0


def training(request: dict[str, Any], model: LanguageModel) -> Training:
    """Give steps of training."""
    memory = model.train().empty_memory(batch_size=request["batch_size"])

    def loss(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        nonlocal memory
        nll_BT, memory = model.nll(tokens_BT, targets_BT, memory)
        return nll_BT.sum() / targets_BT.numel()

    return Training(request, model.parameters(), loss)


def evaluation(request: dict[str, Any], model: LanguageModel) -> Evaluation:
    """Give steps of streaming evaluation."""
    text = session(request, model)
    return Evaluation(request, lambda tokens_BT, targets_BT: text.nll(tokens_BT, targets_BT).mean())


def generation(request: dict[str, Any], model: LanguageModel) -> Generation:
    """Give steps of streaming generation."""
    return Generation(request, session(request, model).log_probs, filled=False)


TASKS: dict[str, Callable[[dict[str, Any], LanguageModel], Work]] = {
    "training": training,
    "evaluation": evaluation,
    "generation": generation,
    "text": WholeText,
    "window": Window,
    "products": Products,
}


def make_work(request: dict[str, Any]) -> Work:
    """Build and warm what a request describes."""
    if request["task"] == "peak":
        return Peak(request)
    model = make_model(parse_model(request["model"]), vocab_size=request["vocab_size"])
    if request["precision"] == "bfloat16 weights":
        model = model.to(torch.bfloat16)
    return TASKS[request["task"]](request, model)


def alone(request: dict[str, Any]) -> Work:
    """Do the same for a process that does nothing else: in training it keeps freed memory, as `train.py`'s does."""
    if request["task"] == "training":
        keep_freed_memory()
    return make_work(request)


if __name__ == "__main__":
    serve(alone, versions={})
