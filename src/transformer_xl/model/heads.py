"""Token embedding and output, one matrix (tied).

Letters: B lanes, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TiedEmbedding(nn.Module):
    """Embeds tokens, scaled by sqrt(D), and scores the next token with the same matrix and a bias."""

    def __init__(self, *, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.scale = d_model**0.5

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Embed token ids: (B, T, D)."""
        embedded_BTD = functional.embedding(tokens_BT, self.weight)
        return embedded_BTD.mul(self.scale)

    def log_probs(self, hidden_BTD: Tensor) -> Tensor:
        """Give log-probabilities (B, T, V), at least float32."""
        logits_BTV = functional.linear(hidden_BTD, self.weight, self.bias)
        return logits_BTV.log_softmax(dim=-1, dtype=torch.promote_types(logits_BTV.dtype, torch.float32))

    def nll(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Give losses (B, T) in nats, at least float32; 0 where the target is -100."""
        logits_BTV = functional.linear(hidden_BTD, self.weight, self.bias)
        logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
        nll = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
        return nll.view(targets_BT.shape)
