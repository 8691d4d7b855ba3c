"""A linear layer that reads a few rows as fast as memory gives its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_FEW_ROWS = 4
_PIECES = 8


class Linear(nn.Linear):
    """`nn.Linear`; where no gradient is asked for, few rows of float32 on a CPU use all of its cores.

    Libraries of matrix products share out the rows of the left factor, and give one row to one core.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Give (..., outputs) for (..., inputs)."""
        is_few = 0 < input.numel() <= _FEW_ROWS * self.in_features
        if torch.is_grad_enabled() or not is_few or not _is_plain(input, self.weight):
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)
        outputs = _product(self.weight, rows.t()).t()
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.reshape(*input.shape[:-1], self.out_features)


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    of_float32 = rows.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return of_float32 and rows.device.type == "cpu"


def _product(weight: Tensor, columns: Tensor) -> Tensor:
    outputs = len(weight)
    if columns.shape[1] > 1 or outputs % _PIECES:
        return weight @ columns
    pieces = weight.view(_PIECES, outputs // _PIECES, -1)
    return torch.bmm(pieces, columns.expand(_PIECES, -1, -1)).view(outputs, 1)
