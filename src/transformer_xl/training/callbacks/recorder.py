"""One callback that feeds `metrics.jsonl` and all loggers, on one axis, without a device synchronisation a step.

Losses and gradient norms stay on the device and are fetched together every `log_every_n_steps`, before each validation
and before each checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from transformer_xl.data.batch import Batch
from transformer_xl.errors import UserError, naming_file
from transformer_xl.scores import Unit
from transformer_xl.training import names
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.throughput import Stopwatch, measured_peak_flops


class _Step(NamedTuple):
    step: int
    counted: int
    nll_sum: Tensor
    gradient_norm: Tensor | None
    lr: float


class Latest(NamedTuple):
    """What the screen shows of the newest fetched step."""

    step: int
    loss: float | None
    tokens_per_second: float


class Recorder(Callback):
    """Writes every step's loss, and the other figures at intervals."""

    def __init__(
        self,
        *,
        folder: Path,
        every_n_steps: int,
        tokens_after: Callable[[int], int],
        flops_a_token: float,
        peak_flops: float | None,
        clip: float | None,
        units: Mapping[str, Unit],
    ) -> None:
        """Take what the figures need.

        Args:
            folder: the run folder.
            every_n_steps: optimizer steps between fetches.
            tokens_after: tokens read after an optimizer step, over all lanes.
            flops_a_token: useful operations of training on one token.
            peak_flops: operations a second of all devices together; None: measured when training starts.
            clip: largest gradient norm; None: no clipping.
            units: of each split: train, valid, test.
        """
        self.latest: Latest | None = None
        self._path = folder / "metrics.jsonl"
        self._every = every_n_steps
        self._tokens_after = tokens_after
        self._flops_a_token = flops_a_token
        self._peak_flops = peak_flops
        self._clip = clip
        self._units = units
        self._steps: list[_Step] = []
        self._nll_sum: Tensor | None = None
        self._watch = Stopwatch()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Cut away what was logged after the checkpoint that this run goes on from."""
        if trainer.is_global_zero:
            cut_after(self._path, trainer.global_step)
        if self._peak_flops is None:
            dtype = _matrix_dtype(str(trainer.precision))
            self._peak_flops = measured_peak_flops(pl_module.device, dtype) * trainer.world_size

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Batch, batch_idx: int) -> None:
        """Start the clock."""
        self._watch.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep the step's loss and norm on the device; fetch at intervals."""
        nll_sum = outputs["nll_sum"].double()
        self._nll_sum = nll_sum if self._nll_sum is None else self._nll_sum + nll_sum
        if batch.micro + 1 < trainer.accumulate_grad_batches:
            return
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        self._steps.append(_Step(batch.step, batch.counted, self._nll_sum, pl_module.gradient_norm, lr))
        self._nll_sum = None
        if batch.step % self._every == 0:
            self.flush(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what came before, and stop the clock."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self.flush(trainer)
        self._watch.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the validation loss."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self.record(trainer, trainer.global_step, self._scores(pl_module, names.VALIDATION, self._units["valid"]))

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the test loss."""
        self.record(trainer, trainer.global_step, self._scores(pl_module, names.TEST, self._units["test"]))

    def _scores(self, module: LanguageModule, stage: str, unit: Unit) -> dict[str, float | None]:
        loss = module.scores[stage].loss
        return {f"{stage}/{name}": value for name, value in {names.LOSS: loss, **unit.figures(loss)}.items()}

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what is left."""
        self.flush(trainer)

    def flush(self, trainer: Trainer) -> None:
        """Fetch the kept steps from the device and write them.

        Raises:
            UserError: a loss or gradient norm is not a finite number.
        """
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        nll_sums = torch.stack([step.nll_sum for step in steps])
        if trainer.world_size > 1:
            torch.distributed.all_reduce(nll_sums)
        losses = [
            nll_sum / step.counted if step.counted else None
            for nll_sum, step in zip(nll_sums.tolist(), steps, strict=True)
        ]
        norms = self._fetch_norms(steps)
        # float16's gradient scaler meets infinities by design, and skips those updates itself
        self._refuse_not_finite(steps, losses, norms if trainer.precision != "16-mixed" else [None] * len(steps))
        tokens = self._tokens_after(steps[-1].step) - self._tokens_after(steps[0].step - 1)
        seconds = self._watch.lap()
        self.latest = Latest(steps[-1].step, losses[-1], tokens / seconds)
        for step, loss in zip(steps[:-1], losses[:-1], strict=True):
            self.record(trainer, step.step, {names.TRAIN_LOSS: loss})
        self.record(trainer, steps[-1].step, self._summary(trainer, steps, losses, norms, tokens, seconds))

    def _fetch_norms(self, steps: list[_Step]) -> list[float | None]:
        present = [step.gradient_norm for step in steps if step.gradient_norm is not None]
        fetched = iter(torch.stack(present).tolist() if present else [])
        return [next(fetched) if step.gradient_norm is not None else None for step in steps]

    def _refuse_not_finite(self, steps: list[_Step], losses: list[float | None], norms: list[float | None]) -> None:
        for step, loss, norm in zip(steps, losses, norms, strict=True):
            if not all(math.isfinite(value) for value in (loss, norm) if value is not None):
                raise NotFiniteError(step=step.step, loss=loss, gradient_norm=norm, folder=self._path.parent)

    def _summary(
        self,
        trainer: Trainer,
        steps: list[_Step],
        losses: list[float | None],
        norms: list[float | None],
        tokens: int,
        seconds: float,
    ) -> dict[str, float | None]:
        loss, unit = losses[-1], self._units["train"]
        values: dict[str, float | None] = {
            names.TRAIN_LOSS: loss,
            f"train/{unit.name}": None if loss is None else unit.of(loss),
            names.GRADIENT_NORM: norms[-1],
            names.LEARNING_RATE: steps[-1].lr,
            names.TOKENS_PER_SECOND: tokens / seconds,
            names.MFU: self._flops_a_token * tokens / seconds / (self._peak_flops or math.nan),
            names.PROCESS_MEMORY: _process_peak_bytes(),
        }
        if self._clip is not None:
            clipped = sum(1 for norm in norms if norm is not None and norm > self._clip)
            values[names.CLIPPED_SHARE] = clipped / len(steps)
        if trainer.strategy.root_device.type == "cuda":
            values[names.DEVICE_MEMORY] = float(torch.cuda.max_memory_allocated())
        return values

    def record(self, trainer: Trainer, step: int, values: dict[str, float | None]) -> None:
        """Write values of one step to `metrics.jsonl` and to every logger."""
        if not trainer.is_global_zero:
            return
        tokens = self._tokens_after(step)
        with naming_file(self._path), self._path.open("a", encoding="utf-8") as file:
            for name, value in values.items():
                finite = value if value is not None and math.isfinite(value) else None
                file.write(json.dumps({"step": step, "tokens": tokens, "name": name, "value": finite}) + "\n")
        numbers = {name: value for name, value in values.items() if value is not None}
        for logger in trainer.loggers:
            logger.log_metrics({**numbers, names.TOKEN_AXIS: tokens}, step=step)


class NotFiniteError(UserError):
    """The loss or the gradient stopped being a number; the run ends before a checkpoint of it is written."""

    def __init__(self, *, step: int, loss: float | None, gradient_norm: float | None, folder: Path) -> None:
        last = folder / "checkpoints" / "last.ckpt"
        good = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        super().__init__(
            f"the loss is {loss} and the gradient norm {gradient_norm} at step {step}: training stopped; {good}; "
            "a smaller optimizer.lr or more scheduler.warmup_steps usually helps"
        )


def cut_after(path: Path, step: int) -> None:
    """Drop every line of a `metrics.jsonl` that is later than `step`, or not a whole line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            is_kept = line.endswith("\n") and json.loads(line)["step"] <= step
        except (ValueError, KeyError, TypeError):
            is_kept = False
        if is_kept:
            kept.append(line)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    os.replace(temporary, path)


def _process_peak_bytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _matrix_dtype(precision: str) -> torch.dtype:
    if precision.startswith("bf16"):
        return torch.bfloat16
    if precision.startswith("16"):
        return torch.float16
    return torch.float64 if precision.startswith("64") else torch.float32
