"""Where a trained model runs, and in which precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from transformer_xl.errors import UserError
from transformer_xl.model.base import LanguageModel

_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_DEVICES = ("cpu", "cuda", "mps")
_TRUE = {"32-true": torch.float32, "bf16-true": torch.bfloat16, "64-true": torch.float64}


class Placed(NamedTuple):
    """A model in evaluation mode on its device.

    Attributes:
        model: in the type that the precision asks for.
        autocast: gives the context in which it is called.
        precision: as Lightning names it.
    """

    model: LanguageModel
    autocast: Callable[[], AbstractContextManager[object]]
    precision: str


def place(model: LanguageModel, *, device: str, precision: str) -> Placed:
    """Move a model where it shall run.

    Args:
        model: as it was loaded.
        device: of torch; `auto`: a GPU where there is one.
        precision: as Lightning names it.

    Raises:
        UserError: no such device, or a precision that it cannot do.
    """
    where = _device(device)
    if precision == "16-mixed" and where.type == "cpu":
        raise UserError("precision is 16-mixed, which needs a GPU: use bf16-mixed or 32-true")
    if precision in _MIXED:
        autocast = partial(torch.autocast, where.type, dtype=_MIXED[precision])
        return Placed(model.to(where).eval(), autocast, precision)
    return Placed(model.to(where, _TRUE[precision]).eval(), nullcontext, precision)


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    device = _named(name)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"device is {name!r}, which this machine has not ({reason}): use cpu or auto") from error
    return device


def _named(name: str) -> torch.device:
    """Give the device of a name; torch has many more, on which nothing here could be read."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise _no_device(name) from error
    if device.type not in _DEVICES or (device.type == "cpu" and device.index):
        raise _no_device(name)
    return device


def _no_device(name: str) -> UserError:
    return UserError(f"device is {name!r}, and must be auto, cpu, mps, cuda, or one GPU by its number, as cuda:1")
