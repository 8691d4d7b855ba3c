"""One training run from configuration to report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Trainer
from rich.console import Console

from transformer_xl import build, build_trainer, devices, init_from, run_config
from transformer_xl.commands import going_on, out_of_memory, ranks, report
from transformer_xl.commands.beginning import begin
from transformer_xl.commands.branching import copy_run
from transformer_xl.commands.cli import Call, Configured
from transformer_xl.commands.companions import Companions, end_with_main_process
from transformer_xl.commands.final_report import FinalReport
from transformer_xl.commands.folders import refuse_part_of_a_run
from transformer_xl.commands.outcome import Outcome
from transformer_xl.commands.screen import opening_lines, shown
from transformer_xl.commands.summary import Summary, step_at_end, was_finished
from transformer_xl.config import Config, WandbConfig
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.tokenizer import tokenizer_from_json
from transformer_xl.errors import UserError
from transformer_xl.freed_memory import keep_freed_memory
from transformer_xl.plan import Plan, make_plan
from transformer_xl.settings import plain
from transformer_xl.training import loggers as monitors
from transformer_xl.training import names
from transformer_xl.training.callbacks.checkpoint import validation_is_due
from transformer_xl.training.callbacks.recorder import Recorder
from transformer_xl.training.checkpoint_file import LAST
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.optim import check_installed
from transformer_xl.training.signals import StopSignals


class _Parts(NamedTuple):
    """What a run is made of."""

    data: Dataset
    plan: Plan
    datamodule: LaneDataModule
    module: LanguageModule
    callbacks: build_trainer.Callbacks
    trainer: Trainer
    begins_trained: bool


class TrainingRun:
    """Builds in order, trains, reports; leaves everything about the run in its folder."""

    def __init__(self, configured: Configured, call: Call, folder: Path, signals: StopSignals) -> None:
        """Check the whole configuration before anything is read or written."""
        end_with_main_process()
        self.folder = folder
        self.command = call.command
        self.signals = signals
        self.companions = Companions()
        self.is_main = ranks.is_main()
        self.beginning = begin(configured, call, folder)
        self.source = self.beginning.source
        check_installed(self.beginning.config.optimizer)
        self.config: Config = devices.with_device_settings(self.beginning.config)
        self.console = Console(quiet=not self.is_main, highlight=False)
        self.summary = Summary(command=call.command, parent=self.beginning.identity.parent)
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
        for note in self.beginning.notes:
            self.say(f"note     {note}")
        if self.beginning.is_done:
            self.say(f"{shown(self.folder)} is finished")
            return None
        data = self._open_data()
        plan = make_plan(self.config, data)
        self.config = build.with_total_steps(self.config, plan)
        checkpoint = self.beginning.checkpoint
        if checkpoint is not None and self._is_finished(checkpoint, plan):
            self.say(going_on.finished_line(checkpoint, plan, folder=self.folder))
            return going_on.best_score(checkpoint)
        del checkpoint
        return self._train_and_report(self._make_parts(data, plan))

    def _is_finished(self, checkpoint: Mapping[str, Any], plan: Plan) -> bool:
        step = checkpoint["global_step"]
        return step >= plan.max_steps and was_finished(self.folder, step=step) and self.beginning.parent is None

    def _make_parts(self, data: Dataset, plan: Plan) -> _Parts:
        """Make what trains, and refuse a checkpoint that does not fit it."""
        config, beginning = self.config, self.beginning
        if beginning.checkpoint is not None:
            of_run = shown(beginning.parent or self.folder)
            going_on.refuse_other_data(beginning.checkpoint, data, plan, config=config, of_run=of_run)
        model = build.make_network(config, data, source=self.source, announce=self.say)
        begins_trained, self.source = self.source is not None, None  # what was copied need not be kept
        datamodule = build.make_datamodule(config, data, plan)
        module = build.make_module(config, model, plan)
        callbacks = build_trainer.make_callbacks(
            config,
            data,
            model,
            plan,
            datamodule,
            folder=self.folder,
            signals=self.signals,
            run_id=beginning.identity.run_id,
        )
        trainer = build_trainer.make_trainer(config, plan, callbacks, folder=self.folder)
        if beginning.checkpoint is not None and beginning.checkpoint_path is not None:
            going_on.refuse_other_weights(beginning.checkpoint_path, beginning.checkpoint, module)
        self.summary.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.summary.data_checksum = data.fingerprint.sha256
        return _Parts(data, plan, datamodule, module, callbacks, trainer, begins_trained)

    def _train_and_report(self, parts: _Parts) -> float | None:
        data, plan, datamodule, module, callbacks, trainer, begins_trained = parts
        if trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()
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
            for line in opening_lines(
                self.config, data, module.model, plan, trainer, folder=self.folder, monitor=monitor
            ):
                self.say(line)
            if self.beginning.checkpoint is not None:
                parent = self.beginning.parent
                for line in going_on.resumed_lines(
                    self.beginning.checkpoint, module.schedule, plan, config=self.config, parent=parent
                ):
                    self.say(line)
                self.beginning = replace(self.beginning, checkpoint=None)  # Lightning reads it again: one is enough
            self.companions.start(self.command, self.folder, trainer)
            self.signals.hold()
            if begins_trained and plan.validate_every is not None:
                trainer.validate(module, datamodule=datamodule, verbose=False)
                start = report.worded(module.scores[names.VALIDATION], data, split="valid")
                self.say(f"start    {start} on the validation split")
            if plan.max_steps > 0:
                trainer.fit(module, datamodule=datamodule, ckpt_path=self._checkpoint_path, weights_only=True)
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
                others_are_done=self._others_are_done,
            ).make(is_main=self.is_main)
            if self.summary.objective is None and names.VALIDATION in module.scores:
                validated = module.scores[names.VALIDATION]
                self.summary.objective = validated.loss if validated.tokens else None  # of a branch with no step left
        return self.summary.objective

    def _open_data(self) -> Dataset:
        """Open the corpus, with a trained model's vocabulary where the run begins from one."""
        vocabulary = None
        if self.source is not None:
            vocabulary = init_from.vocabulary_of(self.source, self.config)
        elif self.beginning.checkpoint is not None and self.config.init_from is not None:
            vocabulary = tokenizer_from_json(self.beginning.checkpoint["vocabulary"])
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

    def _others_are_done(self) -> None:
        """Let this process stop at any moment from here on: no other waits for it."""
        self.companions.dismiss()
        self.signals.release()

    def say(self, line: str) -> None:
        """Print a line on the main process's screen."""
        self.console.print(line, soft_wrap=True, markup=False)

    @property
    def _checkpoint_path(self) -> Path | None:
        """Give what training goes on from; a branch has a copy of its own by now."""
        return self.folder / "checkpoints" / LAST if self.beginning.parent else self.beginning.checkpoint_path

    def _open_folder(self, data: Dataset, trainer: Trainer, recorder: Recorder) -> str:
        """Write what the run is made of, open its logger, and say where to watch it."""
        if not self.is_main:
            return ""
        identity, checkpoint = self.beginning.identity, self.beginning.checkpoint
        if self.beginning.parent is not None:
            assert self.beginning.checkpoint_path is not None
            copy_run(self.beginning.parent, self.folder, checkpoint=self.beginning.checkpoint_path)
        if checkpoint is None:
            recorder.cut(0, validated=True)
        else:
            recorder.cut(checkpoint["global_step"], validated=not validation_is_due(checkpoint))
        data.vocabulary.save(self.folder / "vocabulary.json")
        identity.write(self.folder)
        run_config.write_config(self.config, self.folder)
        if not isinstance(self.config.logger, WandbConfig) or not build_trainer.wants_logger(self.config):
            return f"none; every figure is in {shown(self.folder)}/metrics.jsonl"
        settings = plain(self.config)
        monitor = monitors.open_wandb(
            self.config.logger,
            folder=self.folder,
            name=self.config.name or self.folder.name,
            run_id=identity.run_id,
            settings=settings if identity.parent is None else {**settings, "parent": dict(identity.parent)},
        )
        if monitor.logger is not None:
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
