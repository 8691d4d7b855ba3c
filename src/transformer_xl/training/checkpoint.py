"""Checkpoints: when they are written, at whole optimizer steps only, and how they get to disk and back."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, Trainer

from transformer_xl.data.stream import Batch
from transformer_xl.errors import Stopped, UserError, atomic_write
from transformer_xl.registry import program
from transformer_xl.training import metrics
from transformer_xl.training.recorder import Recorder
from transformer_xl.training.stopping import EXIT_CODES, OUT_OF_TIME, Agreement, StopSignals

LAST = "last.ckpt"
_STEP = re.compile(r"step-(\d+)\.ckpt")


class CheckpointFile(CheckpointIO):
    """Writes to a temporary name and renames; reads plain containers and tensors only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, on disk before it has its name; its folder must be there.

        Raises:
            UserError: it cannot be written; what had its name is as it was.
        """
        try:
            with atomic_write(Path(path), "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            reason = error if isinstance(error, OSError) else error.__context__
            if not isinstance(reason, OSError):  # torch wraps what a file raises, without saying it
                raise
            raise UserError(f"{path} cannot be written: {reason.strerror}") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; nothing in it can run code."""
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
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


def count_in_chunks(checkpoint: dict[str, Any], *, lane_chunks: int) -> None:
    """Turn a checkpoint's counts of batches, in place, into those of a run with other `lane_chunks`."""
    before = checkpoint["config"]["data"]["lane_chunks"]
    if lane_chunks == before:
        return
    loop = checkpoint["loops"]["fit_loop"]
    for counter in [*loop["epoch_loop.batch_progress"].values(), *loop["state_dict"]["combined_loader"]]:
        if isinstance(counter, dict):
            for name in {"ready", "started", "processed", "completed", "batches"} & counter.keys():
                counter[name] = counter[name] // before * lane_chunks  # it was written at a whole step


