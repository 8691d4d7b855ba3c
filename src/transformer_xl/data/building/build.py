"""Building a corpus's token files, once, in a folder that is put into place when all of it is there."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_xl.data.building.cache import (
    FORMAT,
    SIDECAR,
    SOURCES,
    VOCABULARY,
    file_sha256,
    listing,
    start_file,
    token_file,
)
from transformer_xl.data.building.counting import Counting
from transformer_xl.data.building.parallel import in_order
from transformer_xl.data.building.preparing import Prepared, prepare
from transformer_xl.data.building.publishing import building, publish, write_json
from transformer_xl.data.building.reading import Reading, foreign_tokenizer, load_foreign_tokenizer, require_fit
from transformer_xl.data.building.text import total_size
from transformer_xl.data.building.token_splits import write_token_splits
from transformer_xl.data.building.writing import Encoder, Written, token_dtype
from transformer_xl.data.sources.figures import deviations
from transformer_xl.data.sources.files import SPLITS, SourceFile, Sources
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import SentenceTokenizer
from transformer_xl.data_config import CorpusConfig, PublishedConfig, StoredConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError

_HASHED_TOGETHER = 64 << 20
_WORTH_SAYING = 0.1
"""Share of an evaluation's text from which on it is said that more was left out."""


@dataclass(frozen=True, kw_only=True)
class GivenVocabulary:
    """A vocabulary that a corpus is encoded with instead of one of its own, and whether its new symbols are added."""

    vocabulary: Tokenizer
    extend: bool


def build_corpus(
    folder: Path,
    *,
    config: StoredConfig,
    settings: dict[str, object],
    sources: Sources,
    reading: Reading | None,
    given: GivenVocabulary | None,
    announce: Callable[[str], None],
) -> None:
    """Turn sources into token files in `folder`, replacing what is there.

    Args:
        folder: is there as a whole when this returns.
        config: of the corpus.
        settings: what the cache is known by.
        sources: its files.
        reading: how text becomes symbols; None: they are token ids already.
        given: a vocabulary to read it with; None: its own.
        announce: gets a line before and one after, one for each thing that is unusual, and some while it takes long.

    Raises:
        UserError: the text or the cache's place is at fault, or a given vocabulary lacks a character of the text.
    """
    size = sum(file.size for file in sources.files)
    files = "1 file" if len(sources.files) == 1 else f"{len(sources.files):,} files"
    began = time.monotonic()
    announce(f"data: turning {files} ({size / 1e6:,.1f} MB) of {sources.location} into token files, once")
    with building(folder) as temporary:
        try:
            if isinstance(config, TokensConfig):
                vocabulary, written = write_token_splits(config, sources, folder=temporary)
                notes = list(sources.notes)
            else:
                assert isinstance(config, CorpusConfig)
                assert reading is not None
                work = _TextBuild(config, sources, reading, given, temporary, announce)
                vocabulary, written, notes = work.run()
        except UserError:
            _require_unchanged(sources)  # or else what changed is the reason
            raise
        checksums = _checksums(sources.files, announce=announce)
        _require_unchanged(sources)
        _write_sidecar(
            temporary, settings=settings, sources=sources, checksums=checksums, vocabulary=vocabulary, written=written
        )
        publish(temporary, folder)
    for line in notes:
        announce(f"data: {line}")
    announce(_summary(written, vocabulary, seconds=time.monotonic() - began, folder=folder))


