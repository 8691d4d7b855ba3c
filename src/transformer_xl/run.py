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

from transformer_xl import devices, init_from, processes
from transformer_xl.config import Config, WandbConfig
from transformer_xl.data.tokenizer import load_vocabulary
from transformer_xl.data_config import StoredConfig
from transformer_xl.errors import Stopped, UserError, program
from transformer_xl.interop.load import load_model
from transformer_xl.registry import lookup, names
from transformer_xl.resume import A_BRANCH, ANY_RESUME, Found, continued, newest_checkpoint, refuse_changes
from transformer_xl.run_folder import (
    AUTO,
    Identity,
    Summary,
    claim_now,
    config_of,
    locked,
    read_identity,
    refuse_if_in_use,
    shown,
    slug,
    write_config,
)
from transformer_xl.settings import parse, plain, replace
from transformer_xl.training import wandb as monitors
from transformer_xl.training.checkpoint import LAST, validation_is_due
from transformer_xl.training.optim import check_installed
from transformer_xl.training.stopping import StopSignals, stopped_by

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from transformer_xl.data.lanes import Dataset
    from transformer_xl.data.tokenizer import Tokenizer
    from transformer_xl.model.base import LanguageModel


def _copy_parent(parent: Path, folder: Path, *, checkpoint: Path) -> None:
    """Copy a run's checkpoints and figures into its branch's folder; the parent's files stay as they are."""
    unfinished = folder / "checkpoints.tmp"  # killed while it is copied, the branch can be begun again
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    best = checkpoint.with_name("best.ckpt")
    if best.is_file():
        shutil.copyfile(best, unfinished / "best.ckpt")
    shutil.copyfile(checkpoint, unfinished / LAST)
    if (parent / "metrics.jsonl").is_file():
        shutil.copyfile(parent / "metrics.jsonl", folder / "metrics.jsonl")
    os.replace(unfinished, folder / "checkpoints")


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
        folder: of the run.
        config: resolved; what follows from the corpus is filled in as it becomes known.
        identity: what it is over all its processes.
        is_main: whether this process writes files and prints.
        signals: that stop it.
        initial_weights: the trained model that it begins from; None: none.
        checkpoint: what training goes on from; None: from the start.
        found: what it holds, on the main process until training begins.
        parent: folder of the run that this one is a branch of.
        notes: what a person should know, a line each.
        is_done: whether nothing is left to do.
        step: the optimizer step at which it starts.
        given: keys and groups that the command names itself; None: not known.
        summary: what `summary.json` will say.
        monitor: where to watch it, in words.
        trainer: once it is made.
        tokens_after: tokens read after an optimizer step.
    """

    folder: Path
    config: Config
    identity: Identity
    is_main: bool
    signals: StopSignals
    initial_weights: LanguageModel | None = None
    checkpoint: Path | None = None
    found: Found | None = None
    parent: Path | None = None
    notes: list[str] = field(default_factory=list)
    is_done: bool = False
    step: int = 0
    given: Collection[str] | None = None
    summary: Summary = field(default_factory=Summary)
    monitor: str = ""
    trainer: Trainer | None = None
    tokens_after: Callable[[int], int] = lambda step: 0
    has_begun: bool = False

    def say(self, line: str) -> None:
        """Print a line on the first process's screen."""
        if self.is_main:
            print(line, flush=True)

    def names(self, key: str) -> bool:
        """Return whether the command itself names a setting."""
        return self.given is None or key in self.given

    def was_finished(self, max_steps: int) -> bool:
        """Return whether nothing is left to do, in training and in the report."""
        is_at_end = self.checkpoint is not None and self.step >= max_steps and self.parent is None
        return is_at_end and Summary.read(self.folder).was_finished(step=self.step)

    @property
    def vocabulary(self) -> Tokenizer | None:
        """What the corpus must be read with where the run's weights were not drawn here; None: the text's own."""
        if self.initial_weights is not None:
            return init_from.vocabulary_of(self.initial_weights, self.config)
        if self.checkpoint is not None and self.config.init_from is not None:
            return load_vocabulary((self.parent or self.folder) / "vocabulary.json")
        return None

    def message(self) -> dict[str, Any]:
        """Return what the other processes need, as plain containers."""
        return {
            "folder": str(self.folder),
            "config": plain(self.config),
            "run_id": self.identity.run_id,
            "begins_trained": self.initial_weights is not None,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "step": self.step,
            "parent": None if self.parent is None else str(self.parent),
        }

    def refuse_other(self, corpus: Dataset, *, max_steps: int) -> None:
        """Refuse to go on with another text or vocabulary, or to a step that lies behind.

        Raises:
            UserError: which of these it is.
        """
        if self.step > max_steps:
            raise UserError(
                f"trainer.max_steps is {max_steps}, and {shown(self.parent or self.folder)} is at step {self.step} "
                "already: a resume needs at least that many"
            )
        if self.found is not None:
            self.found.refuse_other_data(corpus)

    def begin(
        self, corpus: Dataset, trainer: Trainer, tokens_after: Callable[[int], int], *, cut: Callable[..., None]
    ) -> None:
        """Write what the run is made of, on the main process, and tell the processes that Lightning will start.

        Args:
            corpus: opened.
            trainer: made, not yet used.
            tokens_after: tokens read after an optimizer step, over all lanes.
            cut: drops what was logged after a step.
        """
        self.trainer, self.tokens_after, self.has_begun = trainer, tokens_after, True
        self.summary.data_checksum, self.summary.read_as = corpus.fingerprint.sha256, dict(corpus.read_as)
        if not self.is_main:
            return
        if self.parent is not None and self.checkpoint is not None:
            _copy_parent(self.parent, self.folder, checkpoint=self.checkpoint)
            self.checkpoint = self.folder / "checkpoints" / LAST
        cut(self.step, validated=self.found is None or not validation_is_due(self.found.state))
        corpus.vocabulary.save(self.folder / "vocabulary.json")
        self.identity.write(self.folder)
        write_config(self.config, self.folder)
        self._open_logger(trainer)
        processes.announce(self.message())

    def _open_logger(self, trainer: Trainer) -> None:
        """Open the run's logger, and log again what a killed process took along."""
        logger, folder, identity = self.config.logger, self.folder, self.identity
        if logger.kind in names("logger"):
            trainer.loggers = [lookup("logger", logger.kind).factory(logger, self)]
            self.monitor = f"{logger.kind}, and every figure is in {shown(folder)}/metrics.jsonl"
            return
        if not isinstance(logger, WandbConfig) or self.config.trainer.fast_dev_run:
            self.monitor = f"none; every figure is in {shown(folder)}/metrics.jsonl"
            return
        settings, name = plain(self.config), self.config.name or os.environ.get("WANDB_NAME")
        if "WANDB_PROJECT" in os.environ and not self.names("logger.project"):
            logger = replace(logger, project=os.environ["WANDB_PROJECT"])
        if "WANDB_TAGS" in os.environ and not self.names("logger.tags"):
            logger = replace(logger, tags=os.environ["WANDB_TAGS"].split(","))
        monitor = monitors.open_wandb(
            logger,
            folder=folder,
            name=name or folder.name,
            run_id=identity.run_id,
            settings=settings if identity.parent is None else {**settings, "parent": dict(identity.parent)},
        )
        self.monitor = monitor.where
        if monitor.logger is not None:
            trainer.loggers = [monitor.logger]
        if self.found is not None and self.parent is None:
            after = Summary.read(folder).step
            monitors.log_again(trainer.loggers, folder / "metrics.jsonl", after=after, until=self.step)

    def without_rebuild(self) -> None:
        """Note that the token files are ready: neither a resume nor another process shall build them again."""
        data = self.config.data
        if isinstance(data, StoredConfig):
            self.config = replace(self.config, data=replace(data, rebuild=False))

    def reason(self, raised: BaseException) -> BaseException:
        """Return why the run ended, where what was raised is only that another process does not answer."""
        if not processes.is_broken_connection(raised):
            return raised
        if "EADDRINUSE" in str(raised):
            return UserError(f"MASTER_PORT is {os.environ.get('MASTER_PORT')}, and another program listens there")
        if self.signals.received is not None:
            return stopped_by(self.signals.received)
        step = max(self.step, self.trainer.global_step if self.trainer is not None else 0)
        advice = f": the run was stopped at step {step}"
        if (self.folder / "checkpoints" / LAST).is_file():
            advice += (
                f"; go on from its last checkpoint with: {program('train')} resume={shlex.quote(str(self.folder))}"
            )
        return Stopped(f"{processes.lost_process(self.trainer)}{advice}", exit_code=1)

    def end(self, error: BaseException | None) -> None:
        """Tell `summary.json` and the loggers how the run ended."""
        if not self.is_main or not self.has_begun:
            return
        summary = self.summary
        summary.status, summary.exit_code = _status_of(error)
        monitors.finish(summary.exit_code)
        summary.step = self.trainer.global_step if self.trainer is not None else 0
        summary.tokens = self.tokens_after(summary.step)
        try:
            summary.write(self.folder)
        except OSError:
            if error is None:
                raise  # otherwise the reason why the run ends has more to say


