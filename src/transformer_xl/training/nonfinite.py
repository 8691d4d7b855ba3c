"""Numbers that are not finite end a run before a checkpoint of them is written."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from lightning.pytorch import Trainer

from transformer_xl.errors import UserError

SCALED_PRECISION = "16-mixed"
"""Its gradient scaler overflows by design now and then, and leaves out those updates itself."""


class NotFiniteError(UserError):
    """A loss, gradient or weight stopped being a number; the run ends before a checkpoint of it is written."""

    def __init__(self, found: str, *, folder: Path) -> None:
        last = folder / "checkpoints" / "last.ckpt"
        good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        super().__init__(
            f"{found}: training stopped; {good}; a smaller optimizer.lr or more scheduler.warmup_steps in a new run "
            "usually helps"
        )


def refuse_step_not_finite(step: int, *, loss: float | None, gradient_norm: float | None, folder: Path) -> None:
    """Refuse a step whose loss or gradient is not a number.

    Args:
        step: the optimizer step.
        loss: nats; None: it counted nothing.
        gradient_norm: before clipping; None: not to be looked at.
        folder: the run folder.

    Raises:
        NotFiniteError: one of them is an infinity or NaN.
    """
    if not all(value is None or math.isfinite(value) for value in (loss, gradient_norm)):
        raise NotFiniteError(f"the loss is {loss} and the gradient norm {gradient_norm} at step {step}", folder=folder)


def refuse_weights_not_finite(trainer: Trainer, *, step: int, folder: Path) -> None:
    """Look at every weight; all processes come to the same verdict.

    Raises:
        NotFiniteError: one of them is not a finite number, as after an update that overflowed.
    """
    weights = list(trainer.lightning_module.parameters())
    are_finite = torch.stack([weight.isfinite().all() for weight in weights]).all().int()
    if trainer.world_size > 1:
        torch.distributed.all_reduce(are_finite, op=torch.distributed.ReduceOp.MIN)
    if not are_finite:
        raise NotFiniteError(f"weights are not finite after step {step}, and are not saved", folder=folder)
