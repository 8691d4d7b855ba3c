"""The folder of a corpus's token files: what makes it valid, and how it gets into place in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.encoding import START_DTYPE, token_dtype
from transformer_xl.data.lanes import Fingerprint
from transformer_xl.data.sources.files import SPLITS, Sources
from transformer_xl.data.tokenizer import Vocabulary, load_vocabulary
from transformer_xl.errors import UserError

FORMAT = 2
SIDECAR = "corpus.json"
SOURCES = "sources.json"
VOCABULARY = "vocabulary.json"
_TEMPORARY = ".building-"
_LOCK = "lock"
_UNLOCKED_FOR_SECONDS = 3600
_HASHED_AT_ONCE = 4 << 20
_OF_FULL_DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


class CachedSplit(NamedTuple):
    """A split's memory-mapped ids, and what is known of them.

    Attributes:
        tokens: ids.
        starts: where documents begin; None where the text is not divided into documents.
        unknown: how many are `<unk>` for something that the vocabulary lacks.
        text_bytes: of the UTF-8 that they stand for; 0 where they are of no text.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.int64] | None
    unknown: int
    text_bytes: int


@dataclass(frozen=True, kw_only=True)
class CachedCorpus:
    """What a valid folder holds. The vocabulary is read when it is first asked for: it may be large."""

    folder: Path
    splits: dict[str, CachedSplit]
    fingerprint: Fingerprint
    vocabulary_hash: str

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The symbols; `UserError` where their file is damaged."""
        path = self.folder / VOCABULARY
        vocabulary = load_vocabulary(path)
        if vocabulary.hash() != self.vocabulary_hash:
            raise UserError(f"{path} is damaged: data.rebuild=true builds it again")
        return vocabulary


def token_file(split: str) -> str:
    """Name the file of a split's token ids."""
    return f"{split}.bin"


def start_file(split: str) -> str:
    """Name the file of the places where a split's documents begin."""
    return f"{split}.documents.bin"


def listing(sources: Sources) -> str:
    """Give the sha256 of what a cache must have been built from: name, size and mtime of every file, in order."""
    digest = hashlib.sha256()
    for file in sources.files:
        digest.update(os.fsencode(f"{file.name}\0{file.size}\0{file.mtime_ns}\n"))
    return digest.hexdigest()


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
    if sidecar["format"] != FORMAT or sidecar["settings"] != settings or sidecar["listing"] != listing(sources):
        return None
    sizes = {name: _natural(file["size"]) for name, file in sidecar["files"].items()}
    if any((folder / name).stat().st_size != size for name, size in sizes.items()):
        return None
    dtype = token_dtype(_natural(sidecar["vocabulary"]["size"]))
    if sidecar["dtype"] != dtype.name or VOCABULARY not in sizes:
        return None
    splits = {}
    for split in SPLITS:
        entry = sidecar["splits"][split]
        starts = None
        if start_file(split) in sizes:
            starts = _map(folder / start_file(split), dtype=START_DTYPE, count=_natural(entry["documents"]))
        splits[split] = CachedSplit(
            tokens=_map(folder / token_file(split), dtype=dtype, count=_natural(entry["tokens"])),
            starts=starts,
            unknown=_natural(entry["unknown"]),
            text_bytes=_natural(entry["text_bytes"]),
        )
    fingerprint = sidecar["fingerprint"]
    return CachedCorpus(
        folder=folder,
        splits=splits,
        fingerprint=Fingerprint(
            files=_natural(fingerprint["files"]),
            bytes=_natural(fingerprint["bytes"]),
            sha256=bytes.fromhex(fingerprint["sha256"]).hex(),
        ),
        vocabulary_hash=str(sidecar["vocabulary"]["hash"]),
    )


def damage(folder: Path) -> list[str]:
    """Compare every file of a cache, read whole, with the checksum that it was written with.

    Returns:
        A sentence for each file that differs.
    """
    sidecar = json.loads((folder / SIDECAR).read_bytes())
    found = []
    for name, file in sidecar["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != file["size"]:
            found.append(f"{path} has not the {file['size']:,} bytes that it was written with")
        elif file_sha256(path) != file["sha256"]:
            found.append(f"{path} differs from what was written: its sha256 is not {file['sha256']}")
    return found


def file_sha256(path: Path) -> str:
    """Return the sha256, in hex, of a file; `UserError` where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASHED_AT_ONCE):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _map(path: Path, *, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} has not the length that its sidecar says")
    if not count:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    # slices of a memmap are memmaps, which take ten times as long to make
    return np.memmap(path, dtype, mode="r", shape=(count,)).view(np.ndarray)


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
