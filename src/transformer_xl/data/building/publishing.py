"""How a folder of token files gets into its place in one step, and what builders that died leave is removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from transformer_xl.errors import UserError

_TEMPORARY = ".building-"
_LOCK = "lock"
_UNLOCKED_FOR_SECONDS = 3600
_OF_FULL_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def write_json(path: Path, data: object) -> None:
    """Write a new JSON file that is on the disk when this returns."""
    with path.open("x", encoding="ascii") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def writing_below(cache_dir: Path) -> Iterator[None]:
    """Turn what the operating system says about the place of token files into a `UserError`."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in _OF_FULL_DISKS:
            raise  # it is about something else, such as the screen
        if error.filename is not None and not Path(os.fsdecode(error.filename)).is_relative_to(cache_dir):
            raise
        raise UserError(
            f"data.cache_dir is {str(cache_dir)!r}, and must be a folder that can be written: {error.strerror}"
        ) from error


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder` to build in, locked for as long as the builder lives, then remove what is left.

    Dead builders' folders are removed first.
    """
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder.parent)
        temporary, lock = _locked_folder(folder)
        with os.fdopen(lock, "wb"):
            yield temporary
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, folder: Path) -> None:
    """Rename a finished folder into place; one that is there is replaced, whoever still has its files mapped."""
    (temporary / _LOCK).unlink()
    while True:
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return
        aside = folder.with_name(f"{_TEMPORARY}{folder.name}-{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, aside)
        _remove(aside)


def _locked_folder(folder: Path) -> tuple[Path, int]:
    while True:
        temporary = folder.with_name(f"{_TEMPORARY}{folder.name}-{uuid.uuid4().hex}")
        temporary.mkdir()
        lock = os.open(temporary / _LOCK, os.O_WRONLY | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):  # A file system without locks: nobody else can take it either.
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (temporary / _LOCK).exists():
            return temporary, lock
        # A cleaner found the lock file before it was locked, and took the folder for a dead builder's.
        os.close(lock)


def _remove_leftovers(parent: Path) -> None:
    """Remove builders' folders whose lock nobody holds, or that have long been without one."""
    for leftover in parent.glob(f"{_TEMPORARY}*"):
        # What cannot be locked belongs to a living builder; what cannot be removed is no reason not to build.
        with contextlib.suppress(OSError):
            if not (leftover / _LOCK).exists():
                if time.time() - leftover.lstat().st_mtime > _UNLOCKED_FOR_SECONDS:
                    _remove(leftover)
                continue
            with (leftover / _LOCK).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(leftover)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
