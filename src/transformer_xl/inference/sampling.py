"""Drawing tokens one by one, each read with the memory of those before it."""

from __future__ import annotations

import torch

from transformer_xl.model.interface import LanguageModel


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
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    memory = model.empty_memory(batch_size=1)
    tokens = list(prompt)
    start = 0 if model.mem_len else max(0, len(tokens) - segment_len)
    for _ in range(n_tokens):
        while not model.relative and len(tokens) - start > segment_len:
            _, memory = model(torch.tensor([tokens[start : start + segment_len]], device=device), memory)
            start += segment_len
        log_probs, after = model.log_probs(torch.tensor([tokens[start:]], device=device), memory)
        token = _draw(log_probs[0, -1].float().cpu(), temperature=temperature, top_k=top_k, generator=generator)
        if model.mem_len == 0:
            start = max(0, len(tokens) + 1 - segment_len)
        elif model.relative:
            memory, start = after, len(tokens)
        tokens.append(token)
    return tokens[len(prompt) :]


def _draw(log_probs: torch.Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(log_probs.argmax())
    kept, tokens = log_probs.topk(min(top_k or len(log_probs), len(log_probs)))
    choice = torch.multinomial(((kept - kept.max()) / temperature).softmax(dim=-1), 1, generator=generator)
    return int(tokens[choice])
