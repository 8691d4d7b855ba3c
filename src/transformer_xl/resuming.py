"""Which checkpoint a run goes on from, and whether it is the run's own: told before any long work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_xl.config import Config
from transformer_xl.errors import DamagedError, UserError
from transformer_xl.interop.native import CHECKPOINT_FORMAT, read_checkpoint
from transformer_xl.resume_rules import Change, who_may_change
from transformer_xl.settings import plain
from transformer_xl.training.checkpoint_file import LAST, step_checkpoints

_NAMED = 3
"""Differences that a message names."""


class Found(NamedTuple):
    """A checkpoint to go on from: its path, what it holds, and a line for the user where it is not `last.ckpt`."""

    path: Path
    contents: dict[str, Any]
    note: str | None


def checkpoints_of(folder: Path) -> list[Path]:
    """List the checkpoints that a run could go on from, the newest first, unread."""
    last = folder / "checkpoints" / LAST
    return [path for path in (last, *step_checkpoints(last.parent).values()) if path.is_file()]


def newest_checkpoint(folder: Path) -> Found | None:
    """Read a run's `last.ckpt`, or where it is damaged or gone, the newest `step-N.ckpt` that is whole.

    Args:
        folder: of the run.

    Returns:
        None where there is no checkpoint at all.

    Raises:
        UserError: none is whole; one that is whole cannot be resumed, such as one of a newer format.
    """
    last = folder / "checkpoints" / LAST
    problems: list[str] = []
    for path in checkpoints_of(folder):
        try:
            contents = read_checkpoint(path)
        except DamagedError as error:
            problems.append(str(error))
            continue
        if contents["format_version"] != CHECKPOINT_FORMAT:
            raise UserError(
                f"{path} has checkpoint format {contents['format_version']}, and this version goes on from "
                f"{CHECKPOINT_FORMAT} only: start a new run from its weights with init_from={folder}"
            )
        if path != last and not problems:
            problems.append(f"{last} is missing")
        return Found(path, contents, f"{'; '.join(problems)}: going on from {path.name}" if problems else None)
    if problems:
        raise UserError(f"no checkpoint of {folder} is whole, so that it cannot be resumed: {'; '.join(problems)}")
    return None


def memory_note(checkpoint: Mapping[str, Any]) -> str | None:
    """Say in one line how the lanes' memory is not what it was at the checkpoint's step; None: it is."""
    memory = checkpoint["train_memory"]
    if memory is None:
        return (
            "the checkpoint holds no memory (callbacks.checkpoint.save_memory=false): every lane starts with "
            "an empty one"
        )
    return None


def check_belongs(path: Path, checkpoint: Mapping[str, Any], config: Config) -> None:
    """Refuse a checkpoint of another run: one whose settings differ where a resume may not change them.

    Args:
        path: of the checkpoint, for messages.
        checkpoint: its contents.
        config: of the run that is to go on.

    Raises:
        UserError: the settings that differ, with both values.
    """
    theirs, ours = _dotted(checkpoint["config"]), _dotted(plain(config))
    differences = [
        f"{key} is {theirs.get(key, 'missing')} in it and {ours.get(key, 'missing')} here"
        for key in dict.fromkeys([*ours, *theirs])
        if theirs.get(key) != ours.get(key) and not _may_differ(key)
    ]
    if differences:
        more = f", and {len(differences) - _NAMED} more settings differ" if len(differences) > _NAMED else ""
        raise UserError(f"{path} is of another run: {', '.join(differences[:_NAMED])}{more}")


def _may_differ(key: str) -> bool:
    try:
        return who_may_change(key) is not Change.NOBODY
    except KeyError:
        return False


def _dotted(node: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Give each setting as it is written: what a file holds may be anything, and not all of it can be compared."""
    leaves: dict[str, str] = {}
    for name, value in node.items():
        if isinstance(value, Mapping):
            leaves |= _dotted(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = " ".join(repr(value).split())
    return leaves
