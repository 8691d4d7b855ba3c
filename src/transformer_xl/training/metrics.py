"""Token losses summed over batches, devices and processes, divided once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from transformer_xl.scores import Score


class TokenLoss(Metric):
    """Mean loss over tokens, whatever the sizes of the batches; the sum is kept in float64."""

    full_state_update = False
    nll_sum: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nll_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nll: Tensor, targets: Tensor) -> None:
        """Add the losses of a batch.

        Args:
            nll: (B, T), nats, 0 where the target does not count.
            targets: (B, T), -100 where it does not count.
        """
        self.nll_sum += nll.sum(dtype=torch.float64)
        self.tokens += (targets != -100).sum()

    def compute(self) -> Tensor:
        """Give (sum of losses, tokens) as float64, over all processes."""
        return torch.stack([self.nll_sum, self.tokens.double()])

    def score(self) -> Score:
        """Give the mean loss over all processes."""
        nll_sum, tokens = self.compute().tolist()
        return Score(nll_sum / tokens if tokens else math.nan, int(tokens))
