"""Files of a corpus: as they were found, and what of them is text of which split."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformer_xl.errors import UserError

SPLITS = ("train", "valid", "test")

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "npy", "raw", "json_ids", "ids"]
Compression = Literal["gzip", "zstd", "xz"]


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file as it was found: `name` is its path below the corpus's folder, with forward slashes."""

    path: Path
    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Text or token ids in a file, and how they are written there.

    Attributes:
        file: that holds it.
        format: plain text, records of which `field` is the text (`tsv`: csv with tabs), or token ids: an array, raw
            numbers, JSON lists a line, or numbers between blanks.
        field: a key of JSON objects, or a column.
        compression: of the file as a whole.
        member: of the zip or tar archive that the file is; None: it is none.
        unpacked_limit: bytes that unpacking may give before the archive is refused as damaged or hostile.
        dtype: of raw numbers; they are little-endian.
    """

    file: SourceFile
    format: Format = "text"
    field: str | None = None
    compression: Compression | None = None
    member: str | None = None
    unpacked_limit: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How one text becomes three splits.

    Attributes:
        by: `bytes`: at exactly these shares of its bytes; `fraction`: there, moved to the next border of a document or
            a line; `hash`: each document by a hash of its own text.
        valid: share of validation.
        test: share of test, behind it.
    """

    by: Literal["bytes", "fraction", "hash"]
    valid: float
    test: float


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All files of a corpus in order, and which of them are text of which split.

    Attributes:
        setting: what the user set, and its value, for messages.
        location: the file or folder that was named.
        files: all of them, in order.
        splits: the texts of `train`, `valid` and `test`, where the files say which they are.
        whole: all texts in order, where `cut` says it.
        cut: how `whole` is cut; None where `splits` is given.
        notes: what is unusual about the files.
        vocabulary: the one of them that lists the vocabulary, where there is such a file.
    """

    setting: str
    location: Path
    files: tuple[SourceFile, ...]
    splits: Mapping[str, tuple[Origin, ...]]
    whole: tuple[Origin, ...] = ()
    cut: Cut | None = None
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
