"""Matrix products on a CPU by oneDNN, a library within torch, which takes it for bfloat16 alone.

In float32 it is up to twice as fast as what torch takes, most of all for tables of words; and where a weight stays as
it is, in both precisions, it can be laid out once in the order in which few rows are read fastest. Torch reaches this
from graphs that it compiles: here its operators are called for products large enough to be worth a call, unless
`torch.backends.mkldnn.enabled` is false.

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_REORDER: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_ON_X86 = _LINEAR is not None and _REORDER is not None and torch.backends.cpu.get_cpu_capability().startswith("AVX")
_IN_BFLOAT16 = _ON_X86 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

_WORTH_A_CALL = 1 << 26
"""Products of numbers (R x I x O) from which on more time is saved than a call from Python takes."""

_WORTH_A_LAYOUT = 1 << 18
"""Numbers of a weight (I x O), below which a product of few rows takes no longer than its call."""

_OUTPUTS_AT_ONCE = 2048
"""Outputs of a product that are made before they are copied to where they belong: so few that a cache holds them."""

_ROWS_ROUNDED_TO = 16

FEW_ROWS = 512
"""Rows (R) below which the layout of a weight makes a difference."""


def use_onednn(left: Tensor, right: Tensor) -> bool:
    """Say whether the product of `left` (R, I) and `right` transposed (O, I) is faster by oneDNN than as torch has it.

    Leading dimensions of `left` count as rows.
    """
    return left.numel() * right.shape[0] >= _WORTH_A_CALL and supports(left, right)


def supports(*tensors: Tensor) -> bool:
    """Say whether products of these in float32 can be done here."""
    return _ON_X86 and bool(torch.backends.mkldnn.enabled) and is_float32_cpu(*tensors)


def linear(input_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Give what `functional.linear` does: (R, O); leading dimensions stay.

    Args:
        input_RI: float32, or the weight's type.
        weight_OI: as it is, or as `pack_weight` gives it.
        bias_O: of the weight's type.
    """
    # an input that does not lie row behind row would be read a number at a time
    output_RO: Tensor = _LINEAR(input_RI.contiguous(), weight_OI, bias_O, "none", [], "")
    return output_RO


def write_wide_linear(target_RO: Tensor, input_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> None:
    """Write what `linear` gives for many outputs, some at a time: a weight is copied into the order that it reads."""
    rows = len(input_RI)
    input_RI = functional.pad(input_RI, (0, 0, 0, rows_to_add(rows)))
    for start in range(0, len(weight_OI), _OUTPUTS_AT_ONCE):
        some = slice(start, start + _OUTPUTS_AT_ONCE)
        target_RO[:, some] = linear(input_RI, weight_OI[some], bias_O[some])[:rows]


def write_tall_product(target_OI: Tensor, left_OR: Tensor, right_RI: Tensor) -> None:
    """Write the product of two matrices into a third with many rows, some at a time."""
    right_IR = right_RI.t()
    for start in range(0, len(target_OI), _OUTPUTS_AT_ONCE):
        some = slice(start, start + _OUTPUTS_AT_ONCE)
        target_OI[some] = linear(left_OR[some], right_IR)


def rows_to_add(rows: int) -> int:
    """Say how many rows to add, so that products have few different numbers of them.

    The library keeps code of its own for each number that it has met, and megabytes beside it.
    """
    return -rows % _ROWS_ROUNDED_TO if rows > _ROWS_ROUNDED_TO else 0


def can_be_packed(weight_OI: Tensor, dtype: torch.dtype) -> bool:
    """Say whether products of few rows with a weight in that type gain from `pack_weight`."""
    in_type = (dtype == torch.float32 and _ON_X86) or (dtype == torch.bfloat16 and _IN_BFLOAT16)
    in_use = bool(torch.backends.mkldnn.enabled) and not torch.compiler.is_compiling()
    return in_type and in_use and weight_OI.device.type == "cpu" and weight_OI.numel() >= _WORTH_A_LAYOUT


def pack_weight(weight_OI: Tensor, *, rows: int) -> Tensor:
    """Give a copy of a weight for `linear`, in the order in which so many rows, or about as many, read it fastest."""
    packed: Tensor = _REORDER(weight_OI, rows)
    return packed


def is_float32_cpu(*tensors: Tensor) -> bool:
    """Say whether products of these are computed in float32 on a CPU, and not in code that is compiled."""
    of_type = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return of_type and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
