"""A text sampled after each validation, kept in the run folder and sent to the loggers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from transformer_xl.training import names
from transformer_xl.training.loggers import log_text


class Samples(Callback):
    """Writes `samples/step-N.txt`."""

    def __init__(self, *, folder: Path, sample: Callable[[Any], str]) -> None:
        """Take the folder and the function that gives a text from the model."""
        self._folder = folder
        self._sample = sample

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Sample from the model as it stands; training's memory and randomness are not touched."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        text = self._sample(pl_module.model)
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"step-{trainer.global_step}.txt").write_text(text, encoding="utf-8")
        log_text(trainer.loggers, key=names.SAMPLES, step=trainer.global_step, text=text, axis=names.STEP_AXIS)
