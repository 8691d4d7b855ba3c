"""Token files of a corpus, built once by `build.open_corpus` and memory-mapped from then on."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.lanes import SPLITS, CorpusLanes, Fingerprint
from transformer_xl.data.tokenizer import Tokenizer, load_vocabulary
from transformer_xl.data_config import CorpusConfig, StoredConfig, TokensConfig
from transformer_xl.errors import UserError, atomic_write

FORMAT = 3
"""Of a folder of token files."""
SIDECAR = "corpus.json"
SOURCES = "sources.json"
VOCABULARY = "vocabulary.json"
START_DTYPE = np.dtype("<i8")


class TokenArray:
    """Numbers in a memory-mapped file, read by slices: `UserError` where the file has become shorter.

    Touching what is no longer there would end the process without a word.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], count: int) -> None:
        self._path, self.dtype = path, dtype
        self._file = path.open("rb")
        if os.fstat(self._file.fileno()).st_size != count * dtype.itemsize:
            raise ValueError(f"{path} has not the length that its sidecar says")
        # an empty file cannot be mapped; slices of a memmap are memmaps, which take ten times as long to make
        mapped = np.memmap(self._file, dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)
        self._array: NDArray[Any] = mapped.view(np.ndarray)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, places: slice | int) -> Any:
        return self._whole()[places]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._whole(), dtype) if copy else np.asarray(self._whole(), dtype)

    def _whole(self) -> NDArray[Any]:
        if os.fstat(self._file.fileno()).st_size < self._array.nbytes:
            raise UserError(f"{str(self._path)!r} was cut short while it was read: data.rebuild=true builds it again")
        return self._array


class Split(NamedTuple):
    """A split's ids, and what is known of them.

    Attributes:
        tokens: ids.
        starts: where documents begin; None where the text is not divided into documents.
        unknown: how many ids are `<unk>` for something that the vocabulary lacks.
        text_bytes: of the UTF-8 that decoding gives back; 0 where the ids are of no text.
        lost_bytes: of the UTF-8 that decoding does not give back.
    """

    tokens: TokenArray
    starts: TokenArray | None
    unknown: int
    text_bytes: int
    lost_bytes: int


@dataclass(frozen=True, kw_only=True)
class TokenFiles:
    """What a valid folder holds. The vocabulary is read when it is first asked for: it may be large."""

    folder: Path
    splits: dict[str, Split]
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A corpus's splits as token ids.

    Attributes:
        config: what was asked for.
        files: its token files.
        seed: of the order of documents.
    """

    config: StoredConfig
    files: TokenFiles
    seed: int

    @property
    def name(self) -> str:
        """The choice of `data=`."""
        return self.config.kind

    @property
    def folder(self) -> Path:
        """Where the token files are."""
        return self.files.folder

    @property
    def vocabulary(self) -> Tokenizer:
        """The symbols of all splits."""
        return self.files.vocabulary

    @property
    def fingerprint(self) -> Fingerprint:
        """What the corpus was made of."""
        return self.files.fingerprint

    @property
    def splits(self) -> dict[str, NDArray[Any]]:
        """The ids of each split: train, valid, test."""
        return {name: np.asarray(split.tokens) for name, split in self.files.splits.items()}

    @property
    def unknown(self) -> dict[str, int]:
        """Count the words or characters of each split that became `<unk>` because the vocabulary lacks them."""
        return {name: split.unknown for name, split in self.files.splits.items()}

    @property
    def text_bytes(self) -> dict[str, int]:
        """Count the bytes of each split's text in UTF-8; nothing where ids are of no text."""
        if isinstance(self.config, TokensConfig):
            return {}
        return {name: split.text_bytes for name, split in self.files.splits.items()}

    @property
    def read_as(self) -> dict[str, str]:
        """Say what must stand beside every score, because it changes what is predicted."""
        config = self.config
        if not isinstance(config, CorpusConfig) or config.kind == "text8":  # text8 has no line ends
            return {}
        # for enwik8 both are in use; elsewhere only what is unusual is said
        return {"newline": config.newline} if config.kind == "enwik8" or config.newline == "drop" else {}

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""
        return {name: len(split.tokens) for name, split in self.files.splits.items()}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        """Lay a split out in lanes; `UserError` where it is too short."""
        found = self.files.splits[split]
        is_shuffled = self.config.order == "shuffled" and split == "train" and not evaluation
        return CorpusLanes(
            found.tokens,
            found.starts,
            split=split,
            batch_size=batch_size,
            segment_len=segment_len,
            evaluation=evaluation,
            resets=self.config.reset_memory == "document",
            shuffle_seed=self.seed if is_shuffled else None,
        )


