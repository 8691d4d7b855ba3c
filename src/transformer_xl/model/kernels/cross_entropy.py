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

from transformer_xl.model.kernels.linear import use_onednn, write_tall_product, write_wide_linear

NOT_COUNTED = -100
"""The target of a position that no loss counts."""

LOGITS_AT_ONCE = 1 << 28
"""Logits of a softmax that are held at a time."""

COLUMNS_AT_ONCE = 8192
"""Columns of which a CPU makes copies of another type at a time."""


class Columns(NamedTuple):
    """Neighbouring columns of a softmax: the rows from `start` to `stop` of a table and of its biases.

    No row of a table is a column of two softmaxes that are computed together, nor twice of one.
    """

    table_VD: Tensor
    bias_V: Tensor
    start: int
    stop: int


class Softmax(NamedTuple):
    """One softmax: what it reads, its columns, and the column that is right for each row; -100: none counts."""

    hidden_RD: Tensor
    columns: tuple[Columns, ...]
    target_R: Tensor


def softmax_losses(softmaxes: Sequence[Softmax]) -> tuple[Tensor, ...]:
    """Return for each softmax its losses (R,) in nats, at least float32; 0 where the target is -100."""
    inputs: dict[int, Tensor] = {}
    places: dict[int, int] = {}

    def place_of(tensor: Tensor) -> int:
        inputs[id(tensor)] = tensor
        return places.setdefault(id(tensor), len(places))

    placed = []
    for softmax in softmaxes:
        hidden = place_of(softmax.hidden_RD)
        columns = [
            (place_of(part.table_VD), place_of(part.bias_V), slice(part.start, part.stop)) for part in softmax.columns
        ]
        placed.append(_Placed(hidden, columns, softmax.target_R))
    losses: tuple[Tensor, ...] = _SoftmaxLosses.apply(placed, *inputs.values())  # type: ignore[no-untyped-call]
    return losses


