"""Which files of token ids a configuration names, and which of them belong to which split."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from transformer_xl.data.sources.files import (
    SPLITS,
    Cut,
    Format,
    Origin,
    SourceFile,
    Sources,
    describe,
    reading_setting,
)
from transformer_xl.data.sources.listing import list_files, require_splits, split_by_name
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError

_FORMATS: Mapping[str, Format] = {".npy": "npy", ".bin": "raw", ".jsonl": "json_ids", ".txt": "ids"}
_WANTED = "a file of token ids (.npy, .bin, .jsonl or .txt), a folder of them, or a glob such as 'ids/**/*.npy'"


def token_sources(config: TokensConfig) -> Sources:
    """Find the files that `data.path` names, and split them by their names where these say so.

    Files are looked at by name and size alone; what is in them is checked when they are read.

    Raises:
        UserError: there are none, one is in no form that holds ids, or they are of unclear splits.
    """
    setting = f"data.path is {'null' if config.path is None else repr(config.path)}"
    if not config.path:
        raise UserError(f"{setting}, and must name {_WANTED}")
    location, files, is_one_file = list_files(config.path, setting=setting, wanted=_WANTED)
    vocabulary = _vocabulary_file(config)
    beside = () if vocabulary is None else (vocabulary,)
    files = [file for file in files if vocabulary is None or file.path.resolve() != vocabulary.path]
    if not files:
        raise UserError(f"{setting}, where only data.vocabulary is, and must name {_WANTED}")
    splits, others = split_by_name(files)
    if config.split == "files" or (config.split == "auto" and splits["train"] and not is_one_file):
        notes = require_splits(splits, others, setting=setting)
        files = [file for split in SPLITS for file in splits[split]]
        _check_forms(files, config=config, setting=setting)
        return Sources(
            setting=setting,
            location=location,
            files=(*files, *beside),
            splits={split: _origins(splits[split], config) for split in SPLITS},
            notes=notes,
            vocabulary=vocabulary,
        )
    _check_forms(files, config=config, setting=setting)
    return Sources(
        setting=setting,
        location=location,
        files=(*files, *beside),
        splits={},
        whole=_origins(files, config),
        cut=Cut(
            by="hash" if config.split == "hash" else "fraction",
            valid=config.valid_fraction,
            test=config.test_fraction,
        ),
        vocabulary=vocabulary,
    )


def _vocabulary_file(config: TokensConfig) -> SourceFile | None:
    if config.vocabulary is None:
        return None
    path = Path(os.path.expanduser(config.vocabulary))
    with reading_setting(f"data.vocabulary is {config.vocabulary!r}", wanted="a vocabulary.json"):
        return describe(path.resolve(strict=True), name=path.name)


def _check_forms(files: Sequence[SourceFile], *, config: TokensConfig, setting: str) -> None:
    raw = [file for file in files if _suffix(file) == ".bin"]
    for file in files:
        if _suffix(file) not in _FORMATS:
            raise UserError(
                f"{setting}, where {file.name!r} is none of .npy, .bin, .jsonl and .txt, which hold token ids"
            )
    if config.dtype is None:
        if raw:
            raise UserError(
                f"data.dtype is null, and must say which numbers {raw[0].name!r} holds: uint8, uint16, uint32, "
                "int32 or int64"
            )
        return
    if not raw:
        raise UserError(f"data.dtype is {config.dtype!r}, and must be null where no file is .bin: the others say it")
    width = np.dtype(config.dtype).itemsize
    for file in raw:
        if file.size % width:
            raise UserError(
                f"data.dtype is {config.dtype!r}, and must fit {file.name!r}, whose {file.size:,} bytes are no "
                f"multiple of {width}"
            )


def _origins(files: Sequence[SourceFile], config: TokensConfig) -> tuple[Origin, ...]:
    return tuple(_origin(file, dtype=config.dtype) for file in files)


def _origin(file: SourceFile, *, dtype: str | None) -> Origin:
    form = _FORMATS[_suffix(file)]
    return Origin(file=file, format=form, dtype=dtype if form == "raw" else None)


def _suffix(file: SourceFile) -> str:
    return os.path.splitext(file.name)[1].lower()
