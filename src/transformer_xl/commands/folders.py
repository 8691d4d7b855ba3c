"""The folders of runs and sweeps: named, claimed so that no two runs share one, and given back when left empty."""

from __future__ import annotations

import itertools
import re
from datetime import datetime
from pathlib import Path

from transformer_xl.commands import ranks
from transformer_xl.commands.cli import AUTO
from transformer_xl.errors import UserError

_MAX_NAME_BYTES = 100
_UNFIT = re.compile(r"[\x00-\x1f\x7f/$\ud800-\udfff]")

_created: dict[Path, list[Path]] = {}
"""Folders that this process claimed, each with those of its parents that it had to make, the deepest first."""


def run_folder(root: str, name: str | None, model: str, data: str, resume: str | None = None) -> str:
    """Claim the folder of a run: by its name, or by the time, the model and the data.

    With `resume=auto` the folder may hold a run. Of several processes that something else started, the first makes it.

    Raises:
        UserError: the name is empty, or its folder holds a run already, or a part of one, or each process would claim
            another folder.
        OSError: the folder cannot be made.
    """
    if name is None:
        _require_name(resume)
        return str(_claim(Path(root), f"{_now()}-{slug(str(model))}-{slug(str(data))}"))
    if not str(name):
        raise UserError("name is empty, and must hold at least one character, or be left out")
    folder = Path(root, slug(str(name)))
    if not ranks.is_main():
        return str(folder)
    refuse_part_of_a_run(folder)
    if (folder / "config.yaml").exists() and resume != AUTO:
        raise UserError(
            f"name={name} stands for the folder {folder}, which holds a run already; "
            f"go on with that run by resume={folder}, or choose another name"
        )
    if not folder.exists():
        make(folder)
    return str(folder)


def refuse_part_of_a_run(folder: Path) -> None:
    """Refuse a folder whose checkpoints a new run would write over, and which is none to go on with.

    Raises:
        UserError: it holds checkpoints and no configuration.
    """
    if (folder / "checkpoints").exists() and not (folder / "config.yaml").exists():
        raise UserError(
            f"the folder {folder} holds checkpoints and no config.yaml, so that nothing can go on in it: put its "
            "config.yaml back, or move the folder away"
        )


def _require_name(resume: str | None) -> None:
    if resume == AUTO:
        raise UserError(f"resume={AUTO} finds a run by its name: add name=NAME, or hydra.run.dir=FOLDER")
    started = ranks.processes_from_outside()
    if started > 1:
        raise UserError(
            f"{started} processes were started from outside, and would name {started} folders by their clocks: add "
            "name=NAME, resume=RUN_FOLDER or hydra.run.dir=FOLDER"
        )


def sweep_folder(root: str) -> str:
    """Claim the folder of a sweep, whose jobs have theirs inside.

    Raises:
        OSError: the folder cannot be made.
    """
    return str(_claim(Path(root), f"sweep-{_now()}"))


def slug(name: str) -> str:
    """Turn a name into one file name: no separators, control characters, `$`, leading dots; at most 100 bytes."""
    fit = _UNFIT.sub("_", name)
    fit = re.sub(r"^\.+", lambda dots: "_" * len(dots[0]), fit)
    return fit.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S")


def _claim(root: Path, name: str) -> Path:
    _make_root(root)
    for count in itertools.count(1):
        folder = root / (name if count == 1 else f"{name}-{count}")
        try:
            make(folder)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count ends")


def _make_root(root: Path) -> None:
    """Make the folder of all runs, so that what is in its place is said and not mistaken for a run's name."""
    if not root.is_dir() and (root.exists() or root.is_symlink()):
        raise UserError(f"{root} is no folder{' that exists' if root.is_symlink() else ''}, and runs are kept there")
    if not root.exists():
        make(root)


def claim(root: Path, name: str) -> Path:
    """Make a folder of one's own below `root`: by its name, or with a number after it where that is taken."""
    return _claim(root, name)


def make(folder: Path) -> None:
    """Make a folder that is given back if nothing is written into it."""
    missing = [parent for parent in folder.absolute().parents if not parent.exists()]
    folder.mkdir(parents=True)
    _created[folder.absolute()] = missing


def discard_if_empty(folder: Path) -> None:
    """Remove a folder that this process made and wrote nothing into, and those that had to be made for it."""
    folder = folder.absolute()
    if folder not in _created:
        return
    for path in (folder, *_created.pop(folder)):
        try:
            path.rmdir()
        except OSError:
            return


def discard_claimed() -> None:
    """Remove all folders that this process claimed and wrote nothing into."""
    for folder in reversed(list(_created)):
        discard_if_empty(folder)
