"""The folder of a corpus's token files: what makes it valid."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.writing import START_DTYPE, token_dtype
from transformer_xl.data.lanes import Fingerprint
from transformer_xl.data.sources.files import SPLITS, Sources
from transformer_xl.data.tokenizer import Tokenizer, load_vocabulary
from transformer_xl.errors import UserError

FORMAT = 3
SIDECAR = "corpus.json"
SOURCES = "sources.json"
VOCABULARY = "vocabulary.json"
_HASHED_AT_ONCE = 4 << 20


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
    def vocabulary(self) -> Tokenizer:
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
