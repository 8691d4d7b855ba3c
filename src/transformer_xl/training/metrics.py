"""Token losses summed over batches, devices and processes, divided once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> TokenLoss:
        """Follow the module to its device, but keep float64 where the module turns to bfloat16."""
        super()._apply(fn, exclude_state)
        self.nll_sum = self.nll_sum.to(torch.float64)
        self._defaults["nll_sum"] = torch.zeros((), dtype=torch.float64, device=self.nll_sum.device)
        return self

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
