"""One gradient for a table that looks tokens up and is a matrix of the softmax too.

Left to itself, each use makes a gradient as large as the table, which for a vocabulary of words is most of the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class SharedTable(NamedTuple):
    """A table twice, once for each use."""

    for_lookup: Tensor
    for_softmax: Tensor


def shared_table(table: Tensor) -> SharedTable:
    """Give a table for both uses; what a lookup passes back as a sparse gradient is added to the softmax's in place."""
    return SharedTable(*_Shared.apply(table))  # type: ignore[no-untyped-call]


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return table.view_as(table), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, of_lookup: Tensor | None, of_softmax: Tensor | None) -> Tensor | None:
        if of_softmax is None:
            return None if of_lookup is None else of_lookup.to_dense()
        return of_softmax if of_lookup is None else of_softmax.add_(of_lookup)
