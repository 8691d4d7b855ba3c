"""One training run from configuration to report."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from omegaconf import DictConfig
from rich.console import Console

from transformer_xl import build, devices, run_config
from transformer_xl.checks import check
from transformer_xl.commands import report
from transformer_xl.commands.command_line import RunContext
from transformer_xl.commands.screen import opening_lines, shown
from transformer_xl.commands.summary import Summary, metric, was_finished
from transformer_xl.config import Config, WandbConfig
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset
from transformer_xl.errors import Stopped, UserError
from transformer_xl.interop.native import model_weights, read_checkpoint
from transformer_xl.plan import Plan, make_plan
from transformer_xl.scores import Score
from transformer_xl.training import loggers as monitors
from transformer_xl.training import names
from transformer_xl.training.callbacks.checkpoint import EXIT_CODES, Checkpoints
from transformer_xl.training.module import LanguageModule

_RESUMED_PARTS = ("global_step", "train_memory", "schedule", "run_id", "data_checksum", "loops", "optimizer_states")


class TrainingRun:
    """Builds in order, trains, reports; leaves everything about the run in its folder."""

    def __init__(self, composed: DictConfig, context: RunContext) -> None:
        """Check the whole configuration before anything is read or written."""
        self.folder = context.folder
        self.is_resumed = composed.get("resume") is not None
        if self.is_resumed:
            config = run_config.resumed_config(self.folder, context.overrides)
        else:
            config = build.typed_config(composed)
        check(config)
        self.config: Config = devices.with_device_settings(config)
        self.is_main = rank_zero_only.rank == 0  # type: ignore[attr-defined]
        self.console = Console(quiet=not self.is_main, highlight=False)
        self.summary = Summary(command=context.command)
        if self.is_main and not self.is_resumed and (self.folder / "config.yaml").exists():
            raise UserError(
                f"the folder {self.folder} holds a run already: go on with it by resume={self.folder}, or name another"
            )

    def run(self) -> float | None:
        """Train, report, and return the objective; `summary.json` tells the outcome whatever it is."""
        data = build.open_data(self.config, announce=self.say)
        plan = make_plan(self.config, data)
        checkpoint = self._last_checkpoint()
        if checkpoint is not None and checkpoint["global_step"] >= plan.max_steps and was_finished(self.folder):
            self.say(
                f"{shown(self.folder)} is finished: step {checkpoint['global_step']} of {plan.max_steps}; a larger "
                "trainer.max_steps goes on"
            )
            return _best_score(checkpoint)
        if checkpoint is not None and checkpoint["data_checksum"] != data.fingerprint.sha256:
            raise UserError(
                f"the text has changed since {shown(self.folder)} was trained on it: its sha256 is "
                f"{data.fingerprint.sha256[:16]} and was {checkpoint['data_checksum'][:16]}; start a new run"
            )
        run_id = checkpoint["run_id"] if checkpoint is not None else secrets.token_hex(4)
        model = build.make_network(self.config, data)
        datamodule = build.make_datamodule(self.config, data, plan)
        module = build.make_module(self.config, data, model, plan, run_id=run_id)
        callbacks = build.make_callbacks(self.config, data, model, plan, datamodule, folder=self.folder)
        trainer = build.make_trainer(self.config, plan, callbacks, folder=self.folder)
        self.summary.data_checksum = data.fingerprint.sha256
        with self._outcome(trainer):
            monitor = self._open_folder(data, trainer, run_id)
            for line in opening_lines(self.config, data, model, plan, trainer, folder=self.folder, monitor=monitor):
                self.say(line)
            if checkpoint is not None:
                self.say(f"resumed  at step {checkpoint['global_step']:,} of {plan.max_steps:,}")
            resumed = self.folder / "checkpoints" / "last.ckpt" if checkpoint is not None else None
            trainer.fit(module, datamodule=datamodule, ckpt_path=resumed, weights_only=True)
            self.summary.objective = _objective(callbacks)
            self._report(trainer, module, datamodule, data, plan, callbacks, monitor=monitor)
        return self.summary.objective

    def say(self, line: str) -> None:
        """Print a line on the main process's screen."""
        self.console.print(line, soft_wrap=True, markup=False)

    def _last_checkpoint(self) -> dict[str, Any] | None:
        if not self.is_resumed:
            return None
        path = self.folder / "checkpoints" / "last.ckpt"
        if not path.is_file():
            raise UserError(f"resume={self.folder} has no checkpoints/last.ckpt yet: start a new run instead")
        checkpoint = read_checkpoint(path)
        missing = [name for name in _RESUMED_PARTS if name not in checkpoint]
        if missing:
            raise UserError(f"{path} cannot be resumed: it lacks {', '.join(missing)}")
        return checkpoint

    def _open_folder(self, data: Dataset, trainer: Trainer, run_id: str) -> str:
        """Write what the run is made of, open its logger, and say where to watch it."""
        if not self.is_main:
            return ""
        run_config.write_config(self.config, self.folder)
        data.vocabulary.save(self.folder / "vocabulary.json")
        if not isinstance(self.config.logger, WandbConfig) or not build.wants_logger(self.config):
            return f"none; every figure is in {shown(self.folder)}/metrics.jsonl"
        monitor = monitors.open_wandb(
            self.config.logger,
            folder=self.folder,
            name=self.config.name or self.folder.name,
            run_id=run_id,
            settings=dataclasses.asdict(self.config),
        )
        trainer.loggers = [monitor.logger]
        return monitor.where

    @contextlib.contextmanager
    def _outcome(self, trainer: Trainer) -> Iterator[None]:
        """Write `summary.json` and close the logger, however the run ends."""
        previous = {number: signal.signal(number, _stop_at_once) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
            self.summary.status, self.summary.exit_code = "finished", 0
        except BaseException as error:
            self.summary.status, self.summary.exit_code = _outcome_of(error)
            if not self.is_main and isinstance(error, Stopped | UserError):
                # the main process tells the user; another status than 0 here would make Lightning kill it
                raise SystemExit(0) from error
            if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.summary.step = trainer.global_step
            if self.is_main:
                monitors.finish(self.summary.exit_code)
                self.summary.write(self.folder)

    def _report(
        self,
        trainer: Trainer,
        module: LanguageModule,
        datamodule: LaneDataModule,
        data: Dataset,
        plan: Plan,
        callbacks: build.Callbacks,
        *,
        monitor: str,
    ) -> None:
        """Score the best weights on the test split, and print what a person reads first."""
        best = self.folder / "checkpoints" / "best.ckpt"
        is_best = plan.checkpointing and math.isfinite(callbacks.checkpoints.best_score) and best.is_file()
        which = "best" if is_best else "last"
        rows = []
        if which == "best":
            module.model.load_state_dict(model_weights(read_checkpoint(best)))
        if plan.validate_every is not None and names.VALIDATION not in module.scores:
            trainer.validate(module, datamodule=datamodule, verbose=False)  # the run stopped after its last step
        if names.VALIDATION in module.scores:
            score = module.scores[names.VALIDATION]
            best_loss = callbacks.checkpoints.best_score if which == "best" else score.loss
            rows.append(report.Row("validation", Score(best_loss, score.tokens), self.config.eval))
            self._add_metric(rows[-1], data, split="valid", checkpoint=which)
        if plan.limit_test != 0:
            trainer.test(module, datamodule=datamodule, verbose=False)
            rows.append(report.Row("test", module.scores[names.TEST], self.config.eval))
            self._add_metric(rows[-1], data, split="test", checkpoint=which)
        if not self.is_main:
            return
        module.to(trainer.strategy.root_device).eval()
        if plan.limit_test != 0 and self.config.callbacks.report.memory_tokens > 0:
            rows += self._memory_rows(trainer, module, data, which)
            rows.append(report.unigram_row(data))
        report.print_table(self.console, rows, data)
        if plan.limit_test != 0 and self.config.callbacks.report.memory_tokens > 0:
            report.print_compressors(self.console, data)
        if self.config.callbacks.sample.n_tokens > 0:
            self.say(f"\nA sample, after {build.PROMPT_TOKENS} tokens of prompt:\n")
            self.say(build.make_sampler(self.config, data)(module.model))
        picture = report.draw_losses(self.folder, data.vocabulary.unit)
        monitors.log_picture(
            trainer.loggers, key="loss_curve", step=trainer.global_step, path=picture, axis=names.STEP_AXIS
        )
        self.say(f"\nLoss curve: {shown(picture)}\nNext:")
        for command in report.next_commands(self.folder, monitor):
            self.say(f"  {command}")

    def _memory_rows(self, trainer: Trainer, module: LanguageModule, data: Dataset, which: str) -> list[report.Row]:
        rows = report.memory_rows(
            module.model,
            data,
            lengths=self.config.eval,
            long_eval=self.config.recipe.long_eval,
            max_tokens=self.config.callbacks.report.memory_tokens,
            autocast=trainer.precision_plugin.forward_context,
        )
        for row in rows:
            self._add_metric(row, data, split="test", checkpoint=which, suffix="_beginning")
        return rows

    def _add_metric(self, row: report.Row, data: Dataset, *, split: str, checkpoint: str, suffix: str = "") -> None:
        assert row.lengths is not None
        key = f"{split}{suffix}_memory_{row.lengths.mem_len}" if suffix else split
        self.summary.metrics[key] = metric(
            row.score, unit=data.vocabulary.unit, split=split, checkpoint=checkpoint, lengths=row.lengths
        )


def _stop_at_once(number: int, frame: FrameType | None) -> None:
    """End the run where it is: outside of training's steps there is nothing to save."""
    raise Stopped(f"stopped by {signal.Signals(number).name} outside of training's steps", exit_code=EXIT_CODES[number])


def _outcome_of(error: BaseException) -> tuple[str, int]:
    if isinstance(error, Stopped):
        return "stopped", error.exit_code
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return "stopped", 130
    return "failed", 2 if isinstance(error, UserError) else 1


def _objective(callbacks: build.Callbacks) -> float | None:
    if math.isfinite(callbacks.checkpoints.best_score):
        return callbacks.checkpoints.best_score
    return callbacks.recorder.latest.loss if callbacks.recorder.latest is not None else None


def _best_score(checkpoint: dict[str, Any]) -> float | None:
    score = float(checkpoint["callbacks"][Checkpoints.__qualname__]["best_score"])
    return score if math.isfinite(score) else None
