"""Comparing a corpus's token files and source files, read whole, with the checksums that they were written with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformer_xl.data.building.cache import SIDECAR, SOURCES, damage, file_sha256
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.sources.files import SourceFile
from transformer_xl.data.sources.finding import find_sources
from transformer_xl.data.sources.token_files import token_sources
from transformer_xl.data_config import CorpusConfig, StoredConfig, TokensConfig


class Outcome(NamedTuple):
    """What was compared.

    Attributes:
        files: how many, token files and source files together.
        bytes: of them.
        differences: a sentence for each that is not as it was.
    """

    files: int
    bytes: int
    differences: list[str]


def verify(corpus: Corpus, *, announce: Callable[[str], None]) -> Outcome:
    """Read every file of a corpus, and compare it with its checksum.

    Args:
        corpus: opened.
        announce: gets a line before the files are read.

    Raises:
        UserError: a file cannot be read.
    """
    written = json.loads((corpus.folder / SIDECAR).read_bytes())["files"]
    sources = _sources(corpus.config, announce=announce)
    files = len(written) + len(sources)
    size = sum(file["size"] for file in written.values()) + sum(file.size for file in sources)
    announce(f"data: reading {files:,} files, {size:,} bytes, to compare them with their checksums")
    differences = damage(corpus.folder)
    listed = corpus.folder / SOURCES
    if listed.is_file() and file_sha256(listed) == written[SOURCES]["sha256"]:
        differences += _changed(sources, json.loads(listed.read_bytes()))
    return Outcome(files=files, bytes=size, differences=differences)


def _sources(config: StoredConfig, *, announce: Callable[[str], None]) -> tuple[SourceFile, ...]:
    """Find the files that the token files were made of: the same, in the same order, or they would not be valid."""
    if isinstance(config, CorpusConfig):
        return find_sources(config, announce=announce).files
    assert isinstance(config, TokensConfig)
    return token_sources(config).files


def _changed(sources: Sequence[SourceFile], entries: Sequence[Any]) -> list[str]:
    return [
        f"{file.path} differs from what the token files were made of: its sha256 is not {entry['sha256']}"
        for file, entry in zip(sources, entries, strict=True)
        if file_sha256(file.path) != entry["sha256"]
    ]
