"""What runs beside training: the display of progress, samples, and an average of the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch import callbacks as lightnings
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from transformer_xl.config import CallbacksConfig
from transformer_xl.data.stream import Batch
from transformer_xl.errors import UserError, first_line
from transformer_xl.registry import lookup, names
from transformer_xl.scores import Unit
from transformer_xl.training import metrics
from transformer_xl.training.recorder import Recorder
from transformer_xl.training.wandb import log_text, optional

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
        score = pl_module.scores[metrics.VALIDATION]
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


class WeightAverage(Callback):
    """Averages the weights after each optimizer step, and puts the average in their place to evaluate.

    A checkpoint holds both: the raw weights where a resume looks for them, and under `averaged` the average by the
    network's own names, with the number of steps in it.
    """

    def __init__(self, *, start_step: int, decay: float | None) -> None:
        """Take which average it is.

        Args:
            start_step: the first optimizer step in it; before, there is none, and the raw weights are evaluated.
            decay: of an exponential average, which starts from the first step's weights; None: the plain mean.
        """
        self._start_step = start_step
        mean = get_swa_multi_avg_fn() if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._include: Callable[[list[Tensor], list[Tensor], int], None] = mean
        self._count = 0
        self._average: list[Tensor] = []
        self._raw: list[Tensor] = []

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Bring a loaded average to the weights' device and this run's precision."""
        pairs = zip(self._average, pl_module.model.parameters(), strict=False)
        self._average = [average.to(_wide(weight)) for average, weight in pairs]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Include the weights after the last micro-batch of a step."""
        if batch.micro + 1 < trainer.accumulate_grad_batches or batch.step < self._start_step:
            return
        weights = [_wide(weight) for weight in pl_module.model.parameters()]
        if self._count == 0:
            self._average = [weight.clone() for weight in weights]
        else:
            self._include(self._average, weights, self._count)
        self._count += 1

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the average in the place of training's weights."""
        if trainer.state.fn == "fit":
            self._put_in_place(pl_module.model)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Put training's weights back, to the bit."""
        self._take_away(pl_module.model)

    @contextmanager
    def in_place(self, model: torch.nn.Module) -> Iterator[None]:
        """Have the average in the place of training's weights, if there is one yet."""
        self._put_in_place(model)
        try:
            yield
        finally:
            self._take_away(model)

    def _put_in_place(self, model: torch.nn.Module) -> None:
        if self._count > 0:
            self._raw = [weight.detach().clone() for weight in model.parameters()]
            _write(model.parameters(), self._average)

    def _take_away(self, model: torch.nn.Module) -> None:
        if self._raw:
            _write(model.parameters(), self._raw)
            self._raw = []

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Leave the average in the network: the last checkpoint is written, and what follows only evaluates."""
        if self._count > 0:
            _write(pl_module.model.parameters(), self._average)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the average."""
        if self._count > 0:
            names = [name for name, _ in pl_module.model.named_parameters()]
            weights = dict(zip(names, self._average, strict=True))
            checkpoint["averaged"] = {"count": self._count, "weights": weights}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint's average, unless this run's begins later."""
        averaged = checkpoint.get("averaged")
        if averaged is not None and checkpoint["global_step"] >= self._start_step:
            self._count = averaged["count"]
            self._average = [averaged["weights"][name] for name, _ in pl_module.model.named_parameters()]


def _wide(weight: Tensor) -> Tensor:
    """Give a weight in at least float32: in bfloat16 a long average would stand still."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


@torch.no_grad()
def _write(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    # copies rather than new tensors: the optimizer and DDP hold on to these very parameters
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


class Samples(Callback):
    """Writes `samples/step-N.txt`, after the validation's checkpoint; none that fails ends the run."""

    def __init__(self, *, folder: Path, sample: Callable[[Any], str], average: WeightAverage | None) -> None:
        """Take the folder, the function that gives a text from the model, and the average that it reads, if any."""
        self._folder = folder
        self._sample = sample
        self._average = average

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Sample from the model as it stands; training's memory and randomness are not touched."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        averaged = self._average.in_place(pl_module.model) if self._average is not None else nullcontext()
        with optional("the sample"), averaged:
            text = self._sample(pl_module.model)
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"step-{trainer.global_step}.txt").write_text(text, encoding="utf-8")
            log_text(trainer.loggers, key=metrics.SAMPLES, step=trainer.global_step, text=text, axis=metrics.STEP_AXIS)


def added_callbacks(settings: CallbacksConfig) -> list[Callback]:
    """Return the callbacks that the settings add, in their order.

    Raises:
        UserError: one of Lightning's refuses its arguments.
    """
    return [_made(name, own) for name, own in (settings.model_extra or {}).items()]


def _made(name: str, own: Any) -> Callback:
    if name in names("callback"):
        callback: Callback = lookup("callback", name).factory(own)
        return callback
    try:
        callback = getattr(lightnings, name)(**own)
    except (TypeError, ValueError, MisconfigurationException) as error:
        raise UserError(f"callbacks.{name} cannot be made: {first_line(error)}") from error
    return callback
