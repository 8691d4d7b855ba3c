"""What the screen shows while training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transformer_xl.scores import Unit
from transformer_xl.training import names
from transformer_xl.training.callbacks.recorder import Recorder

_SECONDS_BETWEEN_LINES = 10.0


class ProgressDisplay(Callback):
    """Follows the recorder: shows only what has been fetched from the device anyway."""

    def __init__(
        self, *, recorder: Recorder, max_steps: int, units: Mapping[str, Unit], beside: str, console: Console
    ) -> None:
        """Take what is shown.

        Args:
            recorder: whose newest step is shown.
            max_steps: the run's length in optimizer steps.
            units: of each split: train, valid, test.
            beside: what must stand beside each score of this corpus.
            console: the screen; what else is printed meanwhile must go through it too, or the bar is torn.
        """
        self._recorder = recorder
        self._max_steps = max_steps
        self._units = units
        self._beside = beside
        self._console = console
        self._bar: Progress | None = None
        self._task: Any = None
        self._shown_step = 0
        self._last_line = -math.inf
        self._start = (0, 0.0)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Open the bar."""
        if not trainer.is_global_zero:
            return
        self._start = (trainer.global_step, time.monotonic())
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._max_steps, completed=trainer.global_step, figures="")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Show the newest fetched step."""
        latest = self._recorder.latest
        if latest is None or latest.step == self._shown_step or not trainer.is_global_zero:
            return
        self._shown_step = latest.step
        figures = f"{_figures(latest.loss, unit=self._units['train'])}  {latest.tokens_per_second:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=latest.step, figures=figures)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES or latest.step == self._max_steps:
            self._last_line = time.monotonic()
            self._console.print(
                f"step {latest.step}/{self._max_steps}  {figures}  {self._left(latest.step)} left", highlight=False
            )

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Print the validation loss on a line of its own."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        if self._recorder.latest is not None:
            self._shown_step = self._recorder.latest.step  # older than the line below
        score = pl_module.scores[names.VALIDATION]
        figures = _figures(score.loss, unit=self._units["valid"]) + self._beside if score.tokens else "no predictions"
        self._console.print(
            f"step {trainer.global_step}/{self._max_steps}  validation {figures}", highlight=False, soft_wrap=True
        )

    def _left(self, step: int) -> str:
        first, start = self._start
        seconds = (time.monotonic() - start) / max(1, step - first) * (self._max_steps - step)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Close the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _figures(loss: float | None, *, unit: Unit) -> str:
    if loss is None:
        return "loss none (nothing counted, or left out)"
    return f"loss {loss:.3f}  {unit.name} {unit.of(loss):.3f}"
