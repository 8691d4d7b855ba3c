"""Token files of a corpus, built once by `build.open_corpus` and memory-mapped from then on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.files import Source
from transformer_xl.data.lanes import SPLITS, CorpusLanes, Fingerprint
from transformer_xl.data.tokenizer import Tokenizer, load_vocabulary
from transformer_xl.data_config import StoredConfig, TokensConfig
from transformer_xl.errors import UserError, atomic_write

FORMAT = 4
"""Of a folder of token files."""
SIDECAR = "corpus.json"
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A corpus's splits as token ids.

    Attributes:
        name: the choice of `data=`.
        config: what was asked for.
        seed: of the order of documents.
        folder: where the token files are.
        sidecar: what stands beside them.
        fingerprint: what they were made of.
        tokens: the ids of each split: train, valid, test.
        starts: where documents begin in each split; empty where the text is not divided into documents.
        unknown: how many words or characters of each split became `<unk>` because the vocabulary lacks them.
        text_bytes: bytes of each split's text in UTF-8 that decoding gives back; empty where ids are of no text.
        answers: whether targets are answers, of which each is right or wrong: those of a text are not.
    """

    answers: ClassVar[bool] = False
    name: str
    config: StoredConfig
    seed: int
    folder: Path
    sidecar: Mapping[str, Any]
    fingerprint: Fingerprint
    tokens: Mapping[str, TokenArray]
    starts: Mapping[str, TokenArray]
    unknown: Mapping[str, int]
    text_bytes: Mapping[str, int]

    @cached_property
    def vocabulary(self) -> Tokenizer:
        """The symbols of all splits, read when first asked for; `UserError` where their file is damaged."""
        vocabulary = load_vocabulary(self.folder / VOCABULARY)
        if vocabulary.hash() != self.sidecar["vocabulary"]["hash"]:
            raise UserError(f"{self.folder / VOCABULARY} is damaged: data.rebuild=true builds it again")
        return vocabulary

    @property
    def read_as(self) -> dict[str, str]:
        """Return the settings that must stand beside every score, because they change what is predicted."""
        newline = getattr(self.config, "newline", "keep")
        # for enwik8 both are in use; text8 has no line ends; elsewhere only what is unusual is said
        is_said = self.name == "enwik8" or (newline == "drop" and self.name != "text8")
        return {"newline": newline} if is_said else {}

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""
        return {split: len(tokens) for split, tokens in self.tokens.items()}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        """Lay a split out in lanes; `UserError` where it is too short."""
        is_shuffled = self.config.order == "shuffled" and split == "train" and not evaluation
        return CorpusLanes(
            self.tokens[split],
            self.starts.get(split),
            split=split,
            batch_size=batch_size,
            segment_len=segment_len,
            evaluation=evaluation,
            resets=self.config.reset_memory == "document",
            shuffle_seed=self.seed if is_shuffled else None,
        )


def token_dtype(size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type, little-endian, that holds `size` ids."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def open_token_files(
    folder: Path, config: StoredConfig, *, seed: int, settings: Mapping[str, object], sources: Sequence[Source]
) -> Corpus | None:
    """Map a folder's token files; None where they are damaged, or built from other settings or files."""
    try:
        written = (folder / SIDECAR).read_bytes()
        sidecar = json.loads(written)
        listed = [[source[name] for name in ("path", "size", "mtime_ns")] for source in sidecar["sources"]]
        is_of_these = listed == [[source.name, source.size, source.mtime_ns] for source in sources]
        if (sidecar["format"], sidecar["settings"]) != (FORMAT, settings) or not is_of_these:
            return None
        splits, dtype = sidecar["splits"], token_dtype(sidecar["vocabulary"]["size"])
        tokens = {split: TokenArray(folder / f"{split}.bin", dtype, splits[split]["tokens"]) for split in SPLITS}
        starts = {
            split: TokenArray(folder / f"{split}.documents.bin", START_DTYPE, splits[split]["documents"])
            for split in (SPLITS if config.documents != "none" else ())
        }
        # another builder may have replaced the folder between the sidecar and the files
        if not (folder / VOCABULARY).is_file() or (folder / SIDECAR).read_bytes() != written:
            return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    is_text = not isinstance(config, TokensConfig)
    return Corpus(
        name=config.kind,
        config=config,
        seed=seed,
        folder=folder,
        sidecar=sidecar,
        fingerprint=Fingerprint(**sidecar["fingerprint"]),
        tokens=tokens,
        starts=starts,
        unknown={split: found["unknown"] for split, found in splits.items()},
        text_bytes={split: found["text_bytes"] for split, found in splits.items()} if is_text else {},
    )


def write_sidecar(
    folder: Path,
    *,
    settings: Mapping[str, object],
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    splits: Mapping[str, Mapping[str, int]],
) -> None:
    """Write what `open_token_files` checks: what a folder was built from, and what it holds."""
    described = [
        {"path": one.name, "size": one.size, "mtime_ns": one.mtime_ns, "sha256": file_sha256(one.path)}
        for one in sources
    ]
    # The lines that `sha256sum` prints: names belong to the corpus, since they place a file in its split.
    lines = [f"{one['sha256']}  {one['path']}\n" for one in sorted(described, key=lambda one: str(one["path"]))]
    if not sources:  # documents from outside are known by what came of them
        lines = [file_sha256(folder / f"{split}.bin") for split in SPLITS]
    sidecar = {
        "format": FORMAT,
        "settings": settings,
        "dtype": token_dtype(tokenizer.size).name,
        "splits": splits,
        "vocabulary": {"kind": tokenizer.kind, "size": tokenizer.size, "hash": tokenizer.hash()},
        "fingerprint": {
            "files": len(sources),
            "bytes": sum(one.size for one in sources),
            "sha256": hashlib.sha256(os.fsencode("".join(lines))).hexdigest(),
        },
        "sources": described,
    }
    with atomic_write(folder / SIDECAR) as target:
        json.dump(sidecar, target, indent=1)


def file_sha256(path: Path) -> str:
    """Return the sha256, in hex, of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
