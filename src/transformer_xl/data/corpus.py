"""Text on disk as token ids: built once into a folder below `data.cache_dir`, memory-mapped from then on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.config import CorpusConfig, StdlibConfig, TextConfig
from transformer_xl.data.cache import (
    FORMAT,
    SIDECAR,
    VOCABULARY,
    building,
    describe_sources,
    open_cache,
    publish,
    token_file,
    write_json,
)
from transformer_xl.data.encoding import Written, build_vocabulary, piece_sha256, token_dtype, write_tokens
from transformer_xl.data.lanes import CorpusLanes, Fingerprint, evaluation_lanes, training_lanes
from transformer_xl.data.sources import SPLITS, Piece, Sources, find_sources
from transformer_xl.data.tokenizer import UNK, Vocabulary
from transformer_xl.errors import UserError

_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A text's splits as memory-mapped token ids.

    `unknown` counts the words of each split that became `<unk>` because the vocabulary lacks them.
    """

    name: str
    folder: Path
    vocabulary: Vocabulary
    splits: dict[str, NDArray[np.unsignedinteger[Any]]]
    unknown: dict[str, int]
    fingerprint: Fingerprint

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split: train, valid, test."""
        return {split: len(tokens) for split, tokens in self.splits.items()}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        """Lay a split out in lanes; `UserError` where it is too short."""
        tokens = self.splits[split]
        if evaluation:
            return evaluation_lanes(tokens, batch_size=batch_size, split=split)
        return training_lanes(tokens, batch_size=batch_size, segment_len=segment_len)


def open_corpus(config: CorpusConfig, *, announce: Callable[[str], None]) -> Corpus:
    """Open a corpus's token files, building them where there are none that fit the sources and settings.

    `announce` gets a line before and one after a build. `UserError` where the text or the cache's place is at fault.
    """
    sources = find_sources(config)
    settings = _settings(config, sources)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = Path(os.path.expanduser(config.cache_dir)).absolute() / f"{config.kind}-{key}"
    for _ in range(_ATTEMPTS):
        # Other builders may replace the folder while it is opened; what they put there is as good.
        cached = open_cache(folder, settings=settings, sources=sources)
        if cached is not None:
            return Corpus(
                name=config.kind,
                folder=folder,
                vocabulary=cached.vocabulary,
                splits=cached.splits,
                unknown=cached.unknown,
                fingerprint=cached.fingerprint,
            )
        _build(folder, settings=settings, sources=sources, announce=announce)
    raise RuntimeError(f"the token files in {str(folder)!r} were replaced {_ATTEMPTS} times while they were opened")


def _settings(config: CorpusConfig, sources: Sources) -> dict[str, object]:
    settings: dict[str, object] = {
        "format": FORMAT,
        "kind": config.kind,
        "location": str(sources.location),
        "tokenizer": config.tokenizer,
    }
    if isinstance(config, StdlibConfig | TextConfig):
        settings |= {"valid_fraction": config.valid_fraction, "test_fraction": config.test_fraction}
    return settings


def _build(folder: Path, *, settings: dict[str, object], sources: Sources, announce: Callable[[str], None]) -> None:
    size = sum(file.size for file in sources.files)
    files = "1 file" if len(sources.files) == 1 else f"{len(sources.files):,} files"
    began = time.monotonic()
    announce(f"data: turning {files} ({size / 1e6:,.1f} MB) of {sources.location} into token files, once")
    with building(folder) as temporary:
        vocabulary = build_vocabulary(str(settings["tokenizer"]), sources.splits)
        vocabulary.save(temporary / VOCABULARY)
        written = {
            split: write_tokens(vocabulary, sources.splits[split], temporary / token_file(split)) for split in SPLITS
        }
        sidecar = _sidecar(settings=settings, sources=sources, vocabulary=vocabulary, written=written)
        _require_unchanged(sources)
        write_json(temporary / SIDECAR, sidecar)
        publish(temporary, folder, is_ready=lambda: open_cache(folder, settings=settings, sources=sources) is not None)
    announce(_summary(written, seconds=time.monotonic() - began, folder=folder))


def _sidecar(
    *, settings: dict[str, object], sources: Sources, vocabulary: Vocabulary, written: dict[str, Written]
) -> dict[str, object]:
    checksums = [piece_sha256(Piece(file.path, 0, file.size)) for file in sources.files]
    # The lines that `sha256sum` prints: names belong to the corpus, since they place a file in its split.
    listed = b"".join(
        f"{checksum}  ".encode() + os.fsencode(file.name) + b"\n"
        for checksum, file in zip(checksums, sources.files, strict=True)
    )
    described = zip(describe_sources(sources), checksums, strict=True)
    return {
        "format": FORMAT,
        "settings": settings,
        "dtype": token_dtype(vocabulary.size).name,
        "counts": {split: written[split].tokens for split in SPLITS},
        "unknown": {split: written[split].unknown for split in SPLITS},
        "vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size, "hash": vocabulary.hash()},
        "fingerprint": {
            "files": len(sources.files),
            "bytes": sum(file.size for file in sources.files),
            "sha256": hashlib.sha256(listed).hexdigest(),
        },
        "sources": [{**source, "sha256": checksum} for source, checksum in described],
    }


def _require_unchanged(sources: Sources) -> None:
    for file in sources.files:
        try:
            status = file.path.stat()
        except OSError as error:
            raise UserError(f"{sources.setting}, where {file.name!r} cannot be read: {error.strerror}") from error
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
            raise UserError(
                f"{sources.setting}, where {file.name!r} changed while it was read; start again once it is at rest"
            )


def _summary(written: dict[str, Written], *, seconds: float, folder: Path) -> str:
    counts = ", ".join(f"{split} {written[split].tokens:,}" for split in SPLITS)
    total = sum(split.tokens for split in written.values())
    unknown = [f"{split} {written[split].unknown:,}" for split in SPLITS if written[split].unknown]
    replaced = f"; words outside the vocabulary, now {UNK}: {', '.join(unknown)}" if unknown else ""
    return f"data: {total:,} tokens ({counts}) in {seconds:.1f} s, kept in {folder}{replaced}"
