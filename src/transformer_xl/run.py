"""How a run starts: new, from trained weights, where it stopped, or as a branch of another run; and how it ends.

The first process decides, by `_decide`; the others get folder and resolved configuration from it (`processes.py`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_xl import processes
from transformer_xl.config import Config, WandbConfig
from transformer_xl.errors import Stopped, UserError
from transformer_xl.interop.load import load_model
from transformer_xl.registry import lookup, program
from transformer_xl.resume import Found, newest_checkpoint, refuse_changes
from transformer_xl.run_folder import (
    AUTO,
    Identity,
    Summary,
    claim,
    config_of,
    locked,
    moment,
    read_identity,
    refuse_if_in_use,
    shown,
    slug,
    write_config,
)
from transformer_xl.run_length import with_precision
from transformer_xl.settings import parse, plain, replace
from transformer_xl.training import wandb as monitors
from transformer_xl.training.checkpoint import LAST, validation_is_due
from transformer_xl.training.stopping import StopSignals, stopped_by

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from transformer_xl.build import Built
    from transformer_xl.data.lanes import Dataset
    from transformer_xl.model.base import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Command:
    """What is known of the command that starts a run, beside its configuration.

    Attributes:
        typed: its arguments as the user typed them, the program first.
        folder: the run folder that it names; None: none.
        given: the keys and groups that it names itself; None: all.
        choices: group -> choice.
    """

    typed: list[str] = field(default_factory=list)
    folder: Path | None = None
    given: Collection[str] | None = None
    choices: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Run:
    """A run that this process takes part in.

    Attributes:
        config: resolved; what follows from the corpus is filled in as it becomes known.
        command: that started it; known on the main process.
        summary: what `summary.json` will say.
        checkpoint: what training goes on from; None: from the start.
        step: the optimizer step at which it starts.
        initial_weights: the trained model that it begins from; None: none.
        found: what the checkpoint holds, on the main process until training begins.
        parent: folder of the run that this one is a branch of, on the main process.
        monitor: where to watch it, in words.
        trainer: once training begins.
        tokens_after: tokens read after an optimizer step.
    """

    folder: Path
    config: Config
    identity: Identity
    signals: StopSignals
    command: Command = field(default_factory=Command)
    summary: Summary = field(default_factory=Summary)
    checkpoint: Path | None = None
    step: int = 0
    initial_weights: LanguageModel | None = None
    found: Found | None = None
    parent: Path | None = None
    monitor: str = ""
    trainer: Trainer | None = None
    tokens_after: Callable[[int], int] = lambda step: 0

    def say(self, line: str) -> None:
        """Print a line on the first process's screen."""
        if processes.is_main():
            print(line, flush=True)

    def names(self, key: str) -> bool:
        """Return whether the command itself names a setting."""
        return self.command.given is None or key in self.command.given

    def is_finished(self, corpus: Dataset, *, max_steps: int) -> bool:
        """Return whether nothing is left to do, in training and in the report.

        Raises:
            UserError: the run cannot go on with this text or vocabulary, or to a step that lies behind.
        """
        name, summary = shown(self.parent or self.folder), Summary.read(self.folder)
        was_finished = summary.status == "finished" and summary.step == self.step
        if self.step > max_steps:
            raise UserError(f"trainer.max_steps is {max_steps}, and must be at least {self.step}, the step of {name}")
        if self.checkpoint is None and was_finished and self.step < max_steps:
            raise UserError(f"{name} is finished, and holds no checkpoint to go on from: start a new run")
        if self.found is not None:
            self.found.refuse_other_data(corpus)
        return was_finished and self.step == max_steps

    def message(self) -> dict[str, Any]:
        """Return what the other processes need, as plain containers."""
        return {
            "folder": str(self.folder),
            "config": plain(self.config),
            "run_id": self.identity.run_id,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "step": self.step,
        }

    def begin(self, built: Built) -> None:
        """Write what the run is made of, on the main process, and tell the processes that Lightning will start."""
        corpus = built.corpus
        self.trainer, self.tokens_after = built.trainer, built.data.tokens_after
        self.summary.data_checksum, self.summary.read_as = corpus.fingerprint.sha256, dict(corpus.read_as)
        if not processes.is_main():
            return
        if self.parent is not None:
            self._copy_parent()
        built.recorder.cut(self.step, validated=self.found is None or not validation_is_due(self.found.state))
        corpus.vocabulary.save(self.folder / "vocabulary.json")
        self.identity.write(self.folder)
        write_config(self.config, self.folder)
        self._open_logger(built.trainer)
        processes.announce(self.message())

    def _copy_parent(self) -> None:
        """Copy a run's checkpoints and figures into its branch's folder; the parent's files stay as they are."""
        assert self.parent is not None
        assert self.checkpoint is not None
        unfinished = self.folder / "checkpoints.tmp"  # killed while it is copied, the branch can be begun again
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        best, log = self.checkpoint.with_name("best.ckpt"), self.parent / "metrics.jsonl"
        copies = {best: unfinished / "best.ckpt", self.checkpoint: unfinished / LAST, log: self.folder / log.name}
        for source, target in copies.items():
            if source.is_file():
                shutil.copyfile(source, target)
        os.replace(unfinished, self.folder / "checkpoints")
        self.checkpoint = self.folder / "checkpoints" / LAST

    def _open_logger(self, trainer: Trainer) -> None:
        """Open the run's logger, and log again what a killed process took along."""
        logger, folder, identity = self.config.logger, self.folder, self.identity
        self.monitor = f"{logger.kind}; every figure is in {shown(folder)}/metrics.jsonl"
        if not isinstance(logger, WandbConfig):
            if logger.kind != "none":
                trainer.loggers = [lookup("logger", logger.kind).factory(logger, self)]
            return
        monitor = monitors.open_wandb(
            logger,
            folder=folder,
            name=self.config.name or os.environ.get("WANDB_NAME") or folder.name,
            run_id=identity.run_id,
            settings=plain(self.config) | ({} if identity.parent is None else {"parent": dict(identity.parent)}),
        )
        self.monitor = monitor.where
        if monitor.logger is not None:
            trainer.loggers = [monitor.logger]
        if self.found is not None and self.parent is None:
            after = Summary.read(folder).step
            monitors.log_again(trainer.loggers, folder / "metrics.jsonl", after=after, until=self.step)

    def reason(self, raised: BaseException) -> BaseException:
        """Return why the run ended, where what was raised is only that another process does not answer."""
        if not processes.is_broken_connection(raised):
            return raised
        if self.signals.received is not None:
            return stopped_by(self.signals.received)
        step = max(self.step, self.trainer.global_step if self.trainer is not None else 0)
        advice = f": the run was stopped at step {step}"
        if (self.folder / "checkpoints" / LAST).is_file():
            advice += f"; go on with: {program('train')} resume={shlex.quote(str(self.folder))}"
        return Stopped(f"{processes.lost_process(self.trainer)}{advice}", exit_code=1)

    def end(self, error: BaseException | None) -> None:
        """Tell `summary.json` and the loggers how the run ended."""
        if self.trainer is None or not processes.is_main():
            return
        summary, code = self.summary, 0
        if error is not None:
            code = error.exit_code if isinstance(error, Stopped) else 2 if isinstance(error, UserError) else 1
        is_stop = isinstance(error, Stopped) and code != 1
        summary.status = "finished" if error is None else "stopped" if is_stop else "failed"
        summary.exit_code, summary.step = code, self.trainer.global_step
        summary.tokens = self.tokens_after(summary.step)
        monitors.finish(code)
        try:
            summary.write(self.folder)
        except OSError:
            if error is None:
                raise  # otherwise the reason why the run ends has more to say


