"""What runs beside training: the display of progress, samples, and an average of the weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch import callbacks as lightnings
from rich.console import Console
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from transformer_xl.config import CallbacksConfig
from transformer_xl.data.stream import Batch
from transformer_xl.errors import UserError, first_line
from transformer_xl.registry import lookup, names
from transformer_xl.training import metrics
from transformer_xl.training.recorder import Recorder
from transformer_xl.training.wandb import log_text, optional

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_UNSEEN = 1.0
"""A validation or test that takes no longer than this needs no line."""


class _Phase(NamedTuple):
    """What takes its time, training or an evaluation: so many of `total` were done before it began."""

    name: str
    total: int
    first: int
    began: float


class ProgressDisplay(Callback):
    """Shows training by the steps that the recorder has fetched anyway, and evaluations by their batches.

    One line, which a terminal shows anew in its place; elsewhere it is printed now and then.

    Args:
        recorder: whose newest step is shown.
        max_steps: the run's length in optimizer steps.
        beside: what must stand beside each score of this corpus.
        console: the screen; what else is printed meanwhile must go through it too, or the line is torn.
    """

    def __init__(self, *, recorder: Recorder, max_steps: int, beside: str, console: Console) -> None:
        self._recorder, self._max_steps, self._beside, self._console = recorder, max_steps, beside, console
        self._phases: list[_Phase] = []  # the innermost last
        self._status = console.status("") if console.is_terminal else None
        self._shown_step, self._shown_at = 0, -math.inf

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._begin(trainer, "step", self._max_steps, first=trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        latest = self._recorder.latest
        if latest is not None and latest.step != self._shown_step and trainer.is_global_zero:
            self._shown_step = latest.step
            figures = _figures(trainer, "train", latest.loss)
            self._show(latest.step, f"{figures}  {latest.tokens_per_second:,.0f} tokens/s  ")

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
        self._begin(trainer, "validation", int(sum(batches)))

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, *args: Any) -> None:
        self._show(batch.step)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Print the validation loss on a line of its own."""
        self._end()
        if trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        if self._recorder.latest is not None:
            self._shown_step = self._recorder.latest.step  # older than the line below
        score = pl_module.scores[metrics.VALIDATION]
        figures = _figures(trainer, "valid", score.loss) + self._beside if score.tokens else "no predictions"
        figures += "" if score.accuracy is None else f"  accuracy {score.accuracy:.3f}"
        line = f"step {trainer.global_step}/{self._max_steps}  validation {figures}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._begin(trainer, "test", int(sum(trainer.num_test_batches)))

    def on_test_batch_end(self, *args: Any) -> None:
        self.on_validation_batch_end(*args)

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._end()

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self._phases.clear()
        self._end()

    def _begin(self, trainer: Trainer, name: str, total: int, *, first: int = 0) -> None:
        if trainer.is_global_zero:
            self._phases.append(_Phase(name, total, first, time.monotonic()))
            if name != "step":
                self._shown_at = time.monotonic() - _SECONDS_BETWEEN_LINES + _SECONDS_UNSEEN

    def _show(self, done: int, figures: str = "") -> None:
        if not self._phases:
            return
        phase, now = self._phases[-1], time.monotonic()
        left = int((now - phase.began) / max(1, done - phase.first) * (phase.total - done))
        line = f"{phase.name} {done}/{phase.total}  {figures}{left // 60}:{left % 60:02d} left"
        if self._status is not None:
            self._status.update(line)
            self._status.start()
        elif now - self._shown_at >= _SECONDS_BETWEEN_LINES or (phase.name == "step" and done == phase.total):
            self._shown_at = now
            self._console.print(line, highlight=False)

    def _end(self) -> None:
        self._phases = self._phases[:-1]
        if self._status is not None and not self._phases:
            self._status.stop()


def _figures(trainer: Trainer, split: str, loss: float | None) -> str:
    if loss is None:
        return "loss none (nothing counted, or left out)"
    unit = trainer.datamodule.unit(split)  # type: ignore[attr-defined]
    return f"loss {loss:.3f}  {unit.name} {unit.of(loss):.3f}"


class WeightAverage(Callback):
    """Averages the weights after each optimizer step, and puts the average in their place to evaluate.

    A checkpoint holds both: the raw weights where a resume looks for them, and under `averaged` the average by the
    network's own names, with the number of steps in it.

    Args:
        start_step: the first optimizer step in it; before, there is none, and the raw weights are evaluated.
        decay: of an exponential average, which starts from the first step's weights; None: the plain mean.
    """

    def __init__(self, *, start_step: int, decay: float | None) -> None:
        self._start_step = start_step
        mean = get_swa_multi_avg_fn() if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._include: Callable[[list[Tensor], list[Tensor], int], None] = mean
        self._count = 0
        self._average: list[Tensor] = []
        self._evaluation = ExitStack()

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
        if trainer.state.fn == "fit":
            self._evaluation.enter_context(self.in_place(pl_module.model))

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._evaluation.close()

    @contextmanager
    def in_place(self, model: torch.nn.Module) -> Iterator[None]:
        """Have the average in the place of training's weights, if there is one yet."""
        raw = [weight.detach().clone() for weight in model.parameters()] if self._count else []
        _write(model.parameters(), self._average if raw else [])
        try:
            yield
        finally:
            _write(model.parameters(), raw)

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Leave the average in the network: the last checkpoint is written, and what follows only evaluates."""
        _write(pl_module.model.parameters(), self._average)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
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
    """Return a weight in at least float32: in bfloat16 a long average would stand still."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


@torch.no_grad()
def _write(targets: Iterable[Tensor], sources: list[Tensor]) -> None:
    # copies rather than new tensors: the optimizer and DDP hold on to these very parameters
    for target, source in zip(targets, sources, strict=False):  # none, or one for each
        target.copy_(source)


class Samples(Callback):
    """Writes `samples/step-N.txt`, after the validation's checkpoint; none that fails ends the run.

    Args:
        folder: of the samples.
        sample: returns a text from the model.
        average: that the model is sampled with; None: none.
    """

    def __init__(self, *, folder: Path, sample: Callable[[Any], str], average: WeightAverage | None) -> None:
        self._folder, self._sample, self._average = folder, sample, average

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Sample from the model as it stands; training's memory and randomness are not touched."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        averaged = self._average.in_place(pl_module.model) if self._average is not None else nullcontext()
        with optional("the sample"), averaged:
            text = self._sample(pl_module.model)
            self._folder.mkdir(exist_ok=True)
            (self._folder / f"step-{trainer.global_step}.txt").write_text(text, encoding="utf-8")
            log_text(trainer.loggers, metrics.SAMPLES, trainer.global_step, text)


def added_callbacks(settings: CallbacksConfig) -> list[Callback]:
    """Return the callbacks that the settings add, in order; `UserError` where one refuses its arguments."""
    made: list[Callback] = []
    for name, own in (settings.model_extra or {}).items():
        if name in names("callback"):
            made.append(lookup("callback", name).factory(own))
            continue
        try:
            made.append(getattr(lightnings, name)(**own))
        except (TypeError, ValueError, MisconfigurationException) as error:
            raise UserError(f"callbacks.{name} cannot be made: {first_line(error)}") from error
    return made
