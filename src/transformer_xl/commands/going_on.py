"""A run that goes on from a checkpoint: what it must not have changed, and what a person is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_xl.commands.screen import shown
from transformer_xl.config import Config
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.tokenizer import tokenizer_from_json
from transformer_xl.errors import UserError
from transformer_xl.plan import Plan
from transformer_xl.resuming import memory_note
from transformer_xl.settings import SchedulerConfig
from transformer_xl.training.callbacks.checkpoint import Checkpoints, validation_is_due
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.optim import CosineConfig, Schedule


def refuse_other_data(checkpoint: Mapping[str, Any], data: Dataset, plan: Plan, *, config: Config, of_run: str) -> None:
    """Refuse to go on with another text or vocabulary, or to a step that lies behind.

    Args:
        checkpoint: to go on from.
        data: opened.
        plan: of the run.
        config: of the run.
        of_run: the folder of the run that wrote the checkpoint, for messages.

    Raises:
        UserError: which of these it is.
    """
    if checkpoint["global_step"] > plan.max_steps:
        raise UserError(
            f"trainer.max_steps is {plan.max_steps}, and {of_run} is at step {checkpoint['global_step']} already: "
            "a resume needs at least that many"
        )
    if checkpoint["data_checksum"] != data.fingerprint.sha256:
        raise UserError(
            f"the text has changed since {of_run} was trained on it: its sha256 is "
            f"{data.fingerprint.sha256[:16]} and was {checkpoint['data_checksum'][:16]}; start a new run"
        )
    if tokenizer_from_json(checkpoint["vocabulary"]).hash() != data.vocabulary.hash():
        raise UserError(
            f"data.tokenizer {getattr(config.data, 'tokenizer', '')!r} gives another vocabulary than the one "
            f"that {of_run} was trained with: start a new run"
        )


def refuse_other_weights(path: Path, checkpoint: Mapping[str, Any], module: LanguageModule) -> None:
    """Refuse a checkpoint whose weights are not those of the run's network, before Lightning loads it.

    Raises:
        UserError: the first weight that differs.
    """
    theirs = {name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()}
    ours = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name in [*ours, *theirs]:
        if theirs.get(name) != ours.get(name):
            raise UserError(
                f"{path} cannot be resumed: its weight {name} is {theirs.get(name, 'missing')}, and the run's is "
                f"{ours.get(name, 'missing')}"
            )


def resumed_lines(
    checkpoint: Mapping[str, Any], schedule: Schedule, plan: Plan, *, config: Config, parent: Path | None
) -> list[str]:
    """Say where the run goes on, at which learning rate, and what is not as a person might think.

    Args:
        checkpoint: to go on from.
        schedule: of the run; it takes the checkpoint's state.
        plan: of the run.
        config: of the run.
        parent: folder of the run that this one is a branch of.
    """
    step = checkpoint["global_step"]
    line = f"resumed  at step {step:,} of {plan.max_steps:,}"
    if validation_is_due(checkpoint):
        line += ", whose validation comes first"
    if parent is not None:
        line += f" as a branch of {shown(parent)}"
    notes = [memory_note(checkpoint)]
    if step < plan.max_steps:
        schedule.load_state_dict(checkpoint["schedule"])
        line += f"; the next learning rate is {config.optimizer.lr * schedule(step + 1):.4g}"
        notes.append(_note_of_cosine(config.scheduler, plan))
    elif parent is not None:
        notes.append("no step is left to train: a larger trainer.max_steps gives the branch some")
    return [line, *(f"note     {note}" for note in notes if note is not None)]


def _note_of_cosine(scheduler: SchedulerConfig, plan: Plan) -> str | None:
    """Say that the cosine ends before the run does, as that of a run that is made longer."""
    if not isinstance(scheduler, CosineConfig) or scheduler.total_steps >= plan.max_steps:
        return None
    return (
        f"the learning rate is scheduler.min_lr, {scheduler.min_lr:.4g}, from step {scheduler.total_steps:,} on, "
        f"where the cosine ends: scheduler.total_steps={plan.max_steps} lets it end with the run"
    )


def finished_line(checkpoint: Mapping[str, Any], plan: Plan, *, folder: Path) -> str:
    """Say that nothing is left to do, and how the run is made longer."""
    return (
        f"{shown(folder)} is finished: it is at step {checkpoint['global_step']}, and trainer.max_steps is "
        f"{plan.max_steps}; a larger one goes on, with scheduler.total_steps where a cosine shall end there too"
    )


def best_score(checkpoint: Mapping[str, Any]) -> float | None:
    """Give the best validation loss so far, in nats; None where nothing has validated."""
    score = float(checkpoint["callbacks"][Checkpoints.__qualname__]["best_score"])
    return score if math.isfinite(score) else None
