"""Drawing tokens one by one, each read with the memory of those before it."""

from __future__ import annotations

import torch

from transformer_xl.model.interface import LanguageModel


@torch.no_grad()
def sample_tokens(
    model: LanguageModel, prompt: list[int], *, n_tokens: int, temperature: float, top_k: int | None, seed: int
) -> list[int]:
    """Continue a prompt; global random state is neither used nor changed.

    Args:
        model: in evaluation mode.
        prompt: at least one token id.
        n_tokens: how many tokens to draw.
        temperature: divides log-probabilities; 0 takes the likeliest token.
        top_k: draw from the k likeliest tokens only; None: from all.
        seed: of the draws.

    Returns:
        The drawn tokens, without the prompt.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    memory = model.empty_memory(batch_size=1)
    tokens = torch.tensor([prompt], device=device)
    drawn: list[int] = []
    for _ in range(n_tokens):
        log_probs, memory = model.log_probs(tokens, memory)
        token = _draw(log_probs[0, -1].float().cpu(), temperature=temperature, top_k=top_k, generator=generator)
        drawn.append(token)
        tokens = torch.tensor([[token]], device=device)
    return drawn


def _draw(log_probs: torch.Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(log_probs.argmax())
    kept, tokens = log_probs.topk(min(top_k or len(log_probs), len(log_probs)))
    choice = torch.multinomial(((kept - kept.max()) / temperature).softmax(dim=-1), 1, generator=generator)
    return int(tokens[choice])