class _Placed(NamedTuple):
    """A softmax whose tensors are named by their places among a function's inputs: tables and biases may be shared."""

    hidden: int
    columns: list[tuple[int, int, slice]]
    target_R: Tensor

    @property
    def right_columns(self) -> Tensor:  # (R, 1); 0 where none counts
        return torch.where(self.target_R == NOT_COUNTED, 0, self.target_R)[:, None]

    def parts(self) -> Iterator[slice]:  # rows that have not too many logits
        rows = len(self.target_R)
        rows_at_once = max(1, LOGITS_AT_ONCE // sum(columns.stop - columns.start for _, _, columns in self.columns))
        for start in range(0, max(rows, 1), rows_at_once):
            yield slice(start, min(start + rows_at_once, rows))

    def logits(self, inputs: Sequence[Tensor], part: slice, dtype: torch.dtype) -> Tensor:
        # (r, C) of some rows, of products in `dtype`, at least float32
        hidden_rD = inputs[self.hidden][part].to(dtype)
        pieces = list(self._pieces(inputs, dtype))
        logits_rC = hidden_rD.new_empty(len(hidden_rD), pieces[-1].place.stop, dtype=_precise(dtype))
        for table, bias, rows, place in pieces:
            table_cD, bias_c = inputs[table][rows].to(dtype), inputs[bias][rows].to(dtype)
            _write_linear(logits_rC[:, place], hidden_rD, table_cD, bias_c)
        return logits_rC

    def write_gradients(
        self, grad_rC: Tensor, inputs: Sequence[Tensor], gradients: Sequence[Tensor], part: slice, dtype: torch.dtype
    ) -> None:
        # what some rows' logits pass on; to tables and biases the first part writes, and others add
        hidden_rD, to_hidden_rD = inputs[self.hidden][part].to(dtype), gradients[self.hidden][part]
        sum_rD = to_hidden_rD.to(_precise(dtype))
        for table, bias, rows, place in self._pieces(inputs, dtype):
            grad_rc, table_cD = grad_rC[:, place].to(dtype), inputs[table][rows].to(dtype)
            _write_product(sum_rD, grad_rc, table_cD, adds=place.start > 0)
            _write_product(gradients[table][rows], grad_rc.t(), hidden_rD, adds=part.start > 0)
            bias_c = grad_rc.sum(dim=0)
            gradients[bias][rows] = gradients[bias][rows] + bias_c if part.start > 0 else bias_c
        if sum_rD is not to_hidden_rD:
            to_hidden_rD.copy_(sum_rD)

    def _pieces(self, inputs: Sequence[Tensor], dtype: torch.dtype) -> Iterator[_Piece]:
        # cut where they are rounded to another type on a CPU, whose cache is to hold the copies
        stop = 0
        for table, bias, columns in self.columns:
            is_cut = inputs[table].dtype != dtype and inputs[table].device.type == "cpu"
            at_once = COLUMNS_AT_ONCE if is_cut else columns.stop - columns.start
            for first in range(columns.start, columns.stop, at_once):
                rows = slice(first, min(first + at_once, columns.stop))
                start, stop = stop, stop + rows.stop - rows.start
                yield _Piece(table, bias, rows, slice(start, stop))


class _Piece(NamedTuple):
    table: int  # places among the inputs
    bias: int
    rows: slice  # of the table
    place: slice  # among a softmax's columns


class _SoftmaxLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, softmaxes: list[_Placed], *inputs: Tensor) -> tuple[Tensor, ...]:
        dtype = _product_dtype(inputs[0])
        losses, normalisers, kept = [], [], []
        with _no_autocast(inputs[0]):
            for softmax in softmaxes:
                right_R1, normaliser, right = softmax.right_columns, [], []
                parts = list(softmax.parts())
                for part in parts:
                    logits_rC = softmax.logits(inputs, part, dtype)
                    normaliser.append(logits_rC.logsumexp(dim=1))
                    right.append(logits_rC.gather(1, right_R1[part])[:, 0])
                kept.append(logits_rC if len(parts) == 1 else None)
                normalisers.append(torch.cat(normaliser))
                loss_R = normalisers[-1] - torch.cat(right)
                losses.append(loss_R.masked_fill_(softmax.target_R == NOT_COUNTED, 0))
        ctx.softmaxes, ctx.dtype, ctx.kept = softmaxes, dtype, kept
        ctx.save_for_backward(*inputs, *normalisers)
        return tuple(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        softmaxes: list[_Placed] = ctx.softmaxes
        saved, count = ctx.saved_tensors, len(softmaxes)
        inputs, normalisers = saved[:-count], saved[-count:]
        gradients = [torch.empty_like(tensor) for tensor in inputs]
        kept, ctx.kept = ctx.kept, [None] * count  # written over: whoever asks for gradients twice has them made again
        with _no_autocast(inputs[0]):
            for number, (softmax, grad_R, normaliser_R) in enumerate(zip(softmaxes, grads, normalisers, strict=True)):
                counted_R1 = torch.where(softmax.target_R == NOT_COUNTED, 0, grad_R)[:, None]
                right_R1 = softmax.right_columns
                for part in softmax.parts():
                    logits_rC, kept[number] = kept[number], None
                    if logits_rC is None:
                        logits_rC = softmax.logits(inputs, part, ctx.dtype)
                    grad_rC = logits_rC.sub_(normaliser_R[part, None]).exp_()
                    right_r1 = right_R1[part]
                    grad_rC.scatter_add_(1, right_r1, -torch.ones_like(right_r1, dtype=grad_rC.dtype))
                    softmax.write_gradients(grad_rC.mul_(counted_R1[part]), inputs, gradients, part, ctx.dtype)
        return (None, *gradients)


def _product_dtype(tensor: Tensor) -> torch.dtype:
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def _no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _write_linear(target_rc: Tensor, hidden_rD: Tensor, table_cD: Tensor, bias_c: Tensor) -> None:
    if use_onednn(hidden_rD, table_cD):
        write_wide_linear(target_rc, hidden_rD, table_cD, bias_c)
    elif target_rc.is_contiguous() and target_rc.dtype == hidden_rD.dtype:
        torch.addmm(bias_c, hidden_rD, table_cD.t(), out=target_rc)
    else:
        target_rc.copy_(torch.addmm(bias_c, hidden_rD, table_cD.t()))


def _write_product(target: Tensor, left: Tensor, right: Tensor, *, adds: bool) -> None:
    if adds:
        target += left @ right
    elif target.dtype == left.dtype and len(left) > len(right) and use_onednn(left, right.t()):
        write_tall_product(target, left, right)
    elif target.dtype == left.dtype:
        torch.mm(left, right, out=target)
    else:
        target.copy_(left @ right)


class SharedTable(NamedTuple):
    """A table that looks tokens up and is a matrix of the softmax too: left alone, each use makes a whole gradient."""

    for_lookup: Tensor
    for_softmax: Tensor


def shared_table(table: Tensor) -> SharedTable:
    """Return a table for both uses; a lookup's sparse gradient is added to the softmax's in place."""
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
