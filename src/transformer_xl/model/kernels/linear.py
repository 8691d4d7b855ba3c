"""Linear layers: for training and reading, and, where weights stay as they are, for reading a few rows at a time.

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transformer_xl.model.kernels import onednn

M = TypeVar("M", bound=nn.Module)

_PIECES = 8
"""Parts of a weight that share the cores when it is multiplied by a single vector."""


class Linear(nn.Linear):
    """`nn.Linear`, its products in float32 on a CPU by what is fastest there; see `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Give (..., O) for (..., I)."""
        return linear(input, self.weight, self.bias)


def linear(input: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Give (..., O) for (..., I), as `functional.linear` does, faster for many rows and for one."""
    if input.numel() == weight_OI.shape[1] and not torch.is_grad_enabled() and onednn.is_float32_cpu(input, weight_OI):
        return _gemv(input, weight_OI, bias_O)
    if onednn.use_onednn(input, weight_OI):
        output: Tensor = _LargeLinear.apply(input, weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return output
    return functional.linear(input, weight_OI, bias_O)


class _LargeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        to_input, to_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(input if to_weight else None, weight_OI if to_input else None)
        ctx.shape = input.shape
        output_RO = onednn.linear(input.reshape(-1, input.shape[-1]), weight_OI, bias_O)
        return output_RO.resize_(*input.shape[:-1], len(weight_OI))  # a view could not be changed in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight_OI = ctx.saved_tensors
        grad_RO = grad.reshape(-1, grad.shape[-1])
        _, _, to_bias = ctx.needs_input_grad
        return (
            None if weight_OI is None else onednn.linear(grad_RO, weight_OI.t()).view(ctx.shape),
            None if input is None else grad_RO.t() @ input.reshape(-1, ctx.shape[-1]),
            grad_RO.sum(dim=0) if to_bias else None,
        )


def _gemv(input: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Share a weight's rows out to all cores: libraries give one row of the left factor to one core."""
    outputs = len(weight_OI)
    rest = outputs % _PIECES
    # the vector as a row that is transposed: as a column of its own it is read far more slowly
    column_I1 = input.reshape(1, -1).t()
    pieces = weight_OI[: outputs - rest].view(_PIECES, -1, weight_OI.shape[1])
    output_O = torch.bmm(pieces, column_I1.expand(_PIECES, -1, -1)).flatten()
    if rest:
        output_O = torch.cat([output_O, (weight_OI[-rest:] @ column_I1)[:, 0]])
    if bias_O is not None:
        output_O = output_O + bias_O
    return output_O.view(*input.shape[:-1], outputs)


class PackedLinear(nn.Module):
    """A linear layer whose weight, as it is when few rows are first read, is laid out for them."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        """Give a layer of copied weights, which lays them out for itself: what is laid out cannot be copied."""
        return PackedLinear(copy.deepcopy(self._linear, memo))

    def forward(self, input: Tensor) -> Tensor:
        """Give (..., O) for (..., I)."""
        linear = self._linear
        is_cast = torch.is_autocast_enabled("cpu") and linear.weight.dtype != torch.float64
        dtype = torch.get_autocast_dtype("cpu") if is_cast else linear.weight.dtype
        rows = input.numel() // linear.in_features
        fewest = 2 if dtype == torch.float32 else 1  # what `Linear` does with a single row is no slower
        if not fewest <= rows < onednn.FEW_ROWS or not onednn.can_be_packed(linear.weight, dtype):
            output: Tensor = linear(input)
            return output
        if self._weight is None or self._weight.dtype != dtype:
            self._weight = onednn.pack_weight(linear.weight.detach().to(dtype), rows=rows)
            self._bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        input_RI = functional.pad(input.reshape(rows, -1).to(dtype), (0, 0, 0, onednn.rows_to_add(rows)))
        return onednn.linear(input_RI, self._weight, self._bias)[:rows].view(*input.shape[:-1], -1)


def prepack(module: M) -> M:
    """Give a module for reading alone, under weights and in a mode that stay as they are: its parameters are shared.

    Where a linear layer of it reads few rows at a time, a copy of its weight is kept in the order that they read
    fastest.
    """
    twin = copy.copy(module)
    twin._modules = {
        name: PackedLinear(child) if isinstance(child, Linear) else child and prepack(child)
        for name, child in module._modules.items()
    }
    return twin