@contextlib.contextmanager
def open_run(ask: Callable[[], tuple[Config, Command]]) -> Iterator[Run]:
    """Open a run: its folder, its lock, and how it starts; at the end tell how it ended.

    Args:
        ask: gives configuration and command; called on the first process alone.

    Raises:
        UserError: what is to go on is no run, or another one, or in use, or its checkpoint cannot be read.
    """
    run: Run | None = None
    with contextlib.ExitStack() as stack:

        def decide() -> dict[str, Any]:
            nonlocal run
            run = _decide(*ask(), signals, stack)
            return run.message()

        try:
            stack.enter_context(processes.together())
            signals = stack.enter_context(StopSignals(speaks=processes.is_main()))
            message = processes.share(decide)
            run = run or _follow(message, signals)
            if run.config.init_from is not None and run.checkpoint is None:
                run.initial_weights = load_model(run.config.init_from)
            yield run
            run.end(None)
            processes.leave()
        except BaseException as raised:
            error = raised if run is None else run.reason(raised)
            if run is not None:
                run.end(error)
            processes.end_quietly(error)
            if error is raised:
                raise
            raise error from raised


def _follow(message: dict[str, Any], signals: StopSignals) -> Run:
    """Take part in the run that the first process has decided on."""
    return Run(
        folder=Path(message["folder"]),
        config=parse(Config, message["config"]),
        identity=Identity(run_id=message["run_id"]),
        signals=signals,
        checkpoint=None if message["checkpoint"] is None else Path(message["checkpoint"]),
        step=message["step"],
    )


