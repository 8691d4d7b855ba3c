"""The folder of a corpus's token files: what makes it valid, and how it gets into place in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.encoding import token_dtype
from transformer_xl.data.lanes import Fingerprint
from transformer_xl.data.sources.files import SPLITS, Sources
from transformer_xl.data.tokenizer import Vocabulary, load_vocabulary
from transformer_xl.errors import UserError

FORMAT = 1
SIDECAR = "corpus.json"
VOCABULARY = "vocabulary.json"
_TEMPORARY = ".building-"
_LOCK = "lock"
_UNLOCKED_FOR_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class CachedCorpus:
    """What a valid folder holds: the vocabulary, memory-mapped ids, and counts of `<unk>`-ed words, a split."""

    vocabulary: Vocabulary
    splits: dict[str, NDArray[np.unsignedinteger[Any]]]
    unknown: dict[str, int]
    fingerprint: Fingerprint


def token_file(split: str) -> str:
    """Name the file of a split's token ids."""
    return f"{split}.bin"


def describe_sources(sources: Sources) -> list[dict[str, object]]:
    """List what a cache must have been built from: name, size and mtime of every file, in order."""
    return [{"path": file.name, "size": file.size, "mtime_ns": file.mtime_ns} for file in sources.files]


def open_cache(folder: Path, *, settings: Mapping[str, object], sources: Sources) -> CachedCorpus | None:
    """Map a folder's token files; None where it is missing, damaged, or built from something else."""
    try:
        written = (folder / SIDECAR).read_bytes()
        corpus = _read_cache(folder, json.loads(written), settings=settings, sources=sources)
        # Another builder may have replaced the folder between the sidecar and the files.
        return corpus if (folder / SIDECAR).read_bytes() == written else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _read_cache(folder: Path, sidecar: Any, *, settings: Mapping[str, object], sources: Sources) -> CachedCorpus | None:
    found = [{key: source[key] for key in ("path", "size", "mtime_ns")} for source in sidecar["sources"]]
    if sidecar["format"] != FORMAT or sidecar["settings"] != settings or found != describe_sources(sources):
        return None
    vocabulary = load_vocabulary(folder / VOCABULARY)
    dtype = token_dtype(vocabulary.size)
    if sidecar["vocabulary"]["hash"] != vocabulary.hash() or sidecar["dtype"] != dtype.name:
        return None
    splits = {
        split: _map(folder / token_file(split), dtype=dtype, count=_natural(sidecar["counts"][split]))
        for split in SPLITS
    }
    fingerprint = sidecar["fingerprint"]
    return CachedCorpus(
        vocabulary=vocabulary,
        splits=splits,
        unknown={split: _natural(sidecar["unknown"][split]) for split in SPLITS},
        fingerprint=Fingerprint(
            files=_natural(fingerprint["files"]),
            bytes=_natural(fingerprint["bytes"]),
            sha256=bytes.fromhex(fingerprint["sha256"]).hex(),
        ),
    )


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _map(path: Path, *, dtype: np.dtype[np.unsignedinteger[Any]], count: int) -> NDArray[np.unsignedinteger[Any]]:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} has not the length that its sidecar says")
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)


def write_json(path: Path, data: object) -> None:
    """Write a new JSON file that is on the disk when this returns."""
    with path.open("x", encoding="ascii") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder` to build in, locked for as long as the builder lives, then remove what is left.

    Dead builders' folders are removed first. `UserError` where the place cannot be written.
    """
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder.parent)
        temporary, lock = _locked_folder(folder)
        with os.fdopen(lock, "wb"):
            yield temporary
    except OSError as error:
        raise UserError(
            f"data.cache_dir is {str(folder.parent)!r}, and must be a folder that can be written: {error.strerror}"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, folder: Path, *, is_ready: Callable[[], bool]) -> None:
    """Rename a finished folder into place, unless another builder has put a valid one there; replace any other."""
    (temporary / _LOCK).unlink()
    while True:
        try:
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return
        if is_ready():
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
