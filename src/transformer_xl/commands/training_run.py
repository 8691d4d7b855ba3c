"""One training run from configuration to report."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from omegaconf import DictConfig
from rich.console import Console

from transformer_xl import build, build_trainer, checkpoint_fit, devices, init_from, resuming, run_config
from transformer_xl.checks import check
from transformer_xl.commands import out_of_memory, report
from transformer_xl.commands.beginning import begin
from transformer_xl.commands.branching import copy_run
from transformer_xl.commands.command_line import RunContext
from transformer_xl.commands.companions import Companions, end_with_main_process
from transformer_xl.commands.final_report import FinalReport
from transformer_xl.commands.folders import refuse_part_of_a_run
from transformer_xl.commands.outcome import Outcome
from transformer_xl.commands.screen import opening_lines, shown
from transformer_xl.commands.summary import Summary, step_at_end, was_finished
from transformer_xl.config import Config, WandbConfig
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.tokenizer import vocabulary_from_json
from transformer_xl.errors import UserError
from transformer_xl.plan import Plan, make_plan
from transformer_xl.training import loggers as monitors
from transformer_xl.training import names
from transformer_xl.training.callbacks.checkpoint import Checkpoints
from transformer_xl.training.callbacks.recorder import Recorder
from transformer_xl.training.optim import check_installed
from transformer_xl.training.schedule import Schedule
from transformer_xl.training.signals import StopSignals


class TrainingRun:
    """Builds in order, trains, reports; leaves everything about the run in its folder."""

    def __init__(self, composed: DictConfig, context: RunContext, signals: StopSignals) -> None:
        """Check the whole configuration before anything is read or written."""
        end_with_main_process()
        self.folder = context.folder
        self.command = context.command
        self.signals = signals
        self.companions = Companions()
        self.is_main = rank_zero_only.rank == 0  # type: ignore[attr-defined]
        self.beginning = begin(composed, context)
        self.source = self.beginning.source
        check(self.beginning.config)
        check_installed(self.beginning.config.optimizer)
        self.config: Config = devices.with_device_settings(self.beginning.config)
        self.console = Console(quiet=not self.is_main, highlight=False)
        self.summary = Summary(command=context.command, parent=self.beginning.identity.parent)
        if self.is_main and not self.beginning.is_old:
            self._refuse_to_write_over()

    def _refuse_to_write_over(self) -> None:
        refuse_part_of_a_run(self.folder)
        if (self.folder / "config.yaml").exists():
            raise UserError(
                f"the folder {self.folder} holds a run already: go on with it by resume={self.folder}, or name another"
            )

    def run(self) -> float | None:
        """Train, report, and return the objective; `summary.json` tells the outcome whatever it is."""
        checkpoint, identity = self.beginning.checkpoint, self.beginning.identity
        for note in self.beginning.notes:
            self.say(f"note     {note}")
        if self.beginning.is_done:
            self.say(f"{shown(self.folder)} is finished")
            return None
        data = self._open_data(checkpoint)
        plan = make_plan(self.config, data)
        self.config = build.with_total_steps(self.config, plan)
        if checkpoint is not None and self._is_finished(checkpoint, plan):
            self.say(
                f"{shown(self.folder)} is finished: step {checkpoint['global_step']} of {plan.max_steps}; a larger "
                "trainer.max_steps goes on"
            )
            return _best_score(checkpoint)
        if checkpoint is not None:
            self._check_fits(checkpoint, data, plan)
        model = build.make_network(self.config, data, source=self.source, announce=self.say)
        begins_trained, self.source = self.source is not None, None  # what was copied need not be kept
        datamodule = build.make_datamodule(self.config, data, plan)
        module = build.make_module(self.config, data, model, run_id=identity.run_id)
        callbacks = build_trainer.make_callbacks(
            self.config, data, model, plan, datamodule, folder=self.folder, signals=self.signals
        )
        trainer = build_trainer.make_trainer(self.config, plan, callbacks, folder=self.folder)
        path = self.beginning.checkpoint_path
        if checkpoint is not None and path is not None:
            checkpoint_fit.check_fits(path, checkpoint, config=self.config, module=module, trainer=trainer)
        self.summary.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.summary.data_checksum = data.fingerprint.sha256
        outcome = Outcome(
            summary=self.summary,
            folder=self.folder,
            is_main=self.is_main,
            signals=self.signals,
            companions=self.companions,
            trainer=trainer,
            datamodule=datamodule,
        )
        memory = out_of_memory.in_one_sentence(self.config, module, processes=trainer.world_size, folder=self.folder)
        with outcome.told(), memory:
            monitor = self._open_folder(data, trainer, callbacks.recorder)
            for line in opening_lines(self.config, data, model, plan, trainer, folder=self.folder, monitor=monitor):
                self.say(line)
            if checkpoint is not None:
                self.say(self._resumed_line(checkpoint, module.schedule, plan))
                for note in filter(None, [resuming.memory_note(checkpoint)]):
                    self.say(f"note     {note}")
            self.companions.start(self.command, self.folder, trainer)
            if begins_trained and plan.validate_every is not None:
                trainer.validate(module, datamodule=datamodule, verbose=False)
                start = report.worded(module.scores[names.VALIDATION], data, split="valid")
                self.say(f"start    {start} on the validation split")
            if plan.max_steps > 0:
                trainer.fit(module, datamodule=datamodule, ckpt_path=path, weights_only=True)
            self.summary.objective = _objective(callbacks)
            FinalReport(
                config=self.config,
                data=data,
                plan=plan,
                trainer=trainer,
                module=module,
                datamodule=datamodule,
                checkpoints=callbacks.checkpoints,
                summary=self.summary,
                console=self.console,
                folder=self.folder,
                monitor=monitor,
                others_are_done=self.companions.dismiss,
            ).make(is_main=self.is_main)
            if self.summary.objective is None and names.VALIDATION in module.scores:
                self.summary.objective = module.scores[names.VALIDATION].loss  # of a branch with no step left
        return self.summary.objective

    def _is_finished(self, checkpoint: dict[str, Any], plan: Plan) -> bool:
        step = checkpoint["global_step"]
        return step >= plan.max_steps and was_finished(self.folder, step=step) and self.beginning.parent is None

    def _check_fits(self, checkpoint: dict[str, Any], data: Dataset, plan: Plan) -> None:
        """Refuse to go on with other data, or to a step that lies behind."""
        of_run = shown(self.beginning.parent or self.folder)
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
        if vocabulary_from_json(checkpoint["vocabulary"]).hash() != data.vocabulary.hash():
            raise UserError(
                f"data.tokenizer {getattr(self.config.data, 'tokenizer', '')!r} gives another vocabulary than the one "
                f"that {of_run} was trained with: start a new run"
            )

    def _resumed_line(self, checkpoint: dict[str, Any], schedule: Schedule, plan: Plan) -> str:
        """Say where the run goes on, and at which learning rate: `scheduler.total_steps` may lie behind already."""
        step = checkpoint["global_step"]
        line = f"resumed  at step {step:,} of {plan.max_steps:,}"
        if self.beginning.parent is not None:
            line += f" as a branch of {shown(self.beginning.parent)}"
        if step == plan.max_steps:
            return line
        schedule.load_state_dict(checkpoint["schedule"])
        return f"{line}; the next learning rate is {schedule.lr(step + 1):.4g}"

    def _open_data(self, checkpoint: dict[str, Any] | None) -> Dataset:
        """Open the corpus, with a trained model's vocabulary where the run begins from one."""
        vocabulary = None
        if self.source is not None:
            vocabulary = init_from.vocabulary_of(self.source, self.config)
        elif checkpoint is not None and self.config.init_from is not None:
            vocabulary = vocabulary_from_json(checkpoint["vocabulary"])
        extend = self.source is not None and self.config.init_vocabulary == "extend"
        if not self.is_main:
            self.config = run_config.without_rebuild(self.config)  # the main process has done so
        data = build.open_data(self.config, vocabulary=vocabulary, extend=extend, announce=self.say)
        self.config = run_config.without_rebuild(self.config)  # nor shall a resume do it again
        if self.source is not None:
            init_from.check_vocabulary(self.source, data.vocabulary, self.config)
            if self.source.vocabulary is None:
                self.say(
                    f"note     {self.config.init_from} brings no vocabulary: its ids are taken for this text's, which "
                    "is wrong unless it was trained on this very text"
                )
        return data

    def say(self, line: str) -> None:
        """Print a line on the main process's screen."""
        self.console.print(line, soft_wrap=True, markup=False)

    def _open_folder(self, data: Dataset, trainer: Trainer, recorder: Recorder) -> str:
        """Write what the run is made of, open its logger, and say where to watch it."""
        if not self.is_main:
            return ""
        identity, checkpoint = self.beginning.identity, self.beginning.checkpoint
        if self.beginning.parent is not None:
            assert self.beginning.checkpoint_path is not None
            copy_run(self.beginning.parent, self.folder, checkpoint=self.beginning.checkpoint_path)
        recorder.cut(checkpoint["global_step"] if checkpoint is not None else 0)
        data.vocabulary.save(self.folder / "vocabulary.json")
        identity.write(self.folder)
        run_config.write_config(self.config, self.folder)
        if not isinstance(self.config.logger, WandbConfig) or not build_trainer.wants_logger(self.config):
            return f"none; every figure is in {shown(self.folder)}/metrics.jsonl"
        settings = dataclasses.asdict(self.config)
        monitor = monitors.open_wandb(
            self.config.logger,
            folder=self.folder,
            name=self.config.name or self.folder.name,
            run_id=identity.run_id,
            settings=settings if identity.parent is None else {**settings, "parent": dict(identity.parent)},
        )
        trainer.loggers = [monitor.logger]
        if checkpoint is not None and self.beginning.parent is None:
            monitors.log_again(
                trainer.loggers,
                self.folder / "metrics.jsonl",
                after=step_at_end(self.folder),
                until=checkpoint["global_step"],
            )
        return monitor.where


def _objective(callbacks: build_trainer.Callbacks) -> float | None:
    if math.isfinite(callbacks.checkpoints.best_score):
        return callbacks.checkpoints.best_score
    return callbacks.recorder.latest.loss if callbacks.recorder.latest is not None else None


def _best_score(checkpoint: dict[str, Any]) -> float | None:
    score = float(checkpoint["callbacks"][Checkpoints.__qualname__]["best_score"])
    return score if math.isfinite(score) else None
