"""Linear layers: for training and reading, and, where weights stay as they are, for reading a few rows at a time.

On a CPU large products are oneDNN's, a library within torch, which takes it for bfloat16 alone. In float32 it is up to
twice as fast as what torch takes, most of all for tables of words; and where a weight stays as it is, in both
precisions, it can be packed once in the order in which few rows are read fastest. Torch reaches this from graphs that
it compiles: here its operators are called, unless `torch.backends.mkldnn.enabled` is false.

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

M = TypeVar("M", bound=nn.Module)

_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_REORDER: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_ON_X86 = _LINEAR is not None and _REORDER is not None and torch.backends.cpu.get_cpu_capability().startswith("AVX")
_IN_BFLOAT16 = _ON_X86 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

_WORTH_A_CALL = 1 << 26
"""Products of numbers (R x I x O) from which on more time is saved than a call from Python takes."""

_WORTH_A_LAYOUT = 1 << 18
"""Numbers of a weight (I x O), below which a product of few rows takes no longer than its call."""

_FEW_ROWS = 512
"""Rows (R) below which the layout of a weight makes a difference."""

_ROWS_ROUNDED_TO = 16

_PIECES = 8
"""Parts of a weight that share the cores when it is multiplied by a single vector."""


def use_onednn(left: Tensor, right: Tensor) -> bool:
    """Return whether the product of `left` (..., I) and `right` transposed (O, I) is faster by oneDNN."""
    return left.numel() * right.shape[0] >= _WORTH_A_CALL and supports(left, right)


def supports(*tensors: Tensor) -> bool:
    """Return whether products of these in float32 can be done here."""
    return _ON_X86 and bool(torch.backends.mkldnn.enabled) and is_float32_cpu(*tensors)


def onednn_linear(input_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return what `functional.linear` does, of a weight as it is or reordered."""
    # an input that does not lie row behind row would be read a number at a time
    output_RO: Tensor = _LINEAR(input_RI.contiguous(), weight_OI, bias_O, "none", [], "")
    return output_RO


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type to which a product rounds a tensor: its own, or under autocast that of autocast.

    Tensors without data stand for a GPU's.
    """
    device = "cuda" if tensor.is_meta else tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def rows_to_add(rows: int) -> int:
    """Return how many rows to add, so that products have few different numbers of them.

    The library keeps code of its own for each number that it has met, and megabytes beside it.
    """
    return -rows % _ROWS_ROUNDED_TO if rows > _ROWS_ROUNDED_TO else 0


def is_float32_cpu(*tensors: Tensor) -> bool:
    """Return whether products of these are computed in float32 on a CPU, and not in code that is compiled."""
    of_type = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return of_type and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()


class Linear(nn.Linear):
    """`nn.Linear`, its products in float32 on a CPU by what is fastest there; see `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(input: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return what `functional.linear` does, faster for many rows and for one."""
    if input.numel() == weight_OI.shape[1] and not torch.is_grad_enabled() and is_float32_cpu(input, weight_OI):
        return _gemv(input, weight_OI, bias_O)
    if use_onednn(input, weight_OI):
        output: Tensor = _LargeLinear.apply(input, weight_OI, bias_O)  # type: ignore[no-untyped-call]
        return output
    return functional.linear(input, weight_OI, bias_O)


class _LargeLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight_OI)
        output_RO = onednn_linear(input.reshape(-1, input.shape[-1]), weight_OI, bias_O)
        return output_RO.resize_(*input.shape[:-1], len(weight_OI))  # a view could not be changed in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight_OI = ctx.saved_tensors
        grad_RO = grad.reshape(-1, grad.shape[-1])
        to_input, to_weight, to_bias = ctx.needs_input_grad
        return (
            onednn_linear(grad_RO, weight_OI.t()).view(input.shape) if to_input else None,
            grad_RO.t() @ input.reshape(-1, input.shape[-1]) if to_weight else None,
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
    output_O = output_O if bias_O is None else output_O + bias_O
    return output_O.view(*input.shape[:-1], outputs)


class PackedLinear(nn.Module):
    """A linear layer whose weight, as it is when few rows are first read, is laid out for them."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear
        self._packed: tuple[Tensor, Tensor | None] | None = None

    def forward(self, input: Tensor) -> Tensor:
        linear, weight_OI = self._linear, self._linear.weight
        is_cast = torch.is_autocast_enabled("cpu") and weight_OI.dtype != torch.float64
        dtype = torch.get_autocast_dtype("cpu") if is_cast else weight_OI.dtype
        rows = input.numel() // linear.in_features
        in_type = (dtype == torch.float32 and _ON_X86) or (dtype == torch.bfloat16 and _IN_BFLOAT16)
        in_use = bool(torch.backends.mkldnn.enabled) and not torch.compiler.is_compiling()
        gains = weight_OI.device.type == "cpu" and weight_OI.numel() >= _WORTH_A_LAYOUT
        fewest = 2 if dtype == torch.float32 else 1  # what `Linear` does with a single row is no slower
        if not (in_type and in_use and gains and fewest <= rows < _FEW_ROWS):
            output: Tensor = linear(input)
            return output
        if self._packed is None or self._packed[0].dtype != dtype:
            bias_O = None if linear.bias is None else linear.bias.detach().to(dtype)
            self._packed = _REORDER(weight_OI.detach().to(dtype), rows), bias_O
        input_RI = functional.pad(input.reshape(rows, -1).to(dtype), (0, 0, 0, rows_to_add(rows)))
        return onednn_linear(input_RI, *self._packed)[:rows].view(*input.shape[:-1], -1)


def prepack(module: M) -> M:
    """Return a module for reading alone, in evaluation mode, under weights that stay as they are and are shared.

    Linear layers that read few rows at a time keep a copy of their weight in the order that these read fastest.
    """
    twin = copy.copy(module)
    twin.training = False
    twin._modules = {
        name: PackedLinear(child) if isinstance(child, Linear) else child and prepack(child)
        for name, child in module._modules.items()
    }
    return twin
