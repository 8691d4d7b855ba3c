"""One callback that feeds `metrics.jsonl` and all loggers, on one axis, without a device synchronisation per step.

Losses and gradient norms stay on the device and are fetched together every `log_every_n_steps`, before each validation
and before each checkpoint. Which figures are written does not depend on when that is, so that a run that was stopped
and resumed has the lines of the run never stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, Trainer

from transformer_xl.data.stream import Batch
from transformer_xl.errors import UserError, naming_file
from transformer_xl.scores import LOSS
from transformer_xl.training import metrics
from transformer_xl.training.module import StepRecord
from transformer_xl.training.wandb import optional

_MATRICES = {"bf": torch.bfloat16, "16": torch.float16, "32": torch.float32, "64": torch.float64}
"""What matrices are multiplied in, by the beginning of a trainer's precision."""


class Latest(NamedTuple):
    """The newest step that was fetched; its loss is None where it counted nothing."""

    step: int
    loss: float | None
    tokens_per_second: float


class Recorder(Callback):
    """Writes every step's loss, and the other figures every `every_n_steps` steps and at the last one.

    Args:
        folder: the run folder.
        every_n_steps: optimizer steps between two that have figures; between fetches from the device, too.
        max_steps: the last step.
        flops_per_token: useful operations of training on one token.
        peak_flops: operations per second of all devices together; None: those of known GPUs.
        clip: largest gradient norm; None: no clipping.

    Attributes:
        latest: the newest step that was fetched; None: none yet.
    """

    def __init__(
        self,
        *,
        folder: Path,
        every_n_steps: int,
        max_steps: int,
        flops_per_token: float,
        peak_flops: float | None,
        clip: float | None,
    ) -> None:
        self.latest: Latest | None = None
        self._folder, self._every, self._max_steps = folder, every_n_steps, max_steps
        self._flops_per_token, self._peak_flops, self._clip = flops_per_token, peak_flops, clip
        self._steps: list[StepRecord] = []  # not fetched yet
        self._clipped = 0  # steps since the last that had figures whose gradient was clipped
        self._since: float | None = None  # when the first of these began

    @property
    def _path(self) -> Path:
        return self._folder / "metrics.jsonl"

    def cut(self, step: int, *, validated: bool) -> None:
        """Drop every line that is later than a step, torn, or of the final test; main process only.

        Args:
            step: of the checkpoint from which the run goes on.
            validated: whether it was written after the validation of its step, if there was one.
        """
        if not self._path.exists():
            return
        temporary = self._path.with_name(self._path.name + ".tmp")
        with self._path.open("rb") as old, temporary.open("wb") as new:
            new.writelines(line for line in old if _is_kept(line, step, validated=validated))
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, self._path)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Take over what the module would send to loggers; look the devices' peak up where none was given."""
        pl_module.logs = False
        device = trainer.strategy.root_device
        if self._peak_flops is None and device.type == "cuda":
            known = get_available_flops(device, _MATRICES[str(trainer.precision)[:2]])
            self._peak_flops = None if known is None else float(known * trainer.world_size)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Batch, batch_idx: int) -> None:
        if self._since is None:
            self._since = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep the step's loss and norm on the device; fetch at intervals."""
        if batch.micro + 1 < trainer.accumulate_grad_batches:
            return
        self._steps.append(pl_module.last_step)
        if batch.step % self._every == 0:
            self.flush(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self.flush(trainer)
        self._since = None

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            gain = {} if pl_module.memory_gain is None else {metrics.MEMORY_GAIN: pl_module.memory_gain}
            self._record_score(trainer, pl_module, metrics.VALIDATION, gain)

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._record_score(trainer, pl_module, metrics.TEST, {})

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.flush(trainer)

    def prepare_checkpoint(self, trainer: Trainer) -> None:
        """Have every step so far on disk, and refuse to save what is not finite; called on all processes.

        Raises:
            UserError: a loss, a gradient norm or a weight is an infinity or NaN.
        """
        self.flush(trainer)
        weights = list(trainer.lightning_module.parameters())
        are_finite = torch.stack([weight.isfinite().all() for weight in weights]).all().int()
        if trainer.world_size > 1:
            torch.distributed.all_reduce(are_finite, op=torch.distributed.ReduceOp.MIN)
        if not are_finite:
            raise self._not_finite(f"weights are not finite after step {trainer.global_step}, and are not saved")
        if trainer.is_global_zero:
            with naming_file(self._path), self._path.open("ab") as file:
                os.fsync(file.fileno())

    def flush(self, trainer: Trainer) -> None:
        """Fetch the kept steps from the device and write them.

        Raises:
            UserError: a loss or gradient norm is not a finite number; the steps before it are written.
        """
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        losses, norms = _fetch(trainer, steps)
        assert self._since is not None
        began, self._since = self._since, time.perf_counter()
        tokens_after = trainer.datamodule.tokens_after  # type: ignore[attr-defined]
        speed = (tokens_after(steps[-1].step) - tokens_after(steps[0].step - 1)) / (self._since - began)
        for step, loss, norm in zip(steps, losses, norms, strict=True):
            # under 16-mixed the scaler overflows by design now and then, and leaves out those updates itself
            judged = (loss, norm if trainer.precision != "16-mixed" else None)
            if not all(value is None or math.isfinite(value) for value in judged):
                raise self._not_finite(f"the loss is {loss} and the gradient norm {norm} at step {step.step}")
            self._record(
                trainer, step.step, {metrics.TRAIN_LOSS: loss, **self._figures(trainer, step, loss, norm, speed)}
            )
        self.latest = Latest(steps[-1].step, losses[-1], speed)

    def _figures(
        self, trainer: Trainer, step: StepRecord, loss: float | None, norm: float | None, speed: float
    ) -> dict[str, float | None]:
        """Count a step, and return its figures; none where it is not one of those that have some."""
        if norm is not None and self._clip is not None:
            self._clipped += self._clip < norm < math.inf
        since = (step.step - 1) // self._every * self._every
        if step.step % self._every and step.step != self._max_steps:
            return {}
        unit = trainer.datamodule.unit("train")  # type: ignore[attr-defined]
        values: dict[str, float | None] = {
            f"train/{unit.name}": None if loss is None else unit.of(loss),
            metrics.GRADIENT_NORM: norm,
            metrics.LEARNING_RATE: step.lr,
            metrics.TOKENS_PER_SECOND: speed,
        }
        if self._peak_flops is not None:
            values[metrics.MFU] = self._flops_per_token * speed / self._peak_flops
        if self._clip is not None:
            values[metrics.CLIPPED_SHARE] = self._clipped / (step.step - since)
        if trainer.strategy.root_device.type == "cuda":
            values[metrics.DEVICE_MEMORY] = float(torch.cuda.max_memory_allocated())
        if step.step % self._every == 0:  # at another last step they are counted on, should the run be lengthened
            self._clipped = 0
        return values

    def _record_score(self, trainer: Trainer, module: Any, stage: str, more: dict[str, float]) -> None:
        score, unit = module.scores[stage], trainer.datamodule.unit(metrics.SPLITS[stage])  # type: ignore[attr-defined]
        figures: dict[str, float | None] = unit.scored(score) if score.tokens else {LOSS: None}
        self._record(trainer, trainer.global_step, {f"{stage}/{name}": v for name, v in figures.items()} | more)

    def _record(self, trainer: Trainer, step: int, values: Mapping[str, float | None]) -> None:
        """Write values of one step to `metrics.jsonl` and to every logger; there what is no finite number is null."""
        if not trainer.is_global_zero:
            return
        tokens = trainer.datamodule.tokens_after(step)  # type: ignore[attr-defined]
        with naming_file(self._path), self._path.open("a", encoding="utf-8") as file:
            for name, value in values.items():
                finite = value if value is not None and math.isfinite(value) else None
                file.write(json.dumps({"step": step, "tokens": tokens, "name": name, "value": finite}) + "\n")
        numbers = {name: value for name, value in values.items() if value is not None}
        for logger in trainer.loggers:
            with optional("the logger"):
                logger.log_metrics({**numbers, metrics.TOKEN_AXIS: tokens}, step=step)

    def _not_finite(self, found: str) -> UserError:
        last = self._folder / "checkpoints" / "last.ckpt"
        good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        return UserError(f"{found}: training stopped; {good}; a smaller optimizer.lr in a new run usually helps")

    def state_dict(self) -> dict[str, Any]:
        """Return what the coming figures need of the steps so far."""
        return {"clipped": self._clipped}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._clipped = state_dict["clipped"]


def _fetch(trainer: Trainer, steps: list[StepRecord]) -> tuple[list[float | None], list[float | None]]:
    """Return losses and gradient norms, None where there is none; the same on all processes."""
    nll_sums = torch.stack([step.nll_sum for step in steps])
    if trainer.world_size > 1:
        torch.distributed.all_reduce(nll_sums)
    losses = [
        nll_sum / step.counted if step.counted else None for nll_sum, step in zip(nll_sums.tolist(), steps, strict=True)
    ]
    present = [step.gradient_norm for step in steps if step.gradient_norm is not None]
    fetched = iter(torch.stack(present).tolist() if present else [])
    return losses, [next(fetched) if step.gradient_norm is not None else None for step in steps]


def _is_kept(line: bytes, step: int, *, validated: bool) -> bool:
    try:
        entry = json.loads(line)
        is_late = entry["step"] == step and entry["name"].startswith(f"{metrics.VALIDATION}/") and not validated
        is_test = entry["name"].startswith(f"{metrics.TEST}/")  # no checkpoint is later than the final test
        return line.endswith(b"\n") and entry["step"] <= step and not is_test and not is_late
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # torn or damaged
