"""Where a run begins: anew, from trained weights, where it stopped, over again, or as a branch of another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_xl import run_config
from transformer_xl.commands.cli import AUTO, Call, Configured
from transformer_xl.commands.run_identity import RunIdentity, read_identity
from transformer_xl.commands.run_lock import refuse_if_in_use
from transformer_xl.commands.screen import shown
from transformer_xl.commands.summary import was_finished
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.model.base import LanguageModel
from transformer_xl.resuming import check_belongs, newest_checkpoint
from transformer_xl.settings import replace


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a run begins with.

    Attributes:
        config: its whole configuration.
        identity: what it is over all its processes.
        source: the trained model whose weights it takes; None: none.
        checkpoint: what it goes on from; None: from the start.
        checkpoint_path: where that lies.
        parent: the run that this one is a branch of; None: no branch.
        is_old: whether the folder holds this run already.
        is_done: whether nothing is left to do, though there is no checkpoint that says so.
        notes: what a person should know, a line each.
    """

    config: Config
    identity: RunIdentity
    source: LanguageModel | None = None
    checkpoint: dict[str, Any] | None = None
    checkpoint_path: Path | None = None
    parent: Path | None = None
    is_old: bool = False
    is_done: bool = False
    notes: tuple[str, ...] = ()


def begin(configured: Configured, call: Call, folder: Path) -> Beginning:
    """Find out how the command's run begins.

    Args:
        configured: what the command asks for.
        call: the command.
        folder: of the run.

    Raises:
        UserError: what it asks to go on with is no run, or another one, or its checkpoint cannot be read.
    """
    resume = configured.config.resume
    if resume is not None and resume != AUTO:
        return _resumed(configured, Path(resume).expanduser().absolute(), folder)
    if resume is None or not (folder / "config.yaml").is_file():
        return _new(configured)
    return _continued(configured, call, folder)


def _new(configured: Configured) -> Beginning:
    config = replace(configured.config, resume=None)  # how a process began is no part of what the run is
    source = None if config.init_from is None else load_model(config.init_from)
    return Beginning(config=config, identity=RunIdentity.of_new_run(configured.choices), source=source)


def _continued(configured: Configured, call: Call, folder: Path) -> Beginning:
    """Go on by the command that started the run."""
    found = newest_checkpoint(folder)
    if found is None:
        beginning = _over(_new(configured), folder)
        return dataclasses.replace(beginning, is_done=True, notes=()) if was_finished(folder) else beginning
    path, checkpoint, note = found
    config = run_config.continued_config(folder, configured.config, given=call.given)
    check_belongs(path, checkpoint, config)
    return Beginning(
        config=config,
        identity=_identity_of(folder, checkpoint),
        checkpoint=checkpoint,
        checkpoint_path=path,
        is_old=True,
        notes=(note,) if note else (),
    )


def _over(beginning: Beginning, folder: Path) -> Beginning:
    return dataclasses.replace(
        beginning,
        identity=read_identity(folder) or beginning.identity,
        is_old=True,
        notes=(f"{shown(folder)} has no checkpoint yet: it starts over",),
    )


def _resumed(configured: Configured, run: Path, folder: Path) -> Beginning:
    """Go on with a run in its own folder, or as a branch of it in another."""
    is_branch = folder != run
    if is_branch:
        refuse_if_in_use(run)  # its files would change while they are copied
    found = newest_checkpoint(run)
    config = replace(configured.config, resume=None)
    if found is not None:
        run_config.refuse_changes(run, config, is_branch=is_branch)
    if found is None:
        if is_branch:
            raise UserError(f"resume={run} has no checkpoint yet, and name={config.name} needs one to branch from")
        if was_finished(run):
            raise UserError(f"resume={run} is finished, and holds no checkpoint to go on from: start a new run")
        return _over(_new(configured), run)
    path, checkpoint, note = found
    check_belongs(path, checkpoint, config)
    identity = _identity_of(run, checkpoint)
    if is_branch:
        parent = {"folder": str(run), "run_id": identity.run_id, "step": checkpoint["global_step"]}
        identity = RunIdentity.of_new_run(identity.choices, parent=parent)
    return Beginning(
        config=config,
        identity=identity,
        checkpoint=checkpoint,
        checkpoint_path=path,
        parent=run if is_branch else None,
        is_old=not is_branch,
        notes=(note,) if note else (),
    )


def _identity_of(folder: Path, checkpoint: Mapping[str, Any]) -> RunIdentity:
    identity = read_identity(folder)
    return identity or RunIdentity(run_id=checkpoint["run_id"], choices={}, parent=None)