def _status_of(error: BaseException | None) -> tuple[str, int]:
    if error is None:
        return "finished", 0
    if isinstance(error, Stopped):
        return "failed" if error.exit_code == 1 else "stopped", error.exit_code
    return "failed", 2 if isinstance(error, UserError) else 1


@contextlib.contextmanager
def open_run(ask: Callable[[], tuple[Config, Command]]) -> Iterator[Run]:
    """Open a run: its folder, its lock, and how it starts; at the end tell how it ended.

    Args:
        ask: gives configuration and command; called on the first process alone.

    Raises:
        UserError: what is to go on is no run, or another one, or in use, or its checkpoint cannot be read.
    """
    is_main = processes.is_main()
    run: Run | None = None
    with contextlib.ExitStack() as stack:
        try:
            meeting = stack.enter_context(processes.together())
            signals = stack.enter_context(StopSignals(speaks=is_main))
            if is_main:
                run = _decide(*ask(), signals, stack)
                meeting.tell({"finished": str(run.folder)} if run.is_done else run.message())
            else:
                run = _follow(meeting.hear(), signals)
            yield run
            run.end(None)
            if not run.is_done:
                meeting.leave()
        except BaseException as raised:
            error = raised if run is None else run.reason(raised)
            if run is not None:
                run.end(error)
            processes.end_quietly(error)
            if error is raised:
                raise
            raise error from raised


