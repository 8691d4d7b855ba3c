"""How a run ends: `summary.json` and the logger say so, no process is left behind, and the reason is found out."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import Trainer

from transformer_xl.commands.cli import one_line
from transformer_xl.commands.companions import Companions, is_broken_connection
from transformer_xl.commands.summary import Summary
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.errors import LostProcess, Stopped, UserError
from transformer_xl.training import loggers as monitors
from transformer_xl.training.signals import StopSignals, stopped_by


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What has to be told, and to whom.

    Attributes:
        summary: told how the run ended; written by the main process.
        folder: of the run.
        is_main: whether this is the process that writes and speaks for all.
        signals: which may have ended the run.
        companions: the processes that this one has started.
        trainer: knows the step.
        datamodule: knows the tokens.
    """

    summary: Summary
    folder: Path
    is_main: bool
    signals: StopSignals
    companions: Companions
    trainer: Trainer
    datamodule: LaneDataModule

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Tell how what is done within has ended, however it does.

        Raises:
            Stopped: the reason, where an error was only its consequence.
        """
        self.signals.when_stuck(self._give_up, waits_for_others=self.trainer.world_size > 1)
        self.companions.when_one_is_lost(self._give_up)
        try:
            yield
            self.summary.status, self.summary.exit_code = "finished", 0
        except BaseException as raised:
            error = self._reason(raised)
            self.summary.status, self.summary.exit_code = _status_of(error)
            if error is raised:
                raise
            raise error from raised
        finally:
            self.companions.end(all_is_done=self.summary.status == "finished")
            if self.is_main:
                monitors.finish(self.summary.exit_code)
                self._write()

    def _write(self) -> None:
        self.summary.step = self.trainer.global_step
        self.summary.tokens = self.datamodule.tokens_after(self.trainer.global_step)
        try:
            self.summary.write(self.folder)
        except OSError:
            if self.summary.exit_code == 0:
                raise  # otherwise the reason why the run ends has more to say

    def _give_up(self, reason: Stopped) -> None:
        """End this process from another thread: its main one waits for something that will not come."""
        self.companions.kill()
        if self.is_main:
            self.summary.status, self.summary.exit_code = _status_of(reason)
            self._write()
            print(one_line(str(self._with_advice(reason))), file=sys.stderr, flush=True)
        os._exit(reason.exit_code)

    def _reason(self, raised: BaseException) -> BaseException:
        """Find out why the run ended, where what was raised is only that another process does not answer."""
        if not is_broken_connection(raised):
            return raised
        if self.signals.received is not None:
            return stopped_by(self.signals.received)
        return self._with_advice(self.companions.failure() or LostProcess("another process of the run has ended"))

    def _with_advice(self, reason: Stopped) -> Stopped:
        if not isinstance(reason, LostProcess):
            return reason
        advice = f": the run was stopped at step {self.trainer.global_step}"
        if (self.folder / "checkpoints" / "last.ckpt").is_file():
            advice += f"; go on from its last checkpoint with: python train.py resume={shlex.quote(str(self.folder))}"
        return LostProcess(f"{reason}{advice}")


def _status_of(error: BaseException) -> tuple[str, int]:
    if isinstance(error, LostProcess):
        return "failed", error.exit_code
    if isinstance(error, Stopped):
        return "stopped", error.exit_code
    return "failed", 2 if isinstance(error, UserError) else 1