@dataclass(frozen=True)
class _TextBuild:
    """Text to tokens: prepared, its vocabulary found, encoded."""

    config: CorpusConfig
    sources: Sources
    reading: Reading
    given: GivenVocabulary | None
    folder: Path
    announce: Callable[[str], None]

    def run(self) -> tuple[Tokenizer, dict[str, Written], list[str]]:
        foreign = None
        if self.given is None and foreign_tokenizer(self.config) is not None:
            foreign = load_foreign_tokenizer(self.config)  # a broken one is found before long work
        prepared = prepare(self.config, self.sources, self.reading, folder=self.folder, announce=self.announce)
        if self.given is None:
            require_fit(self.reading, prepared.splits["train"], setting=self.sources.setting)
        vocabulary, notes = self._vocabulary(prepared, foreign)
        vocabulary.save(self.folder / VOCABULARY)
        encoder = Encoder(reading=self.reading, vocabulary=self.folder / VOCABULARY, announce=self.announce)
        limit = self.config.max_eval_tokens if isinstance(self.config, TextConfig) else None
        written = {
            split: encoder.write(
                prepared.splits[split],
                tokens=self.folder / token_file(split),
                starts=self.folder / start_file(split),
                max_tokens=None if split == "train" else limit,
            )
            for split in SPLITS
        }
        notes = [*self.sources.notes, *prepared.notes, *notes, *self._notes_on_size(prepared, vocabulary, written)]
        prepared.remove_files()
        if isinstance(self.config, PublishedConfig) and self.given is None:
            counts = {split: found.tokens for split, found in written.items()}
            notes += deviations(self.config, counts, vocabulary.size)
        return vocabulary, written, notes

    def _notes_on_size(self, prepared: Prepared, vocabulary: Tokenizer, written: Mapping[str, Written]) -> list[str]:
        notes = []
        if self.given is None and self.config.tokenizer == "bpe":
            asked = self.reading.settings.bpe_size
            if asked is not None and vocabulary.size < asked:
                notes.append(f"the text gives {vocabulary.size:,} sub-words, fewer than the {asked:,} of data.bpe_size")
        for split in ("valid", "test"):
            left_out = total_size(prepared.splits[split]) - written[split].text_bytes - written[split].lost_bytes
            limit = self.config.max_eval_tokens if isinstance(self.config, TextConfig) else None
            if limit is not None and left_out > _WORTH_SAYING * written[split].text_bytes:
                notes.append(
                    f"{left_out:,} bytes of the {split} split are left out: it ends at data.max_eval_tokens {limit:,}"
                )
        return notes

    def _vocabulary(self, prepared: Prepared, foreign: Tokenizer | None) -> tuple[Tokenizer, list[str]]:
        """Find the vocabulary, and what is to be said about it."""
        wants_end = self.config.end_of_document and self.reading.are_documents and prepared.documents > 1
        counting = Counting(reading=self.reading, announce=self.announce)
        given, notes = self.given, []
        if given is not None and not given.extend:
            lacks_end = wants_end and given.vocabulary.end_of_document is None
            note = (
                "the trained model's vocabulary has no id that ends a document: training from it with "
                "init_vocabulary=extend adds one"
            )
            return given.vocabulary, [note] if lacks_end else []
        if given is not None:
            vocabulary, added = counting.extend_vocabulary(given.vocabulary, prepared.splits)
            added += wants_end and vocabulary.end_of_document is None
            notes.append(f"{added:,} symbols were added to the {given.vocabulary.size:,} of init_from")
        elif foreign is not None:
            vocabulary = foreign
        elif self.reading.kind == SentenceTokenizer.kind and self.sources.vocabulary is not None:
            vocabulary = SentenceTokenizer.from_file(self.sources.vocabulary.path)
        else:
            vocabulary = counting.build_vocabulary(prepared.splits)
        return vocabulary.with_end_of_document() if wants_end else vocabulary, notes


def _checksums(files: Sequence[SourceFile], *, announce: Callable[[str], None]) -> list[str]:
    groups: list[list[Path]] = []
    size = 0
    for file in files:
        if not groups or size + file.size > _HASHED_TOGETHER:
            groups.append([])
            size = 0
        groups[-1].append(file.path)
        size += file.size
    found = in_order(_hash_files, groups, doing="taking checksums of the files", announce=announce)
    return [checksum for group in found for checksum in group]


def _hash_files(paths: Sequence[Path]) -> list[str]:
    return [file_sha256(path) for path in paths]


def _write_sidecar(
    folder: Path,
    *,
    settings: dict[str, object],
    sources: Sources,
    checksums: Sequence[str],
    vocabulary: Tokenizer,
    written: Mapping[str, Written],
) -> None:
    # The lines that `sha256sum` prints: names belong to the corpus, since they place a file in its split.
    listed = hashlib.sha256()
    for checksum, file in zip(checksums, sources.files, strict=True):
        listed.update(f"{checksum}  ".encode() + os.fsencode(file.name) + b"\n")
    described = [
        {"path": file.name, "size": file.size, "mtime_ns": file.mtime_ns, "sha256": checksum}
        for checksum, file in zip(checksums, sources.files, strict=True)
    ]
    write_json(folder / SOURCES, described)
    names = [VOCABULARY, SOURCES, *map(token_file, SPLITS), *map(start_file, SPLITS)]
    paths = [folder / name for name in names if (folder / name).exists()]
    sidecar = {
        "format": FORMAT,
        "settings": settings,
        "listing": listing(sources),
        "dtype": token_dtype(vocabulary.size).name,
        "splits": {split: found._asdict() for split, found in written.items()},
        "vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size, "hash": vocabulary.hash()},
        "fingerprint": {
            "files": len(sources.files),
            "bytes": sum(file.size for file in sources.files),
            "sha256": listed.hexdigest(),
        },
        "files": {path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in paths},
    }
    write_json(folder / SIDECAR, sidecar)


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


def _summary(written: Mapping[str, Written], vocabulary: Tokenizer, *, seconds: float, folder: Path) -> str:
    counts = ", ".join(f"{split} {written[split].tokens:,}" for split in SPLITS)
    total = sum(split.tokens for split in written.values())
    unknown = ", ".join(
        f"{split} {found.unknown:,} ({100 * found.unknown / found.tokens:.1f} %)"
        for split, found in written.items()
        if found.unknown
    )
    symbol = "<unk>" if vocabulary.unknown is None else vocabulary.symbol(vocabulary.unknown)
    replaced = f"; outside the vocabulary, now {symbol}: {unknown}" if unknown else ""
    lost, kept = (sum(getattr(split, name) for split in written.values()) for name in ("lost_bytes", "text_bytes"))
    not_back = (
        f"; {100 * lost / (lost + kept):.2g} % of the text's bytes do not come back from the {vocabulary.kind} "
        "tokenizer, and bits per byte leave them out"
        if lost
        else ""
    )
    return f"data: {total:,} tokens ({counts}) in {seconds:.1f} s, kept in {folder}{replaced}{not_back}"