def _follow(message: dict[str, Any] | None, signals: StopSignals) -> Run:
    """Take part in the run that the first process has decided on."""
    if message is None:
        raise SystemExit(0)  # it says why
    if "finished" in message:
        folder = Path(message["finished"])
        summary, identity = Summary.read(folder), Identity.new({})
        return Run(
            folder=folder,
            config=config_of(folder),
            identity=identity,
            is_main=False,
            signals=signals,
            is_done=True,
            summary=summary,
        )
    config = parse(Config, message["config"])
    checkpoint, parent = (None if message[name] is None else Path(message[name]) for name in ("checkpoint", "parent"))
    return Run(
        folder=Path(message["folder"]),
        config=config,
        identity=Identity(run_id=message["run_id"], choices={}, parent=None),
        is_main=False,
        signals=signals,
        initial_weights=load_model(str(config.init_from)) if message["begins_trained"] else None,
        checkpoint=checkpoint,
        step=message["step"],
        parent=parent,
    )


def _decide(config: Config, command: Command, signals: StopSignals, stack: contextlib.ExitStack) -> Run:
    """Find out how the command's run starts, and hold its folder."""
    resume, config = config.resume, replace(config, resume=None)  # how a process began is no part of what the run is
    origin = None if resume in (None, AUTO) else Path(os.path.expanduser(str(resume))).absolute()
    devices.with_device_settings(config)  # whose mistakes need no folder
    folder = _folder(config, command, origin, resume)
    is_own = folder == origin or (resume == AUTO and (folder / "config.yaml").is_file())
    if not is_own:
        _refuse_used_folder(folder, named=config.name if command.folder is None else None)
    is_new = not folder.exists() or not any(folder.iterdir())
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(locked(folder))
    if is_new:
        stack.callback(_remove_if_unused, folder)
    if origin is None and is_own:
        origin = folder
    run = Run(
        folder=folder,
        config=config,
        identity=Identity.new(command.choices),
        is_main=True,
        signals=signals,
        given=command.given,
        summary=Summary(command=command.typed),
    )
    if command.folder is None and config.name is not None and slug(config.name) != config.name:
        run.notes.append(f"note     name={config.name} stands for the folder {shown(folder)}")
    if origin is not None:
        _go_on(run, origin, command, is_auto=resume == AUTO)
    elif config.init_from is not None:
        run.initial_weights = load_model(config.init_from)
    run.config = devices.with_device_settings(run.config)
    check_installed(run.config.optimizer)
    run.summary.parent = run.identity.parent
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
        names = (command.choices.get("model", config.model.kind), command.choices.get("data", config.data.kind))
        return claim_now(Path("outputs"), *names).absolute()
    if not config.name:
        raise UserError("name is empty, and must hold at least one character, or be left out")
    return Path("outputs", slug(config.name)).absolute()


