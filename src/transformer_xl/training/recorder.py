"""One callback that feeds `metrics.jsonl` and all loggers, on one axis, without a device synchronisation per step.

Losses and gradient norms stay on the device and are fetched together every `log_every_n_steps`, before each validation
and before each checkpoint. Which figures are written does not depend on when that is, so that a run that was stopped
and resumed has the lines of the run never stopped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, Trainer

from transformer_xl.data.stream import Batch
from transformer_xl.errors import UserError, naming_file
from transformer_xl.scores import Unit
from transformer_xl.training import metrics
from transformer_xl.training.module import LanguageModule, StepRecord
from transformer_xl.training.wandb import optional

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


class Stopwatch:
    """Counts the seconds between `start` and now, without those between `pause` and `resume`."""

    def __init__(self) -> None:
        self._running = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Begin, or go on after `pause`; does nothing while running."""
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop counting until the next `start`."""
        if self._since is not None:
            self._running += time.perf_counter() - self._since
            self._since = None

    def lap(self) -> float:
        """Give the seconds counted since the last lap, and begin another."""
        now = time.perf_counter()
        seconds = self._running
        if self._since is not None:
            seconds += now - self._since
            self._since = now
        self._running = 0.0
        return seconds


@dataclass
class _Window:
    """What figures over several steps need: of the steps after `since`, across fetches and resumes."""

    since: int
    clipped: int = 0
    seconds: float = 0.0


class StepFigures:
    """Works out the figures of every n-th step and of the last one, some over the steps since the n-th before."""

    def __init__(
        self,
        *,
        every_n_steps: int,
        max_steps: int,
        tokens_after: Callable[[int], int],
        flops_a_token: float,
        peak_flops: float | None,
        clip: float | None,
        unit: Unit,
    ) -> None:
        """Take what the figures need.

        Args:
            every_n_steps: between two steps that have figures.
            max_steps: the last step, which has them too.
            tokens_after: tokens read after an optimizer step, over all lanes.
            flops_a_token: useful operations of training on one token.
            peak_flops: operations per second of all devices together; None: those of known GPUs.
            clip: largest gradient norm; None: no clipping.
            unit: of training's loss.
        """
        self._every = every_n_steps
        self._max_steps = max_steps
        self._tokens_after = tokens_after
        self._flops_a_token = flops_a_token
        self._peak_flops = peak_flops
        self._clip = clip
        self._unit = unit
        self._window = _Window(since=0)

    def start(self, trainer: Trainer) -> None:
        """Look the devices' peak up where none was given; without one there is no MFU."""
        device = trainer.strategy.root_device
        if self._peak_flops is None and device.type == "cuda":
            known = get_available_flops(device, _matrix_dtype(str(trainer.precision)))
            self._peak_flops = None if known is None else float(known * trainer.world_size)

    def add_seconds(self, seconds: float) -> None:
        """Count the time that steps took."""
        self._window.seconds += seconds

    def of_step(
        self, step: int, *, loss: float | None, gradient_norm: float | None, lr: float, device: torch.device
    ) -> dict[str, float | None]:
        """Count a step, and give its figures; none where it is not one of those that have some."""
        if gradient_norm is not None and self._clip is not None:
            self._window.clipped += self._clip < gradient_norm < math.inf
        if step % self._every and step != self._max_steps:
            return {}
        window = self._window
        if step % self._every == 0:  # at another last step the window goes on, should the run be lengthened
            self._window = _Window(since=step)
        tokens_per_second = (self._tokens_after(step) - self._tokens_after(window.since)) / window.seconds
        values: dict[str, float | None] = {
            f"train/{self._unit.name}": None if loss is None else self._unit.of(loss),
            metrics.GRADIENT_NORM: gradient_norm,
            metrics.LEARNING_RATE: lr,
            metrics.TOKENS_PER_SECOND: tokens_per_second,
            metrics.PROCESS_MEMORY: _process_peak_bytes(),
        }
        if self._peak_flops is not None:
            values[metrics.MFU] = self._flops_a_token * tokens_per_second / self._peak_flops
        if self._clip is not None:
            values[metrics.CLIPPED_SHARE] = window.clipped / (step - window.since)
        if device.type == "cuda":
            values[metrics.DEVICE_MEMORY] = float(torch.cuda.max_memory_allocated())
        return values

    def state_dict(self) -> dict[str, Any]:
        """Give the window that is open."""
        return dataclasses.asdict(self._window)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._window = _Window(**state)