def _decide(config: Config, command: Command, signals: StopSignals, stack: contextlib.ExitStack) -> Run:
    """Find out how the command's run starts, and hold its folder."""
    resume, config = config.resume, replace(config, resume=None)  # how a process began is no part of what the run is
    if config.plan is not None:
        raise UserError("plan is given, and is for the command line of train.py alone, which then trains nothing")
    config = with_precision(config)
    origin = None if resume in (None, AUTO) else Path(os.path.expanduser(str(resume))).absolute()
    folder = _folder(config, command, origin, resume)
    if origin is None and resume == AUTO and (folder / "config.yaml").is_file():
        origin = folder
    if folder != origin and ((folder / "config.yaml").exists() or (folder / "checkpoints").exists()):
        raise UserError(f"the folder {folder} holds a run already: go on with it by resume={folder}, or name another")
    is_new = not folder.exists() or not any(folder.iterdir())
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(locked(folder))
    if is_new:
        stack.callback(_remove_if_unused, folder)
    run = Run(
        folder=folder,
        config=config,
        identity=Identity.new(command.choices),
        signals=signals,
        command=command,
        summary=Summary(command=command.typed),
    )
    if command.folder is None and config.name is not None and slug(config.name) != config.name:
        run.say(f"note     name={config.name} stands for the folder {shown(folder)}")
    if origin is not None:
        _go_on(run, origin)
    return run


def _folder(config: Config, command: Command, origin: Path | None, resume: str | None) -> Path:
    """Return the folder of the run; one that is named after the time is made."""
    if origin is not None and config.name in (None, config_of(origin).name):
        if command.folder not in (None, origin):
            raise UserError("hydra.run.dir cannot be given with resume=, which goes on in the run's own folder")
        return origin
    if command.folder is not None:
        return command.folder
    if config.name is None:
        if resume == AUTO:
            raise UserError(f"resume={AUTO} finds a run by its name: add name=NAME, or hydra.run.dir=FOLDER")
        chosen = (command.choices.get("model", config.model.kind), command.choices.get("data", config.data.kind))
        return claim(Path("outputs"), "-".join([moment(), *map(slug, chosen)])).absolute()
    if not config.name:
        raise UserError("name is empty, and must hold at least one character, or be left out")
    return Path("outputs", slug(config.name)).absolute()


def _remove_if_unused(folder: Path) -> None:
    """Remove a folder that this process made and a mistake left empty."""
    with contextlib.suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {"run.lock"}:
            (folder / "run.lock").unlink(missing_ok=True)
            folder.rmdir()


def _go_on(run: Run, origin: Path) -> None:
    """Let a run go on from the newest checkpoint of a run folder: its own, or that of the run it is a branch of."""
    is_branch = origin != run.folder
    if is_branch:
        refuse_if_in_use(origin)  # its files would change while they are copied
    found, summary = newest_checkpoint(origin), Summary.read(origin)
    run.identity = read_identity(origin) or run.identity
    if found is None:
        if is_branch:
            raise UserError(f"resume={origin} has no checkpoint yet, and name={run.config.name} needs one to branch")
        if summary.status == "finished":
            run.step = summary.step
        else:
            run.say(f"{shown(origin)} has no checkpoint yet: it starts over")
        return
    refuse_changes(plain(config_of(origin)), run.config, of=origin, is_branch=is_branch)
    refuse_changes(found.state["config"], run.config, of=found.path, is_branch=True)
    run.found, run.checkpoint, run.step = found, found.path, int(found.state["global_step"])
    if found.note:
        run.say(found.note)
    if is_branch:
        parent = {"folder": str(origin), "run_id": run.identity.run_id, "step": run.step}
        run.identity, run.parent = Identity.new(run.identity.choices, parent=parent), origin
    run.summary.parent = run.identity.parent