def token_file(split: str) -> str:
    """Return the name of the file of a split's ids."""
    return f"{split}.bin"


def start_file(split: str) -> str:
    """Return the name of the file of the places where a split's documents begin."""
    return f"{split}.documents.bin"


def token_dtype(size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type, little-endian, that holds `size` ids."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def open_token_files(folder: Path, *, settings: Mapping[str, object], listing: str) -> TokenFiles | None:
    """Map a folder's token files; None where it is damaged, or built from other settings or files (`listing`)."""
    try:
        written = (folder / SIDECAR).read_bytes()
        files = _open(folder, json.loads(written), settings=settings, listing=listing)
        # Another builder may have replaced the folder between the sidecar and the files.
        return files if (folder / SIDECAR).read_bytes() == written else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _open(folder: Path, sidecar: Any, *, settings: Mapping[str, object], listing: str) -> TokenFiles | None:
    if sidecar["format"] != FORMAT or sidecar["settings"] != settings or sidecar["listing"] != listing:
        return None
    sizes = {name: _count(file["size"]) for name, file in sidecar["files"].items()}
    if VOCABULARY not in sizes or any((folder / name).stat().st_size != size for name, size in sizes.items()):
        return None
    dtype = token_dtype(_count(sidecar["vocabulary"]["size"]))
    if sidecar["dtype"] != dtype.name:
        return None
    splits = {}
    for split in SPLITS:
        entry = sidecar["splits"][split]
        starts = None
        if start_file(split) in sizes:
            starts = TokenArray(folder / start_file(split), START_DTYPE, _count(entry["documents"]))
        splits[split] = Split(
            tokens=TokenArray(folder / token_file(split), dtype, _count(entry["tokens"])),
            starts=starts,
            unknown=_count(entry["unknown"]),
            text_bytes=_count(entry["text_bytes"]),
            lost_bytes=_count(entry["lost_bytes"]),
        )
    fingerprint = sidecar["fingerprint"]
    return TokenFiles(
        folder=folder,
        splits=splits,
        fingerprint=Fingerprint(
            files=_count(fingerprint["files"]),
            bytes=_count(fingerprint["bytes"]),
            sha256=bytes.fromhex(fingerprint["sha256"]).hex(),
        ),
        vocabulary_hash=str(sidecar["vocabulary"]["hash"]),
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def write_sidecar(
    folder: Path,
    *,
    settings: dict[str, object],
    listing: str,
    sources: list[dict[str, Any]],
    tokenizer: Tokenizer,
    splits: dict[str, dict[str, int]],
) -> None:
    """Write what `open_token_files` checks: what a folder was built from (`sources`: path, size, sha256), and holds."""
    # The lines that `sha256sum` prints: names belong to the corpus, since they place a file in its split.
    listed = hashlib.sha256()
    for source in sources:
        listed.update(f"{source['sha256']}  ".encode() + os.fsencode(source["path"]) + b"\n")
    with atomic_write(folder / SOURCES) as target:
        json.dump(sources, target, indent=1)
    names = [VOCABULARY, SOURCES, *map(token_file, SPLITS), *map(start_file, SPLITS)]
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in names
        if (folder / name).exists()
    }
    if not sources:  # documents from outside are known by what came of them
        listed.update(json.dumps(files, sort_keys=True).encode())
    size = sum(source["size"] for source in sources)
    sidecar = {
        "format": FORMAT,
        "settings": settings,
        "listing": listing,
        "dtype": token_dtype(tokenizer.size).name,
        "splits": splits,
        "vocabulary": {"kind": tokenizer.kind, "size": tokenizer.size, "hash": tokenizer.hash()},
        "fingerprint": {"files": len(sources), "bytes": size, "sha256": listed.hexdigest()},
        "files": files,
    }
    with atomic_write(folder / SIDECAR) as target:
        json.dump(sidecar, target, indent=1)


def file_sha256(path: Path) -> str:
    """Return the sha256, in hex, of a file; `UserError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def put_in_place(temporary: Path, folder: Path) -> None:
    """Put a finished folder into its place; one that is there is replaced, whoever still has its files mapped."""
    aside = folder.with_name(f".building-{folder.name}-{uuid4().hex}")
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
    os.rename(temporary, folder)
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def writing_below(cache_dir: Path) -> Iterator[None]:
    """Turn what the operating system says about the place of token files into a `UserError`."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
        is_there = error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(cache_dir)
        if not (is_there or (is_full and error.filename is None)):
            raise  # it is about something else, such as the screen
        raise UserError(
            f"data.cache_dir is {str(cache_dir)!r}, and must be a folder that can be written: {error.strerror}"
        ) from error
