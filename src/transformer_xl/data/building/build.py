"""Building a corpus's token files, once, in a folder that is put into place when all of it is there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformer_xl.data.building.cache import (
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
from transformer_xl.data.building.counting import build_vocabulary, extend_vocabulary, read_vocabulary_file
from transformer_xl.data.building.encoding import Written, token_dtype, write_tokens
from transformer_xl.data.building.pieces import piece_sha256
from transformer_xl.data.building.reading import Reading, unspaced_note
from transformer_xl.data.sources.files import SPLITS, Piece, Sources
from transformer_xl.data.tokenizer import ListedWords, SentenceVocabulary, Vocabulary
from transformer_xl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class GivenVocabulary:
    """A vocabulary that a corpus is encoded with instead of one of its own, and whether its new symbols are added."""

    vocabulary: Vocabulary
    extend: bool


def build_corpus(
    folder: Path,
    *,
    settings: dict[str, object],
    sources: Sources,
    reading: Reading,
    given: GivenVocabulary | None,
    announce: Callable[[str], None],
) -> None:
    """Turn sources into token files in `folder`, unless another builder is faster.

    Raises:
        UserError: the text or the cache's place is at fault, or a given vocabulary lacks a character of the text.
    """
    size = sum(file.size for file in sources.files)
    files = "1 file" if len(sources.files) == 1 else f"{len(sources.files):,} files"
    began = time.monotonic()
    announce(f"data: turning {files} ({size / 1e6:,.1f} MB) of {sources.location} into token files, once")
    with building(folder) as temporary:
        try:
            vocabulary, note = _vocabulary(sources, reading, given)
            vocabulary.save(temporary / VOCABULARY)
            written = {
                split: write_tokens(reading, vocabulary, sources.splits[split], temporary / token_file(split))
                for split in SPLITS
            }
            notes = [*sources.notes, note, unspaced_note(reading, sources.splits["train"])]
        except UserError:
            _require_unchanged(sources)  # or else what changed is the reason
            raise
        sidecar = _sidecar(settings=settings, sources=sources, vocabulary=vocabulary, written=written)
        _require_unchanged(sources)
        write_json(temporary / SIDECAR, sidecar)
        publish(temporary, folder, is_ready=lambda: open_cache(folder, settings=settings, sources=sources) is not None)
    for line in filter(None, notes):
        announce(f"data: {line}")
    announce(_summary(written, vocabulary, seconds=time.monotonic() - began, folder=folder))


def _vocabulary(sources: Sources, reading: Reading, given: GivenVocabulary | None) -> tuple[Vocabulary, str | None]:
    if given is not None:
        if not given.extend:
            return given.vocabulary, None
        vocabulary, added = extend_vocabulary(given.vocabulary, reading, sources.splits)
        return vocabulary, f"{added:,} symbols were added to the {given.vocabulary.size:,} of init_from"
    if reading.kind == SentenceVocabulary.kind and sources.vocabulary is not None:
        return read_vocabulary_file(sources.vocabulary.path), None
    return build_vocabulary(reading, sources.splits), None


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


def _summary(written: dict[str, Written], vocabulary: Vocabulary, *, seconds: float, folder: Path) -> str:
    counts = ", ".join(f"{split} {written[split].tokens:,}" for split in SPLITS)
    total = sum(split.tokens for split in written.values())
    unknown = ", ".join(
        f"{split} {found.unknown:,} ({100 * found.unknown / found.tokens:.1f} %)"
        for split, found in written.items()
        if found.unknown
    )
    replaced = ""
    if unknown:
        assert isinstance(vocabulary, ListedWords)
        replaced = f"; words outside the vocabulary, now {vocabulary.unknown}: {unknown}"
    return f"data: {total:,} tokens ({counts}) in {seconds:.1f} s, kept in {folder}{replaced}"
