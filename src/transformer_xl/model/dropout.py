"""Dropout of hidden states: a mask of their own for every position, or one for all positions of a lane."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class VariationalDropout(nn.Module):
    """Drops the same features at every position of a lane's segment (Gal and Ghahramani, 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Drop features of (B, T, D)."""
        mask_B1D = functional.dropout(hidden_BTD.new_ones(hidden_BTD[:, :1].shape), self.p, training=self.training)
        return hidden_BTD * mask_B1D


def make_dropout(p: float, *, variational: bool) -> nn.Module:
    """Make the dropout of hidden states (B, T, D)."""
    return VariationalDropout(p) if variational else nn.Dropout(p)