def _process_peak_bytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _matrix_dtype(precision: str) -> torch.dtype:
    if precision.startswith("bf16"):
        return torch.bfloat16
    if precision.startswith("16"):
        return torch.float16
    return torch.float64 if precision.startswith("64") else torch.float32


_LONGEST_LINE = 65_536  # far above any of ours: what is longer is damage, and need not be held at once


class MetricsFile:
    """The file of one run; only its main process may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, *, step: int, tokens: int, values: Mapping[str, float | None]) -> None:
        """Write values of one step; what is not a finite number is null."""
        with naming_file(self._path), self._path.open("a", encoding="utf-8") as file:
            for name, value in values.items():
                finite = value if value is not None and math.isfinite(value) else None
                file.write(json.dumps({"step": step, "tokens": tokens, "name": name, "value": finite}) + "\n")

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        with naming_file(self._path), self._path.open("ab") as file:
            os.fsync(file.fileno())

    def cut_after(self, step: int, *, validated: bool) -> None:
        """Drop every line that is later than the end of `step`, or its validation unless `validated`, or torn.

        The final test's lines go too, whatever their step: no checkpoint is later than they are.
        """
        if not self._path.exists():
            return
        temporary = self._path.with_name(self._path.name + ".tmp")
        with self._path.open("rb") as old, temporary.open("wb") as new:
            while line := old.readline(_LONGEST_LINE):
                if _belongs_to(line, step, validated=validated):
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, self._path)


def _belongs_to(line: bytes, step: int, *, validated: bool) -> bool:
    try:
        entry = json.loads(line.decode("utf-8"))
        is_test = entry["name"].startswith(f"{metrics.TEST}/")
        is_late = entry["step"] == step and entry["name"].startswith(f"{metrics.VALIDATION}/") and not validated
        is_whole = line.endswith(b"\n") and {"tokens", "value"} <= entry.keys()
        return is_whole and entry["step"] <= step and not is_test and not is_late
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False  # torn or damaged


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
        fetch_every_n_steps: int,
        tokens_after: Callable[[int], int],
        units: Mapping[str, Unit],
        figures: StepFigures,
    ) -> None:
        """Take what hears of each step.

        Args:
            folder: the run folder.
            fetch_every_n_steps: optimizer steps between fetches from the device.
            tokens_after: tokens read after an optimizer step, over all lanes.
            units: of each split: train, valid, test.
            figures: what is written beside losses.
        """
        self.latest: Latest | None = None
        self._folder = folder
        self._file = MetricsFile(folder / "metrics.jsonl")
        self._every = fetch_every_n_steps
        self._tokens_after = tokens_after
        self._units = units
        self._figures = figures
        self._steps: list[StepRecord] = []
        self._watch = Stopwatch()

    def cut(self, step: int, *, validated: bool) -> None:
        """Drop what was logged after the checkpoint from which the run goes on; main process only.

        Args:
            step: of the checkpoint.
            validated: whether it was written after the validation of its step, if there was one.
        """
        self._file.cut_after(step, validated=validated)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Take over what the module would send to loggers."""
        pl_module.logs = False

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Prepare the figures."""
        self._figures.start(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Batch, batch_idx: int) -> None:
        """Start the clock."""
        self._watch.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep the step's loss and norm on the device; fetch at intervals."""
        if batch.micro + 1 < trainer.accumulate_grad_batches:
            return
        self._steps.append(pl_module.last_step)
        if batch.step % self._every == 0:
            self.flush(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what came before, and stop the clock."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self.flush(trainer)
        self._watch.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the validation loss, and what memory gave."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            values = self._scores(pl_module, metrics.VALIDATION, self._units["valid"])
            if pl_module.memory_gain is not None:
                values[metrics.MEMORY_GAIN] = pl_module.memory_gain
            self.record(trainer, trainer.global_step, values)

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the test loss."""
        self.record(trainer, trainer.global_step, self._scores(pl_module, metrics.TEST, self._units["test"]))

    def _scores(self, module: LanguageModule, stage: str, unit: Unit) -> dict[str, float | None]:
        score = module.scores[stage]
        loss = score.loss if score.tokens else None
        if loss is None:
            return {f"{stage}/{metrics.LOSS}": None}
        return {f"{stage}/{name}": value for name, value in {metrics.LOSS: loss, **unit.figures(loss)}.items()}

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what is left."""
        self.flush(trainer)

    def prepare_checkpoint(self, trainer: Trainer) -> None:
        """Have every step so far on disk, and refuse to save what is not finite; called on all processes.

        Raises:
            NotFiniteError: a loss, a gradient norm, or a weight.
        """
        self.flush(trainer)
        refuse_weights_not_finite(trainer, step=trainer.global_step, folder=self._folder)
        if trainer.is_global_zero:
            self._file.sync()

    def flush(self, trainer: Trainer) -> None:
        """Fetch the kept steps from the device and write them.

        Raises:
            NotFiniteError: a loss or gradient norm is not a finite number; the steps before it are written.
        """
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        losses, norms = self._fetch(trainer, steps)
        seconds = self._watch.lap()
        self._figures.add_seconds(seconds)
        for step, loss, norm in zip(steps, losses, norms, strict=True):
            kept_loss = self._write_step(trainer, step, loss, norm)
        tokens = self._tokens_after(steps[-1].step) - self._tokens_after(steps[0].step - 1)
        self.latest = Latest(steps[-1].step, kept_loss, tokens / seconds)

    def _fetch(self, trainer: Trainer, steps: list[StepRecord]) -> tuple[list[float | None], list[float | None]]:
        """Give losses and gradient norms, None where there is none; the same on all processes."""
        nll_sums = torch.stack([step.nll_sum for step in steps])
        if trainer.world_size > 1:
            torch.distributed.all_reduce(nll_sums)
        losses = [
            nll_sum / step.counted if step.counted else None
            for nll_sum, step in zip(nll_sums.tolist(), steps, strict=True)
        ]
        present = [step.gradient_norm for step in steps if step.gradient_norm is not None]
        fetched = iter(torch.stack(present).tolist() if present else [])
        return losses, [next(fetched) if step.gradient_norm is not None else None for step in steps]

    def _write_step(self, trainer: Trainer, step: StepRecord, loss: float | None, norm: float | None) -> float | None:
        """Judge a step and write its figures; return its loss, None where it counted nothing."""
        judged_norm = norm if trainer.precision != SCALED_PRECISION else None
        refuse_step_not_finite(step.step, loss=loss, gradient_norm=judged_norm, folder=self._folder)
        device = trainer.strategy.root_device
        figures = self._figures.of_step(step.step, loss=loss, gradient_norm=norm, lr=step.lr, device=device)
        self.record(trainer, step.step, {metrics.TRAIN_LOSS: loss, **figures})
        return loss

    def record(self, trainer: Trainer, step: int, values: Mapping[str, float | None]) -> None:
        """Write values of one step to `metrics.jsonl` and to every logger."""
        if not trainer.is_global_zero:
            return
        tokens = self._tokens_after(step)
        self._file.append(step=step, tokens=tokens, values=values)
        numbers = {name: value for name, value in values.items() if value is not None}
        for logger in trainer.loggers:
            with optional("the logger"):
                logger.log_metrics({**numbers, metrics.TOKEN_AXIS: tokens}, step=step)

    def state_dict(self) -> dict[str, Any]:
        """Give what the coming figures need of the steps so far."""
        return {"figures": self._figures.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._figures.load_state_dict(state_dict["figures"])
