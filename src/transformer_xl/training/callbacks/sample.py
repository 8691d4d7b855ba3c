"""A text sampled after each validation, kept in the run folder and sent to the loggers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from transformer_xl.training import names
from transformer_xl.training.callbacks.weight_average import WeightAverage
from transformer_xl.training.loggers import log_text, optional


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
            log_text(trainer.loggers, key=names.SAMPLES, step=trainer.global_step, text=text, axis=names.STEP_AXIS)
