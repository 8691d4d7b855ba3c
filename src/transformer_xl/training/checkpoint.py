"""Checkpoints: when they are written, at whole optimizer steps only, and how they get to disk and back."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from transformer_xl.data.stream import Batch
from transformer_xl.errors import Stopped, UserError, atomic_write, program
from transformer_xl.training import metrics
from transformer_xl.training.recorder import Recorder
from transformer_xl.training.stopping import EXIT_CODES, Stops, in_words

LAST = "last.ckpt"
_STEP = re.compile(r"step-(\d+)\.ckpt")


class CheckpointFile(CheckpointIO):
    """Writes to a temporary name and renames; reads plain containers and tensors only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, on disk before it has its name; its folder must be there.

        Raises:
            UserError: it cannot be written; what had its name is as it was.
        """
        target = Path(path)
        try:
            with atomic_write(target, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            reason = error if isinstance(error, OSError) else error.__context__
            if not isinstance(reason, OSError):  # torch wraps what a file raises, without saying it
                raise
            raise UserError(_cannot_be_written(target, reason, checkpoint)) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; nothing in it can run code."""
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """Give a checkpoint a second name, in the place of what had it; no bytes are copied where links are possible."""
    temporary = target.with_name(f".{target.name}.link.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # where both were names of one file already, replacing does nothing


def step_checkpoints(folder: Path) -> dict[int, Path]:
    """Find the `step-N.ckpt` of a folder, by step, the newest first."""
    found = {int(match[1]): path for path in folder.glob("step-*.ckpt") if (match := _STEP.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process had begun to write."""
    for path in folder.glob(".*.ckpt.*.tmp"):
        path.unlink(missing_ok=True)


def _cannot_be_written(target: Path, reason: OSError, checkpoint: dict[str, Any]) -> str:
    before = "the one before it is as it was" if target.is_file() else "there is none before it"
    size = sum({tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in _tensors(checkpoint)}.values())
    return (
        f"{target} cannot be written: {reason.strerror}; "
        f"a checkpoint of this run has {size / 1e6:,.1f} MB, and {before}"
    )


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _tensors(child)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for child in value:
            yield from _tensors(child)


def count_in_chunks(checkpoint: dict[str, Any], *, lane_chunks: int) -> None:
    """Turn a checkpoint's counts of batches into those of a run with `lane_chunks`; it was written at a whole step.

    Args:
        checkpoint: as Lightning wrote it; changed in place.
        lane_chunks: chunks of this run.
    """
    before = checkpoint["config"]["data"]["lane_chunks"]
    if lane_chunks == before:
        return
    loop = checkpoint["loops"]["fit_loop"]
    counts = [*loop["epoch_loop.batch_progress"].values(), *loop["state_dict"]["combined_loader"]]
    for counter in counts:
        if isinstance(counter, dict):
            for name in {"ready", "started", "processed", "completed", "batches"} & counter.keys():
                counter[name] = counter[name] // before * lane_chunks


class Checkpoints(Callback):
    """Writes `last.ckpt` at intervals, after validations, at a stop and at the end; `best.ckpt` at the best validation.

    A step that also validates is written twice: before the validation, noted as due, so that no evaluation holds the
    step hostage, and after it with its outcome. A run that goes on from the first holds the validation before anything
    else. The newest checkpoints before `last.ckpt` stay as `step-N.ckpt`: it might be found damaged.
    """

    def __init__(
        self,
        *,
        folder: Path,
        recorder: Recorder,
        every_n_steps: int,
        keep: int,
        validate_every_n_steps: int | None,
        max_steps: int,
        enabled: bool,
        stops: Stops,
        identity: Mapping[str, Any],
    ) -> None:
        """Take the intervals, in optimizer steps.

        Args:
            folder: where the checkpoints lie.
            recorder: flushed before a checkpoint is renamed into place.
            every_n_steps: between two `last.ckpt`.
            keep: how many there are, `last.ckpt` included and `best.ckpt` not.
            validate_every_n_steps: None: no validation.
            max_steps: the last step, which always validates and saves.
            enabled: whether to write checkpoints at all; stops are obeyed all the same.
            stops: whether the run shall end after a step.
            identity: plain containers that stand in every checkpoint beside the state: format version, configuration,
                vocabulary.
        """
        self.best_score = math.inf
        self._folder = folder
        self._recorder = recorder
        self._every = every_n_steps
        self._keep = keep
        self._validate_every = validate_every_n_steps
        self._max_steps = max_steps
        self._enabled = enabled
        self._stops = stops
        self._identity = identity
        self._saved_step: int | None = None
        self._best_step: int | None = None
        self._newest: int | None = None  # step of the newest checkpoint that this run wrote or went on from
        self._newest_is_last = False  # whether last.ckpt is that one
        self._scores_anew = False  # whether validation reads otherwise than before: scores have no best in common
        self._validation_due = False  # whether the newest step still has to be validated

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Make the folder, and put in order what a killed process had begun."""
        if self._scores_anew:
            self.best_score, self._best_step = math.inf, None
        self._validation_due &= self._validate_every is not None
        if self._validation_due and self._newest == self._max_steps:
            trainer.fit_loop.epoch_loop.max_steps = (
                self._max_steps + 1
            )  # else Lightning starts no training, and calls no hook
        if not self._enabled or not trainer.is_global_zero:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder)
        if self._scores_anew:
            self._best.unlink(missing_ok=True)
        # here, since after the last step no training starts
        if trainer.ckpt_path is not None and self._best_step is not None and self._best_step == self._newest:
            link(Path(str(trainer.ckpt_path)), self._best)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock of `trainer.max_time`, and hold a validation that is due."""
        self._stops.start_clock()
        if self._validation_due:
            validate(trainer)
            trainer.fit_loop.epoch_loop.max_steps = self._max_steps

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Save if a checkpoint is due at this step and no validation is."""
        if batch.micro + 1 < trainer.accumulate_grad_batches:
            return
        if batch.step == self._max_steps:
            trainer.should_stop = True  # makes Lightning validate at the last step, whatever the interval
        self._validation_due = self._validation_is_due(batch.step)
        self._finish_step(trainer, batch.step, is_due=self._validation_due or batch.step % self._every == 0)

    def _validation_is_due(self, step: int) -> bool:
        if self._validate_every is None:
            return False
        return step % self._validate_every == 0 or step == self._max_steps

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        """Stop here if asked to."""
        self._stop_if(trainer, self._stops.agreed_signal(trainer), step=trainer.global_step)

    def on_test_batch_end(self, trainer: Trainer, *args: Any) -> None:
        """Stop here if asked to."""
        self._stop_if(trainer, self._stops.agreed_signal(trainer), step=trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save after each validation of a run."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._validation_due = False
        score = pl_module.scores[metrics.VALIDATION].loss
        is_best = score < self.best_score
        if is_best:
            self.best_score, self._best_step = score, trainer.global_step
        self._finish_step(trainer, trainer.global_step, is_due=True, is_best=is_best)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save the last step if nothing has yet."""
        if self._saved_step != trainer.global_step:
            self._save(trainer, trainer.global_step, is_best=False)

    def _finish_step(self, trainer: Trainer, step: int, *, is_due: bool, is_best: bool = False) -> None:
        reason = self._stops.agreed_reason(trainer, step)
        if is_due or reason:
            self._save(trainer, step, is_best=is_best)
        self._stop_if(trainer, reason, step=step)

    def _stop_if(self, trainer: Trainer, reason: int, *, step: int) -> None:
        if reason:
            folder = shlex.quote(str(self._folder.parent))
            advice = f"; go on with: {program('train')} resume={folder}" if self._enabled else ""
            raise Stopped(f"stopped at step {step} by {in_words(reason)}{advice}", exit_code=EXIT_CODES.get(reason, 0))

    def _save(self, trainer: Trainer, step: int, *, is_best: bool) -> None:
        self._recorder.prepare_checkpoint(trainer)
        self._saved_step = step
        if not self._enabled:
            return
        if trainer.is_global_zero:
            self._keep_last(step)
        trainer.save_checkpoint(self._last, weights_only=False)
        if trainer.is_global_zero:
            self._remove_old(step)
            if is_best:
                link(self._last, self._best)
        self._newest, self._newest_is_last = step, True

    @property
    def _last(self) -> Path:
        return self._folder / LAST

    @property
    def _best(self) -> Path:
        return self._folder / "best.ckpt"

    def _keep_last(self, step: int) -> None:
        """Give `last.ckpt` its second name, before a newer one takes the first: at no moment there is none."""
        if self._keep > 1 and self._newest_is_last and self._newest != step and self._last.is_file():
            link(self._last, self._folder / f"step-{self._newest}.ckpt")

    def _remove_old(self, step: int) -> None:
        """Delete all but the newest before this step; and what is newer than the one that this run went on from."""
        kept = step_checkpoints(self._folder)
        newest = -1 if self._newest is None else self._newest
        before = [number for number in kept if number <= newest and number < step]
        for number in kept.keys() - set(before[: self._keep - 1]):
            kept[number].unlink(missing_ok=True)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Say whose checkpoint it is."""
        checkpoint.update(self._identity)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember which checkpoint this run goes on from, and whether its best score compares with the coming ones."""
        config = self._identity["config"]
        count_in_chunks(checkpoint, lane_chunks=config["data"]["lane_chunks"])
        theirs, ours = _how_validated(checkpoint["config"]), _how_validated(config)
        self._scores_anew = any(ours.get(name) != value for name, value in theirs.items())
        self._newest = checkpoint["global_step"]
        self._newest_is_last = trainer.ckpt_path is not None and Path(trainer.ckpt_path) == self._last

    def state_dict(self) -> dict[str, Any]:
        """Give the best validation loss so far, and its step."""
        return {
            "best_score": self.best_score,
            "best_step": self._best_step,
            "validation_due": self._validation_due,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self.best_score = state_dict["best_score"]
        self._best_step = state_dict["best_step"]
        self._validation_due = state_dict["validation_due"]


def validation_is_due(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a run that goes on from a checkpoint has to validate before anything else."""
    return bool(checkpoint["callbacks"][Checkpoints.__qualname__].get("validation_due"))


def validate(trainer: Trainer) -> None:
    """Validate within training, as Lightning does at its own intervals, which skip a step that was saved before."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True


def _how_validated(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config["eval"], "limit_val_batches": config["trainer"]["limit_val_batches"]}