class Checkpoints(Callback):
    """Writes `last.ckpt` at intervals, after validations, at a stop and at the end; `best.ckpt` at the best validation.

    A step that also validates is written twice: before the validation, noted as due, so that no evaluation holds the
    step back, and after it with its outcome. A run that goes on from the first holds the validation before anything
    else. The newest checkpoints before `last.ckpt` stay as `step-N.ckpt`: it might be found damaged.

    Args:
        folder: where the checkpoints lie.
        recorder: flushed before a checkpoint is renamed into place.
        signals: which end the run after the step, or an evaluation after the batch.
        every_n_steps: optimizer steps between two `last.ckpt`.
        keep: how many checkpoints there are, `last.ckpt` included and `best.ckpt` not.
        validate_every_n_steps: None: no validation.
        max_steps: the last step, which always validates and saves.
        max_seconds: the run ends at the first step after so much time in this process; None: no limit.
        enabled: whether to write checkpoints at all; stops are obeyed all the same.
        identity: plain containers that stand in every checkpoint beside the state: format version, configuration,
            vocabulary.

    Attributes:
        best_score: the lowest validation loss so far, in nats.
    """

    def __init__(
        self,
        *,
        folder: Path,
        recorder: Recorder,
        signals: StopSignals,
        every_n_steps: int,
        keep: int,
        validate_every_n_steps: int | None,
        max_steps: int,
        max_seconds: float | None,
        enabled: bool,
        identity: Mapping[str, Any],
    ) -> None:
        self.best_score = math.inf
        self._folder, self._recorder, self._signals, self._identity = folder, recorder, signals, identity
        self._every, self._validate_every = every_n_steps, validate_every_n_steps
        self._keep, self._enabled = keep, enabled
        self._max_steps, self._max_seconds = max_steps, max_seconds
        self._agreement = Agreement()
        self._started = math.inf
        self._saved_step: int | None = None  # in this process
        self._newest: int | None = None  # step of last.ckpt
        self._best_step: int | None = None
        self._validation_due = False  # whether the newest step still has to be validated

    @property
    def _last(self) -> Path:
        return self._folder / LAST

    @property
    def _best(self) -> Path:
        return self._folder / "best.ckpt"

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Make the folder, and put in order what a killed process had begun."""
        self._validation_due &= self._validate_every is not None
        if self._validation_due and self._newest == self._max_steps:
            # else Lightning starts no training, and calls no hook
            trainer.fit_loop.epoch_loop.max_steps = self._max_steps + 1
        if not self._enabled or not trainer.is_global_zero:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob(".*.ckpt.*.tmp"):
            path.unlink()
        if trainer.ckpt_path is None or self._newest is None:
            return
        link(Path(trainer.ckpt_path), self._last)  # which was damaged where the one before it was taken
        for step, path in step_checkpoints(self._folder).items():
            if step > self._newest:
                path.unlink()
        if self._best_step is None:
            self._best.unlink(missing_ok=True)
        elif self._best_step == self._newest:
            link(self._last, self._best)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock of `trainer.max_time`, and hold a validation that is due."""
        self._started = time.monotonic()
        if self._validation_due:
            # as Lightning does at its own intervals, which skip a step that was saved before
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.restarting = False
            trainer.validating = True
            loop.run()
            trainer.training = True
            trainer.fit_loop.epoch_loop.max_steps = self._max_steps

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Save if a checkpoint or a validation is due at this step, and stop if asked to."""
        if batch.micro + 1 < trainer.accumulate_grad_batches:
            return
        step = batch.step
        if step == self._max_steps:
            trainer.should_stop = True  # makes Lightning validate at the last step, whatever the interval
        if self._validate_every is not None:
            self._validation_due = step % self._validate_every == 0 or step == self._max_steps
        self._finish_step(trainer, step, is_due=self._validation_due or step % self._every == 0)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        reason = self._agreement.reason(trainer, int(self._signals.received or 0), at_once=False)
        self._stop_if(trainer, reason, step=trainer.global_step)

    def on_test_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.on_validation_batch_end(trainer, *args)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._validation_due = False
        score = pl_module.scores[metrics.VALIDATION].loss
        is_best = score < self.best_score
        if is_best:
            self.best_score, self._best_step = score, trainer.global_step
        self._finish_step(trainer, trainer.global_step, is_due=True, is_best=is_best)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self._saved_step != trainer.global_step:
            self._save(trainer, trainer.global_step, is_best=False)

    def _finish_step(self, trainer: Trainer, step: int, *, is_due: bool, is_best: bool = False) -> None:
        reason = int(self._signals.received or 0)
        is_late = self._max_seconds is not None and time.monotonic() - self._started > self._max_seconds
        if not reason and is_late and step < self._max_steps:
            reason = OUT_OF_TIME
        reason = self._agreement.reason(trainer, reason, at_once=is_due)  # a checkpoint waits for the device anyway
        if is_due or reason:
            self._save(trainer, step, is_best=is_best)
        self._stop_if(trainer, reason, step=step)

    def _stop_if(self, trainer: Trainer, reason: int, *, step: int) -> None:
        if reason:
            by = "trainer.max_time" if reason == OUT_OF_TIME else signal.Signals(reason).name
            folder = shlex.quote(str(self._folder.parent))
            advice = f"; go on with: {program('train')} resume={folder}" if self._enabled else ""
            raise Stopped(f"stopped at step {step} by {by}{advice}", exit_code=EXIT_CODES.get(reason, 0))

    def _save(self, trainer: Trainer, step: int, *, is_best: bool) -> None:
        self._recorder.prepare_checkpoint(trainer)
        self._saved_step = step
        if not self._enabled:
            return
        if trainer.is_global_zero and self._keep > 1 and self._newest not in (None, step) and self._last.is_file():
            # before a newer one takes the name: at no moment there is none
            link(self._last, self._folder / f"step-{self._newest}.ckpt")
        trainer.save_checkpoint(self._last, weights_only=False)
        self._newest = step
        if not trainer.is_global_zero:
            return
        kept = step_checkpoints(self._folder)
        for number in kept.keys() - {*[number for number in kept if number < step][: self._keep - 1]}:
            kept[number].unlink(missing_ok=True)
        if is_best:
            link(self._last, self._best)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self._identity)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember which checkpoint this run goes on from, and forget a best score that was measured otherwise."""
        theirs, ours = checkpoint["config"], self._identity["config"]
        count_in_chunks(checkpoint, lane_chunks=ours["data"]["lane_chunks"])
        self._newest = checkpoint["global_step"]
        limits = [config["trainer"]["limit_val_batches"] for config in (theirs, ours)]
        if limits[0] != limits[1] or theirs["eval"] != ours["eval"]:
            checkpoint["callbacks"][self.state_key].update(best_score=math.inf, best_step=None)

    def state_dict(self) -> dict[str, Any]:
        """Return the best validation loss so far, its step, and whether a validation is due."""
        best = {"best_score": self.best_score, "best_step": self._best_step}
        return {**best, "validation_due": self._validation_due}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.best_score, self._best_step = state_dict["best_score"], state_dict["best_step"]
        self._validation_due = state_dict["validation_due"]


def validation_is_due(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a run that goes on from a checkpoint has to validate before anything else."""
    return bool(checkpoint["callbacks"][Checkpoints.__qualname__].get("validation_due"))