def _refuse_used_folder(folder: Path, *, named: str | None) -> None:
    who = f"the folder {folder}" if named is None else f"name={named} stands for the folder {folder}, which"
    if (folder / "config.yaml").exists():
        raise UserError(f"{who} holds a run already: go on with it by resume={folder}, or name another")
    if (folder / "checkpoints").exists():
        raise UserError(
            f"the folder {folder} holds checkpoints and no config.yaml, so that nothing can go on in it: put its "
            "config.yaml back, or move the folder away"
        )


def _remove_if_unused(folder: Path) -> None:
    """Remove a folder that this process made and a mistake left empty."""
    with contextlib.suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {"run.lock"}:
            (folder / "run.lock").unlink(missing_ok=True)
            folder.rmdir()


def _go_on(run: Run, origin: Path, command: Command, *, is_auto: bool) -> None:
    """Let a run go on from the newest checkpoint of a run folder: its own, or that of the run it is a branch of."""
    is_branch = origin != run.folder
    if is_branch:
        refuse_if_in_use(origin)  # its files would change while they are copied
    identity, found = read_identity(origin), newest_checkpoint(origin)
    if found is None:
        _start_over(run, origin, identity, is_auto=is_auto, is_branch=is_branch)
        return
    run.found, run.checkpoint, run.step = found, found.path, int(found.state["global_step"])
    run.notes += [found.note] if found.note else []
    if is_auto:
        run.config = continued(origin, run.config, command.given)
    may_change = (*ANY_RESUME, *A_BRANCH) if is_branch else ANY_RESUME
    refuse_changes(plain(config_of(origin)), run.config, of=origin, may_change=may_change)
    refuse_changes(found.state["config"], run.config, of=found.path, may_change=(*ANY_RESUME, *A_BRANCH))
    run.identity = identity or Identity(run_id=found.state["run_id"], choices={}, parent=None)
    if is_branch:
        parent = {"folder": str(origin), "run_id": run.identity.run_id, "step": run.step}
        run.identity, run.parent = Identity.new(run.identity.choices, parent=parent), origin


def _start_over(run: Run, origin: Path, identity: Identity | None, *, is_auto: bool, is_branch: bool) -> None:
    """Start a run again that has no checkpoint yet; before that, every setting may be changed."""
    if is_branch:
        raise UserError(f"resume={origin} has no checkpoint yet, and name={run.config.name} needs one to branch from")
    if Summary.read(origin).was_finished():
        if not is_auto:
            raise UserError(f"resume={origin} is finished, and holds no checkpoint to go on from: start a new run")
        run.is_done, run.summary = True, Summary.read(origin)
        run.notes.append(f"{shown(origin)} is finished")
        return
    run.identity = identity or run.identity
    run.notes.append(f"{shown(origin)} has no checkpoint yet: it starts over")
    if run.config.init_from is not None:
        run.initial_weights = load_model(run.config.init_from)
