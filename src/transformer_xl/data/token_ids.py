"""Token ids that another program wrote: .npy, raw numbers (.bin), JSON lists (.jsonl), or numbers between blanks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl import registry
from transformer_xl.data.files import CHUNK_BYTES, Source, SourceFile, Sources, describe, sources_of_path
from transformer_xl.data.text import LONGEST_RECORD, Piece
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError, first_line

_IDS_AT_ONCE = 1 << 20
_LONGEST_NUMBER = 4096
_FORMS = (".npy", ".bin", ".jsonl", ".txt")
_WANTED = "a file of token ids (.npy, .bin, .jsonl or .txt), a folder of them, or a glob such as 'ids/**/*.npy'"


class _Numbers(NamedTuple):
    """Numbers that stand together in a file, and on which line, where lines mean something."""

    ids: NDArray[Any]
    line: int | None = None


@registry.register("corpus", "tokens", TokensConfig)
def token_sources(config: TokensConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the files that `data.path` names, and split them by their names where these say so.

    `UserError` where there are none, one is in no form that holds ids, or they are of unclear splits.
    """
    setting = f"data.path is {'null' if config.path is None else repr(config.path)}"
    if not config.path:
        raise UserError(f"{setting}, and must name {_WANTED}")
    vocabulary = _vocabulary_file(config)
    found = sources_of_path(
        config,
        lambda file: _source(file, config, setting=setting),
        setting=setting,
        wanted=_WANTED,
        without=None if vocabulary is None else vocabulary.path,
    )
    raw = [file for file in found.files if _suffix(file) == ".bin"]
    if config.dtype is None and raw:
        raise UserError(
            f"data.dtype is null, and must say which numbers {raw[0].name!r} holds: uint8, uint16, uint32, int32 or "
            "int64"
        )
    if config.dtype is not None and not raw:
        raise UserError(f"data.dtype is {config.dtype!r}, and must be null where no file is .bin: the others say it")
    if vocabulary is None:
        return found
    return replace(found, files=(*found.files, vocabulary), vocabulary=vocabulary)


def read_ids(source: Source, *, vocab_size: int, documents: str) -> Iterator[Piece]:
    """Yield the ids of a file in order; of `documents=record` each list of .jsonl is one, else the file is.

    `UserError` naming the place of what is no id below `vocab_size`.
    """
    begins, count = True, 0
    try:
        for ids, line in _READERS[source.format](source):
            wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
            if wrong.size:
                where = "" if line is None else f" on line {line}"
                raise UserError(
                    f"{source.place} holds id {ids[wrong[0]]} as token {count + wrong[0]} (counted from 0){where}, and "
                    f"ids must be at least 0 and below {vocab_size}, the size that data.vocab_size or data.vocabulary "
                    "says"
                )
            yield Piece(ids, begins)
            begins = documents == "record" and source.format == ".jsonl"
            count += len(ids)
    except OSError as error:
        raise UserError(f"{source.place} cannot be read: {first_line(error)}") from error


def _vocabulary_file(config: TokensConfig) -> SourceFile | None:
    if config.vocabulary is None:
        return None
    path = Path(os.path.expanduser(config.vocabulary))
    try:
        return describe(path.resolve(strict=True), name=path.name)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"data.vocabulary is {config.vocabulary!r}, which cannot be read: {first_line(error)}; it must name a "
            "vocabulary.json"
        ) from error


def _source(file: SourceFile, config: TokensConfig, *, setting: str) -> Source:
    suffix = _suffix(file)
    if suffix not in _FORMS:
        raise UserError(f"{setting}, where {file.name!r} is none of .npy, .bin, .jsonl and .txt, which hold token ids")
    if suffix == ".bin" and config.dtype is not None and file.size % np.dtype(config.dtype).itemsize:
        raise UserError(
            f"data.dtype is {config.dtype!r}, and must fit {file.name!r}, whose {file.size:,} bytes are no multiple of "
            f"{np.dtype(config.dtype).itemsize}"
        )
    return Source(file=file, format=suffix, dtype=config.dtype if suffix == ".bin" else None)


def _suffix(file: SourceFile) -> str:
    return os.path.splitext(file.name)[1].lower()


def _npy(source: Source) -> Iterator[_Numbers]:
    path = source.file.path
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(
            f"{source.place} cannot be read as .npy, and must be as numpy.save writes integers: {first_line(error)}"
        ) from error
    if not isinstance(array, np.memmap) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"{source.place} must hold integers in one dimension; documents are told apart in .jsonl, one a line"
        )
    return _flat(source, array.dtype, offset=array.offset, length=len(array))


def _raw(source: Source) -> Iterator[_Numbers]:
    dtype = np.dtype(source.dtype).newbyteorder("<")
    return _flat(source, dtype, offset=0, length=source.file.size // dtype.itemsize)


def _flat(source: Source, dtype: np.dtype[Any], *, offset: int, length: int) -> Iterator[_Numbers]:
    with source.file.path.open("rb") as file:
        file.seek(offset)
        for start in range(0, length, _IDS_AT_ONCE):
            ids = np.fromfile(file, dtype, wanted := min(_IDS_AT_ONCE, length - start))
            if len(ids) < wanted:
                raise UserError(f"{source.place} became shorter while it was read; start again once it is at rest")
            yield _Numbers(ids)


def _words(source: Source) -> Iterator[_Numbers]:
    rest, count = b"", 0
    with source.file.path.open("rb") as file:
        for read in iter(partial(file.read, CHUNK_BYTES), b""):
            text = rest + (read if count or rest else read.removeprefix(b"\xef\xbb\xbf"))
            words, rest = text.split(), b""
            if words and not text[-1:].isspace():
                rest = words.pop()  # a number may go on in what is read next
            if len(rest) > _LONGEST_NUMBER:
                words.append(rest)  # it is refused
            if words:
                yield _Numbers(_integers(words, source, before=count))
                count += len(words)
        if rest:
            yield _Numbers(_integers([rest], source, before=count))


def _integers(words: list[bytes], source: Source, *, before: int) -> NDArray[np.int64]:
    try:
        return np.array(list(map(int, words)), np.int64)
    except (ValueError, OverflowError):
        for number, word in enumerate(words, start=before):
            if not word.removeprefix(b"-").isdigit() or len(word) > 18:
                shown = repr(word[:80].decode("ascii", "backslashreplace"))
                raise UserError(
                    f"{source.place} holds {shown} as token {number} (counted from 0), and must hold integers there"
                ) from None
        raise


def _lists(source: Source) -> Iterator[_Numbers]:
    with source.file.path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST_RECORD), b""), 1):
            if not line.strip():
                continue
            try:
                ids = np.array(json.loads(line))
            except (ValueError, OverflowError, RecursionError) as error:
                raise UserError(f"{source.place}, line {number}, is no JSON list of numbers: {error}") from error
            if ids.shape != (0,) and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
                raise UserError(f"{source.place}, line {number}, must be a list of integers, such as [3, 1, 2]")
            if len(ids):
                yield _Numbers(ids, number)


_READERS = {".npy": _npy, ".bin": _raw, ".jsonl": _lists, ".txt": _words}
