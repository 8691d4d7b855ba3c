"""Drawing tokens one by one, each read with the memory of those before it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from transformer_xl.model.interface import LanguageModel
from transformer_xl.model.streaming import stream


@torch.no_grad()
def sample_tokens(
    model: LanguageModel,
    prompt: list[int],
    *,
    n_tokens: int,
    segment_len: int,
    temperature: float,
    top_k: int | None,
    seed: int,
) -> list[int]:
    """Continue a prompt; global random state is neither used nor changed.

    A model that knows distances reads each token once. One that knows places within a segment reads its segment again
    as it grows, and one without memory the last `segment_len` tokens.

    Args:
        model: in evaluation mode.
        prompt: at least one token id.
        n_tokens: how many tokens to draw.
        segment_len: the most tokens that a model reads at once which knows places, or has no memory.
        temperature: divides log-probabilities; 0 takes the likeliest token.
        top_k: draw from the k likeliest tokens only; None: from all.
        seed: of the draws.

    Returns:
        The drawn tokens, without the prompt.
    """
    generator = torch.Generator().manual_seed(seed)
    once = model.relative and model.mem_len > 0
    next_token = _read_once(model) if once else _read_again(model, segment_len=segment_len)
    tokens = list(prompt)
    for _ in range(n_tokens):
        log_probs = next_token(tokens).float().cpu()
        tokens.append(_draw(log_probs, temperature=temperature, top_k=top_k, generator=generator))
    return tokens[len(prompt) :]


NextToken = Callable[[list[int]], torch.Tensor]
"""Gives log-probabilities (V) of what follows tokens, for lists of which each continues the one before."""


def _read_once(model: LanguageModel) -> NextToken:
    device, session, read = next(model.parameters()).device, stream(model, batch_size=1), 0

    def next_token(tokens: list[int]) -> torch.Tensor:
        nonlocal read
        unread = torch.tensor([tokens[read:]], device=device)
        read = len(tokens)
        return session.log_probs(unread)[0, -1]

    return next_token


def _read_again(model: LanguageModel, *, segment_len: int) -> NextToken:
    """Read the last segment again as it grows, after those before it; without memory, the last `segment_len` tokens."""
    device, memory, start = next(model.parameters()).device, model.empty_memory(batch_size=1), 0

    def next_token(tokens: list[int]) -> torch.Tensor:
        nonlocal memory, start
        if model.mem_len == 0:
            start = max(0, len(tokens) - segment_len)
        while len(tokens) - start > segment_len:
            _, memory = model(torch.tensor([tokens[start : start + segment_len]], device=device), memory)
            start += segment_len
        return model.log_probs(torch.tensor([tokens[start:]], device=device), memory).log_probs_BTV[0, -1]

    return next_token


def _draw(log_probs: torch.Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(log_probs.argmax())
    kept, tokens = log_probs.topk(min(top_k or len(log_probs), len(log_probs)))
    choice = torch.multinomial(((kept - kept.max()) / temperature).softmax(dim=-1), 1, generator=generator)
    return int(tokens[choice])
