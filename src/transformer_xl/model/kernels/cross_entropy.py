"""Losses of softmaxes over linear layers; the gradient of a table that several of them share is written once.

With logits l = h W^T + b, z = log sum exp l and the loss n = z - l_y, a gradient g of n gives dl = g (exp(l - z) - [y])
and from it dh = dl W, dW = dl^T h, db = sum dl. Logits are kept for the backward pass where there are not too many, and
else made again, some rows at a time.

Letters: R rows (predictions), D width, V rows of a table, C columns of a softmax; of a part: r rows, c columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from transformer_xl.model.kernels.linear import onednn_linear, product_dtype, rows_to_add, use_onednn

NOT_COUNTED = -100
"""The target of a position that no loss counts."""

LOGITS_AT_ONCE = 1 << 28
"""Logits of a softmax that are held at a time."""

COLUMNS_AT_ONCE = 8192
"""Columns whose products are made at a time where these are copied to another type, or the table to theirs."""

OUTPUTS_AT_ONCE = 2048
"""Outputs of a product that are made before they are copied to where they belong: so few that a cache holds them."""


class Table(NamedTuple):
    """Rows that softmaxes take their columns from."""

    weight_VD: Tensor
    bias_V: Tensor


Columns = tuple[int, slice]
"""Neighbouring rows of a table, by its number; no row is a column of two softmaxes, nor twice of one."""


class Softmax(NamedTuple):
    """One softmax: what it reads, its columns, and the column that is right for each row; -100: none counts."""

    hidden_RD: Tensor
    columns: tuple[Columns, ...]
    target_R: Tensor


def softmax_losses(softmaxes: Sequence[Softmax], tables: Sequence[Table]) -> tuple[Tensor, ...]:
    """Return for each softmax its losses (R,) in nats, at least float32; 0 where the target is -100."""
    columns, targets = [softmax.columns for softmax in softmaxes], [softmax.target_R for softmax in softmaxes]
    tensors = [*(softmax.hidden_RD for softmax in softmaxes), *(tensor for table in tables for tensor in table)]
    losses: tuple[Tensor, ...] = _SoftmaxLosses.apply(columns, targets, *tensors)  # type: ignore[no-untyped-call]
    return losses


class _Linear(NamedTuple):
    """The linear layer below a softmax; the gradients of one have the same shape."""

    hidden_RD: Tensor
    columns: tuple[Columns, ...]
    tables: Sequence[Table]

    def parts(self) -> Iterator[slice]:  # rows that have not too many logits
        rows = len(self.hidden_RD)
        rows_at_once = max(1, LOGITS_AT_ONCE // sum(some.stop - some.start for _, some in self.columns))
        for start in range(0, max(rows, 1), rows_at_once):
            yield slice(start, min(start + rows_at_once, rows))

    def logits(self, part: slice, dtype: torch.dtype) -> Tensor:
        # (r, C) of some rows, of products in `dtype`, at least float32
        hidden_rD = self.hidden_RD[part].to(dtype)
        columns = sum(rows.stop - rows.start for _, rows in self.columns)
        logits_rC = hidden_rD.new_empty(len(hidden_rD), columns, dtype=_precise(dtype))
        for number, rows, place in self._pieces(dtype):
            table = self.tables[number]
            table_cD, bias_c = table.weight_VD[rows].to(dtype), table.bias_V[rows].to(dtype)
            _write_linear(logits_rC[:, place], hidden_rD, table_cD, bias_c)
        return logits_rC

    def write_gradients(self, to: _Linear, grad_rC: Tensor, part: slice, dtype: torch.dtype) -> None:
        # what some rows' logits pass on; to tables and biases the first part writes, and others add
        hidden_rD, to_hidden_rD = self.hidden_RD[part].to(dtype), to.hidden_RD[part]
        sum_rD = to_hidden_rD.to(_precise(dtype))
        for number, rows, place in self._pieces(dtype):
            to_table = to.tables[number]
            grad_rc, table_cD = grad_rC[:, place].to(dtype), self.tables[number].weight_VD[rows].to(dtype)
            _write_product(sum_rD, grad_rc, table_cD, adds=place.start > 0)
            _write_product(to_table.weight_VD[rows], grad_rc.t(), hidden_rD, adds=part.start > 0)
            bias_c = grad_rc.sum(dim=0)
            to_table.bias_V[rows] = to_table.bias_V[rows] + bias_c if part.start > 0 else bias_c
        if sum_rD is not to_hidden_rD:
            to_hidden_rD.copy_(sum_rD)

    def _pieces(self, dtype: torch.dtype) -> Iterator[tuple[int, slice, slice]]:
        # a table's number and rows, and their place among the softmax's columns; cut where copies of another type are
        # made, which a CPU's cache is to hold, and which would take as much of a device's memory as the logits
        stop = 0
        for number, rows in self.columns:
            weight_VD = self.tables[number].weight_VD
            is_cut = weight_VD.dtype != dtype or _precise(dtype) != dtype
            at_once = COLUMNS_AT_ONCE if is_cut else rows.stop - rows.start
            for first in range(rows.start, rows.stop, at_once):
                some = slice(first, min(first + at_once, rows.stop))
                start, stop = stop, stop + some.stop - some.start
                yield number, some, slice(start, stop)


def _linears(columns: Sequence[tuple[Columns, ...]], tensors: Sequence[Tensor]) -> list[_Linear]:
    hidden, in_tables = tensors[: len(columns)], tensors[len(columns) :]
    tables = [Table(*pair) for pair in zip(in_tables[::2], in_tables[1::2], strict=True)]
    return [_Linear(hidden_RD, some, tables) for hidden_RD, some in zip(hidden, columns, strict=True)]


class _SoftmaxLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, columns: list[tuple[Columns, ...]], targets: list[Tensor], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        dtype = product_dtype(tensors[0])
        losses, normalisers, kept = [], [], []
        with _no_autocast(tensors[0]):
            for linear, target_R in zip(_linears(columns, tensors), targets, strict=True):
                right_R1, normaliser, right = target_R.masked_fill(target_R == NOT_COUNTED, 0)[:, None], [], []
                parts = list(linear.parts())
                for part in parts:
                    logits_rC = linear.logits(part, dtype)
                    normaliser.append(logits_rC.logsumexp(dim=1))
                    right.append(logits_rC.gather(1, right_R1[part])[:, 0])
                kept.append(logits_rC if len(parts) == 1 else None)
                normalisers.append(torch.cat(normaliser))
                losses.append((normalisers[-1] - torch.cat(right)).masked_fill_(target_R == NOT_COUNTED, 0))
        ctx.columns, ctx.targets, ctx.dtype, ctx.kept = columns, targets, dtype, kept
        ctx.save_for_backward(*tensors, *normalisers)
        return tuple(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.columns)
        saved = ctx.saved_tensors
        tensors, normalisers = saved[:-count], saved[-count:]
        gradients = [torch.empty_like(tensor) for tensor in tensors]
        kept, ctx.kept = ctx.kept, [None] * count  # written over: whoever asks for gradients twice has them made again
        linears, to = _linears(ctx.columns, tensors), _linears(ctx.columns, gradients)
        with _no_autocast(tensors[0]):
            for number, (linear, target_R, grad_R) in enumerate(zip(linears, ctx.targets, grads, strict=True)):
                counted_R1 = torch.where(target_R == NOT_COUNTED, 0, grad_R)[:, None]
                right_R1 = target_R.masked_fill(target_R == NOT_COUNTED, 0)[:, None]
                for part in linear.parts():
                    logits_rC, kept[number] = kept[number], None
                    if logits_rC is None:
                        logits_rC = linear.logits(part, ctx.dtype)
                    grad_rC = logits_rC.sub_(normalisers[number][part, None]).exp_()
                    right_r1 = right_R1[part]
                    grad_rC.scatter_add_(1, right_r1, -torch.ones_like(right_r1, dtype=grad_rC.dtype))
                    linear.write_gradients(to[number], grad_rC.mul_(counted_R1[part]), part, ctx.dtype)
        return (None, None, *gradients)


def _no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _some_at_a_time(outputs: int) -> Iterator[slice]:
    return (slice(start, start + OUTPUTS_AT_ONCE) for start in range(0, outputs, OUTPUTS_AT_ONCE))


def _write_linear(target_rc: Tensor, hidden_rD: Tensor, table_cD: Tensor, bias_c: Tensor) -> None:
    if use_onednn(hidden_rD, table_cD):
        rows = len(hidden_rD)
        hidden_rD = functional.pad(hidden_rD, (0, 0, 0, rows_to_add(rows)))
        for some in _some_at_a_time(len(table_cD)):
            target_rc[:, some] = onednn_linear(hidden_rD, table_cD[some], bias_c[some])[:rows]
    elif target_rc.is_contiguous() and target_rc.dtype == hidden_rD.dtype:
        torch.addmm(bias_c, hidden_rD, table_cD.t(), out=target_rc)
    else:
        target_rc.copy_(torch.addmm(bias_c, hidden_rD, table_cD.t()))


def _write_product(target: Tensor, left: Tensor, right: Tensor, *, adds: bool) -> None:
    if adds:
        target += left @ right
    elif target.dtype == left.dtype and len(left) > len(right) and use_onednn(left, right.t()):
        right_IR = right.t()
        for some in _some_at_a_time(len(target)):
            target[some] = onednn_linear(left[some], right_IR)
    elif target.dtype == left.dtype:
        torch.mm(left, right, out=target)
    else:
        target.copy_(left @ right)


class SharedTable(torch.autograd.Function):
    """Returns a table for looking tokens up, and for the softmax: left alone, each use makes a whole gradient.

    Here a lookup's sparse gradient is added to the softmax's in place.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return table.view_as(table), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, of_lookup: Tensor | None, of_softmax: Tensor | None) -> Tensor | None:
        if of_softmax is None:
            return None if of_lookup is None else of_lookup.to_dense()
        if of_lookup is not None and of_lookup.is_sparse and of_lookup.device.type != "cpu":
            return of_softmax.index_add_(0, of_lookup._indices()[0], of_lookup._values())
        return of_softmax if of_lookup is None else of_softmax.add_(of_lookup)
