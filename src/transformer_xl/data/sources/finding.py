"""Which files a corpus is made of, how text is written in them, and which of them belong to which split."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_xl.data.building.decoding import check_encoding
from transformer_xl.data.sources.files import (
    SPLITS,
    Compression,
    Cut,
    Format,
    Origin,
    SourceFile,
    Sources,
    reading_setting,
)
from transformer_xl.data.sources.listing import list_files, require_splits, split_by_name, walk
from transformer_xl.data.sources.published import published_sources
from transformer_xl.data_config import CorpusConfig, PublishedConfig, StdlibConfig, TextConfig
from transformer_xl.errors import UserError

_STDLIB_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_WANTED = "a text file, a folder of text files, or a glob such as 'logs/**/*.txt'"
_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}


def find_sources(config: CorpusConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the files that a configuration names; `UserError` where they are missing, empty, or of unclear splits.

    Args:
        config: of the corpus.
        announce: gets lines on what is downloaded.
    """
    if isinstance(config, StdlibConfig):
        return _stdlib(config)
    if isinstance(config, TextConfig):
        return _text(config)
    assert isinstance(config, PublishedConfig)
    return published_sources(config, announce=announce)


def _stdlib(config: StdlibConfig) -> Sources:
    root = Path(sysconfig.get_paths()["stdlib"])
    setting = f"data=stdlib reads *.py below {str(root)!r}"
    with reading_setting(setting):
        files = walk(root, keep_folder=lambda name: name not in _STDLIB_SKIPPED, keep_file=_is_python)
    if not files:
        raise UserError(f"{setting}, which holds none; name a text of your own with data=text data.path=...")
    splits: dict[str, list[Origin]] = {split: [] for split in SPLITS}
    for file in files:
        splits[_split_by_hash(file.name, config=config)].append(Origin(file=file))
    return Sources(
        setting=setting,
        location=root.resolve(),
        files=tuple(files),
        splits={split: tuple(origins) for split, origins in splits.items()},
    )


def _is_python(name: str) -> bool:
    return name.endswith(".py")


def _split_by_hash(name: str, *, config: StdlibConfig) -> str:
    # A file's split hangs on its own name alone, so that other Python versions share most of it.
    share = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64
    if share < 1 - (config.valid_fraction + config.test_fraction):
        return "train"
    return "valid" if share < 1 - config.test_fraction else "test"


def _text(config: TextConfig) -> Sources:
    setting = f"data.path is {config.path!r}"
    if not config.path:
        raise UserError(f"{setting}, and must name {_WANTED}")
    problem = check_encoding(config.encoding)
    if problem:
        raise UserError(problem)
    location, files, is_one_file = list_files(config.path, setting=setting, wanted=_WANTED)
    splits, others = split_by_name(files)
    if config.split == "files" or (config.split == "auto" and splits["train"] and not is_one_file):
        notes = require_splits(splits, others, setting=setting)
        return Sources(
            setting=setting,
            location=location,
            files=tuple(file for split in SPLITS for file in splits[split]),
            splits={split: _origins(splits[split], config=config, setting=setting) for split in SPLITS},
            notes=notes,
        )
    return Sources(
        setting=setting,
        location=location,
        files=tuple(files),
        splits={},
        whole=_origins(files, config=config, setting=setting),
        cut=Cut(
            by="hash" if config.split == "hash" else "fraction",
            valid=config.valid_fraction,
            test=config.test_fraction,
        ),
    )


def _origins(files: Sequence[SourceFile], *, config: TextConfig, setting: str) -> tuple[Origin, ...]:
    return tuple(_origin(file, config=config, setting=setting) for file in files)


def _origin(file: SourceFile, *, config: TextConfig, setting: str) -> Origin:
    """Tell from a file's name how it is written, as far as the configuration leaves that open."""
    stem, suffix = os.path.splitext(file.name.lower())
    compression = _COMPRESSIONS.get(suffix)
    if compression:
        suffix = os.path.splitext(stem)[1]
    by_name = _FORMATS.get(suffix, "text")
    format: Format = by_name if config.format == "auto" else config.format
    if format == "csv" and by_name == "tsv":
        format = "tsv"
    if format == "parquet" and compression:
        raise UserError(
            f"{setting}, where {file.name!r} is packed with {compression}: Parquet packs its columns itself, and must "
            "not be packed once more"
        )
    return Origin(file=file, format=format, field=None if format == "text" else config.field, compression=compression)
