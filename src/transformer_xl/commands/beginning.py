"""Where a run begins: anew, from trained weights, where it stopped, over again, or as a branch of another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from transformer_xl import build, init_from, run_config
from transformer_xl.commands.command_line import RunContext
from transformer_xl.commands.composing import shipped_config_dir
from transformer_xl.commands.folders import AUTO
from transformer_xl.commands.run_identity import RunIdentity, read_identity
from transformer_xl.commands.run_lock import refuse_if_in_use
from transformer_xl.commands.screen import shown
from transformer_xl.commands.summary import was_finished
from transformer_xl.config import Config
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.model.base import LanguageModel
from transformer_xl.registry import nearest
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


def begin(composed: DictConfig, context: RunContext) -> Beginning:
    """Find out how the command's run begins.

    Raises:
        UserError: what it asks to go on with is no run, or another one, or its checkpoint cannot be read.
    """
    resume = composed.get("resume")
    if resume is not None and resume != AUTO:
        return _resumed(Path(resume).expanduser().absolute(), context)
    if resume is None or not (context.folder / "config.yaml").is_file():
        return _new(composed, context)
    return _continued(composed, context)


def _new(composed: DictConfig, context: RunContext) -> Beginning:
    identity = RunIdentity.of_new_run(context.choices)
    if composed.get("init_from") is None:
        return Beginning(config=_without_resume(build.typed_config(composed)), identity=identity)
    source = load_model(composed.init_from)
    config = build.typed_config(build.composed_from_source(composed, source, given=context.given))
    config = init_from.with_tokenizer(config, source, given=context.given)
    return Beginning(config=_without_resume(config), identity=identity, source=source)


def _without_resume(config: Config) -> Config:
    return replace(config, resume=None)  # how a process began is no part of what the run is


def _continued(composed: DictConfig, context: RunContext) -> Beginning:
    """Go on by the command that started the run."""
    folder = context.folder
    found = newest_checkpoint(folder)
    if found is None:
        beginning = _over(_new(composed, context), folder)
        return dataclasses.replace(beginning, is_done=True, notes=()) if was_finished(folder) else beginning
    path, checkpoint, note = found
    if composed.get("init_from") is not None and "model" not in context.given:
        named = {key.removeprefix("model.") for key in context.given if key.startswith("model.")}
        asked = {name: value for name, value in composed.model.items() if name in named}
        composed = build.composed_with_model(composed, {**run_config.read_config(folder)["model"], **asked})
    config = run_config.continued_config(folder, build.typed_config(composed), given=context.given)
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


def _resumed(folder: Path, context: RunContext) -> Beginning:
    """Go on with a run in its own folder, or as a branch of it in another."""
    is_branch = context.folder != folder
    if is_branch:
        refuse_if_in_use(folder)  # its files would change while they are copied
    identity = read_identity(folder)
    found = newest_checkpoint(folder)
    config = run_config.resumed_config(
        folder,
        _with_loggers(context.overrides),
        is_branch=is_branch,
        has_begun=found is not None,
        choices=identity.choices if identity is not None else {},
    )
    if found is None:
        if is_branch:
            raise UserError(f"resume={folder} has no checkpoint yet, and name={config.name} needs one to branch from")
        if was_finished(folder):
            raise UserError(f"resume={folder} is finished, and holds no checkpoint to go on from: start a new run")
        source = load_model(config.init_from) if config.init_from is not None else None
        new = Beginning(config=config, identity=RunIdentity.of_new_run(context.choices), source=source)
        return _over(new, folder)
    path, checkpoint, note = found
    check_belongs(path, checkpoint, config)
    identity = _identity_of(folder, checkpoint)
    if is_branch:
        parent = {"folder": str(folder), "run_id": identity.run_id, "step": checkpoint["global_step"]}
        identity = RunIdentity.of_new_run(identity.choices, parent=parent)
    return Beginning(
        config=config,
        identity=identity,
        checkpoint=checkpoint,
        checkpoint_path=path,
        parent=folder if is_branch else None,
        is_old=not is_branch,
        notes=(note,) if note else (),
    )


def _identity_of(folder: Path, checkpoint: Mapping[str, Any]) -> RunIdentity:
    identity = read_identity(folder)
    return identity or RunIdentity(run_id=checkpoint["run_id"], choices={}, parent=None)


def _with_loggers(overrides: Mapping[str, object]) -> dict[str, object]:
    """Replace the choice of a logger by its settings: a resume may turn one on or off."""
    overrides = dict(overrides)
    choice = overrides.get("logger")
    if isinstance(choice, str):
        files = {path.stem: path for path in (shipped_config_dir() / "logger").glob("*.yaml")}
        if choice not in files:
            raise UserError(f"logger={choice} is none of conf/logger ({nearest(choice, list(files))})")
        overrides["logger"] = yaml.safe_load(files[choice].read_text(encoding="utf-8"))
    return overrides
