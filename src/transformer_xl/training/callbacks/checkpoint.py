"""When checkpoints are written, and what ends a run early: only whole optimizer steps, never inside a handler."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from transformer_xl.data.batch import Batch
from transformer_xl.errors import Stopped
from transformer_xl.training import names
from transformer_xl.training.callbacks.recorder import Recorder

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}
_OUT_OF_TIME = 1  # a reason beside the signals' numbers, smaller than theirs


class Checkpoints(Callback):
    """Writes `last.ckpt` at intervals, after validations, at a stop and at the end; `best.ckpt` at the best validation.

    A checkpoint due at a step that also validates is written after the validation, so that it holds its outcome.
    """

    def __init__(
        self,
        *,
        folder: Path,
        recorder: Recorder,
        every_n_steps: int,
        validate_every_n_steps: int | None,
        max_steps: int,
        enabled: bool,
        min_steps: int,
        max_seconds: float | None,
    ) -> None:
        """Take the intervals, in optimizer steps.

        Args:
            folder: where the checkpoints lie.
            recorder: flushed before a checkpoint is renamed into place.
            every_n_steps: between two `last.ckpt`.
            validate_every_n_steps: None: no validation.
            max_steps: the last step, which always validates and saves.
            enabled: whether to write checkpoints at all; stops are obeyed all the same.
            min_steps: before which the time limit does not stop the run.
            max_seconds: the run stops at the first step after so much time; None: no limit.
        """
        self.best_score = math.inf
        self._folder = folder
        self._recorder = recorder
        self._every = every_n_steps
        self._validate_every = validate_every_n_steps
        self._max_steps = max_steps
        self._enabled = enabled
        self._min_steps = min_steps
        self._max_seconds = max_seconds
        self._started = math.inf
        self._saved_step: int | None = None
        self._signal: signal.Signals | None = None
        self._previous: dict[int, Any] = {}

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take over the signals that stop a run."""
        self._take_signals()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take over the signals that stop a run, and start the clock of `trainer.max_time`."""
        self._take_signals()
        self._started = monotonic()

    def _take_signals(self) -> None:
        # not before Lightning has set its own handlers, which would end a run between two hooks with status 0
        for number in EXIT_CODES:
            handler = signal.signal(number, self._remember)
            self._previous.setdefault(number, handler)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            os._exit(EXIT_CODES[signal.SIGINT])
        self._signal = self._signal or signal.Signals(number)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Save if a checkpoint is due at this step and no validation is."""
        if batch.micro + 1 < trainer.accumulate_grad_batches:
            return
        if batch.step == self._max_steps:
            trainer.should_stop = True  # makes Lightning validate at the last step, whatever the interval
        if not self._validation_is_due(batch.step):
            self._finish_step(trainer, batch.step, is_due=batch.step % self._every == 0)

    def _validation_is_due(self, step: int) -> bool:
        if self._validate_every is None:
            return False
        return step % self._validate_every == 0 or step == self._max_steps

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save after each validation of a run."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        score = pl_module.scores[names.VALIDATION].loss
        is_best = score < self.best_score
        if is_best:
            self.best_score = score
        self._finish_step(trainer, trainer.global_step, is_due=True, is_best=is_best)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save the last step if nothing has yet."""
        if self._saved_step != trainer.global_step:
            self._save(trainer, trainer.global_step, is_best=False)

    def _finish_step(self, trainer: Trainer, step: int, *, is_due: bool, is_best: bool = False) -> None:
        reason = self._agreed_reason(trainer, step)
        if is_due or reason:
            self._save(trainer, step, is_best=is_best)
        if reason:
            by = "trainer.max_time" if reason == _OUT_OF_TIME else signal.Signals(reason).name
            folder = shlex.quote(str(self._folder.parent))
            advice = f"; go on with: python train.py resume={folder}" if self._enabled else ""
            raise Stopped(f"stopped at step {step} by {by}{advice}", exit_code=EXIT_CODES.get(reason, 0))

    def _agreed_reason(self, trainer: Trainer, step: int) -> int:
        """Give the signal's number, `_OUT_OF_TIME`, or 0; the same on all processes."""
        reason = int(self._signal or 0)
        is_late = self._max_seconds is not None and monotonic() - self._started > self._max_seconds
        if not reason and is_late and self._min_steps <= step < self._max_steps:
            reason = _OUT_OF_TIME
        if trainer.world_size == 1:
            return reason
        agreed = torch.tensor(reason, device=trainer.strategy.root_device)
        torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MAX)
        return int(agreed)

    def _save(self, trainer: Trainer, step: int, *, is_best: bool) -> None:
        self._recorder.flush(trainer)
        self._saved_step = step
        if not self._enabled:
            return
        last = self._folder / "last.ckpt"
        trainer.save_checkpoint(last, weights_only=False)
        if is_best and trainer.is_global_zero:
            _link(last, self._folder / "best.ckpt")

    def state_dict(self) -> dict[str, Any]:
        """Give the best validation loss so far."""
        return {"best_score": self.best_score}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self.best_score = state_dict["best_score"]


def _link(source: Path, target: Path) -> None:
    temporary = target.with_suffix(".ckpt.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)
