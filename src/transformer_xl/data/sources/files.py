"""Files of a corpus, and the pieces of them that are its splits."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from transformer_xl.errors import UserError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file as it was found: `name` is its path below the corpus's folder, with forward slashes."""

    path: Path
    name: str
    size: int
    mtime_ns: int


class Piece(NamedTuple):
    """The bytes [start, stop) of a file."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All files of a corpus in order, and the pieces of them that make up each split.

    `setting` names what the user set, and its value, for messages; `notes` say what is unusual about the files;
    `vocabulary` is the one of them that lists the vocabulary, where there is such a file.
    """

    setting: str
    location: Path
    files: tuple[SourceFile, ...]
    splits: Mapping[str, tuple[Piece, ...]]
    notes: tuple[str, ...] = ()
    vocabulary: SourceFile | None = None


class reading_setting:  # noqa: N801  (reads as the statement that it is)
    """Turns what the operating system says about a user's path into a `UserError`."""

    def __init__(self, setting: str, *, wanted: str = "files that can be read") -> None:
        self._setting, self._wanted = setting, wanted

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError) or not isinstance(error, OSError | ValueError | RuntimeError):
            return
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = f" ({os.fsdecode(error.filename)!r})" if isinstance(error, OSError) and error.filename else ""
        raise UserError(
            f"{self._setting}, which cannot be read: {reason}{where}; it must name {self._wanted}"
        ) from error


def describe(path: Path, *, name: str) -> SourceFile:
    """Say what a file is now; `OSError` where it is none."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "not a regular file", str(path))
    return SourceFile(path=path, name=name, size=status.st_size, mtime_ns=status.st_mtime_ns)


def whole_files(
    *, setting: str, location: Path, splits: Mapping[str, Sequence[SourceFile]], files: Sequence[SourceFile]
) -> Sources:
    """Make sources whose splits are whole files."""
    pieces = {split: tuple(Piece(file.path, 0, file.size) for file in splits[split]) for split in SPLITS}
    return Sources(setting=setting, location=location, files=tuple(files), splits=pieces)
