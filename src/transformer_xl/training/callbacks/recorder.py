"""One callback that feeds `metrics.jsonl` and all loggers, on one axis, without a device synchronisation a step.

Losses and gradient norms stay on the device and are fetched together every `log_every_n_steps`, before each validation
and before each checkpoint. Which figures are written does not depend on when that is, so that a run that was stopped
and resumed has the lines of the run never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, Trainer

from transformer_xl.data.stream import Batch
from transformer_xl.scores import Unit
from transformer_xl.training import names
from transformer_xl.training.figures import StepFigures
from transformer_xl.training.loggers import optional
from transformer_xl.training.metrics_file import MetricsFile
from transformer_xl.training.module import LanguageModule, StepRecord
from transformer_xl.training.nonfinite import SCALED_PRECISION, refuse_step_not_finite, refuse_weights_not_finite
from transformer_xl.training.throughput import Stopwatch


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
            values = self._scores(pl_module, names.VALIDATION, self._units["valid"])
            if pl_module.memory_gain is not None:
                values[names.MEMORY_GAIN] = pl_module.memory_gain
            self.record(trainer, trainer.global_step, values)

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the test loss."""
        self.record(trainer, trainer.global_step, self._scores(pl_module, names.TEST, self._units["test"]))

    def _scores(self, module: LanguageModule, stage: str, unit: Unit) -> dict[str, float | None]:
        score = module.scores[stage]
        loss = score.loss if score.tokens else None
        if loss is None:
            return {f"{stage}/{names.LOSS}": None}
        return {f"{stage}/{name}": value for name, value in {names.LOSS: loss, **unit.figures(loss)}.items()}

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
        self.record(trainer, step.step, {names.TRAIN_LOSS: loss, **figures})
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
                logger.log_metrics({**numbers, names.TOKEN_AXIS: tokens}, step=step)

    def state_dict(self) -> dict[str, Any]:
        """Give what the coming figures need of the steps so far."""
        return {"figures": self._figures.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._figures.load_state_dict(state_dict["figures"])
