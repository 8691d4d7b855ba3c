"""Numbers that are not finite: how a step that meets one is left out, and when the run ends instead."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from transformer_xl.errors import UserError

SCALED_PRECISION = "16-mixed"
"""Its gradient scaler overflows by design now and then, and leaves out those updates itself."""


class NotFiniteError(UserError):
    """A loss, gradient or weight stopped being a number; the run ends before a checkpoint of it is written."""

    def __init__(self, found: str, *, folder: Path, may_skip: bool) -> None:
        """Say where the last good state is.

        Args:
            found: what is not finite, and when.
            folder: the run folder.
            may_skip: whether `callbacks.nonfinite.action=skip` would help.
        """
        last = folder / "checkpoints" / "last.ckpt"
        advice = "a smaller optimizer.lr or more scheduler.warmup_steps in a new run usually helps"
        if not last.exists():
            good = "there is no checkpoint yet"
            advice += ", and callbacks.nonfinite.action=skip leaves such steps out" if may_skip else ""
        else:
            good = f"the last good checkpoint is {last}"
            command = f"python train.py resume={shlex.quote(str(folder))} callbacks.nonfinite.action=skip"
            advice += f", and such steps are left out by: {command}" if may_skip else ""
        super().__init__(f"{found}: training stopped; {good}; {advice}")


class NonFiniteSteps:
    """Judges each step by its loss and gradient norm, once they have been fetched.

    Attributes:
        skipped: steps so far whose update was left out.
        in_a_row: how many of them were the newest steps.
    """

    def __init__(self, *, skips: bool, max_in_a_row: int, folder: Path) -> None:
        """Take what happens then.

        Args:
            skips: whether such steps are left out (`leave_out_update`); else the first one ends the run.
            max_in_a_row: so many of them end it all the same.
            folder: the run folder.
        """
        self.skips = skips
        self.skipped = 0
        self.in_a_row = 0
        self._max_in_a_row = max_in_a_row
        self._folder = folder

    def is_left_out(self, step: int, *, loss: float | None, gradient_norm: float | None) -> bool:
        """Say whether a step's update was left out; called for every step, in order.

        Args:
            step: the optimizer step.
            loss: nats; None: it counted nothing, and neither ends nor lengthens a row of skipped steps.
            gradient_norm: before clipping; None: not to be looked at.

        Raises:
            NotFiniteError: the run shall end here.
        """
        if loss is None:
            return False
        if math.isfinite(loss) and (gradient_norm is None or math.isfinite(gradient_norm)):
            self.in_a_row = 0
            return False
        found = f"the loss is {loss} and the gradient norm {gradient_norm} at step {step}"
        if not self.skips:
            raise NotFiniteError(found, folder=self._folder, may_skip=True)
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= self._max_in_a_row:
            raise NotFiniteError(
                f"{found}, and it is number {self.in_a_row} in a row to be left out "
                f"(callbacks.nonfinite.max_in_a_row is {self._max_in_a_row})",
                folder=self._folder,
                may_skip=False,
            )
        return True

    def state_dict(self) -> dict[str, Any]:
        """Give the counts."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]


def prepare_to_leave_out(optimizer: torch.optim.Optimizer) -> None:
    """Give fused SGD its momentum from the start: it would keep uninitialised numbers of a first step left out."""
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else []:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def leave_out_update(optimizer: torch.optim.Optimizer, gradient_norm: Tensor) -> None:
    """Let the optimizer's coming step change nothing, neither weights nor its own state, if the norm is not finite.

    Fused optimizers decide on the device, so that nothing waits for it; for others the norm is fetched.
    """
    if optimizer.defaults.get("fused"):
        # how a gradient scaler tells them; 1 means that the update is left out
        optimizer.found_inf = gradient_norm.isfinite().logical_not().float()  # type: ignore[attr-defined]
    elif not gradient_norm.isfinite():
        optimizer.zero_grad(set_to_none=True)


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
        found = f"weights are not finite after step {step}, and are not saved"
        raise NotFiniteError(found, folder=folder, may_skip=False)
