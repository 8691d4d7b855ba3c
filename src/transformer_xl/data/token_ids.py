"""Token ids that another program wrote: .npy, raw numbers (.bin), JSON lists (.jsonl), or numbers between blanks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl import registry
from transformer_xl.data.files import Source, Sources, describe, divide, list_files, read_bytes
from transformer_xl.data.text import without_mark
from transformer_xl.data.tokenizer import Part
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError, first_line

_IDS_AT_ONCE = 1 << 20
_FORMS = (".npy", ".bin", ".jsonl", ".txt")
_WANTED = "a file of token ids (.npy, .bin, .jsonl or .txt), a folder of them, or a glob such as 'ids/**/*.npy'"


@registry.register("corpus", "tokens", TokensConfig)
def token_sources(config: TokensConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the files that `data.path` names, and split them by their names where these say so.

    `UserError` where there are none, one is in no form that holds ids, or they are of unclear splits.
    """
    setting = f"data.path is {config.path!r}"
    found = list_files(str(config.path), setting=setting, wanted=_WANTED)
    if config.vocabulary is not None:
        path = Path(os.path.expanduser(config.vocabulary)).absolute()
        if not path.is_file():
            raise UserError(f"data.vocabulary is {config.vocabulary!r}, and must name a vocabulary.json")
        files = [file for file in found.splits["train"] if not file.path.samefile(path)]
        found = replace(found, splits={"train": files}, vocabulary=describe(path, name=path.name))
    return divide(config, found, partial(_as_named, dtype=config.dtype, setting=setting))


def _as_named(file: Source, *, dtype: str | None, setting: str) -> Source:
    suffix = os.path.splitext(file.name)[1].lower()
    if suffix not in _FORMS:
        raise UserError(f"{setting}, where {file.name!r} is none of {', '.join(_FORMS)}, which hold token ids")
    if suffix == ".bin" and (dtype is None or file.size % np.dtype(dtype).itemsize):
        raise UserError(
            f"data.dtype is {dtype or 'null'}, and must be the type of the numbers in {file.name!r}, which has "
            f"{file.size:,} bytes: uint8, uint16, uint32, int32 or int64"
        )
    return file._replace(format=suffix)


def read_ids(source: Source, *, dtype: str | None, vocab_size: int, documents: str) -> Iterator[Part]:
    """Yield the ids of a file in order; of `documents=record` each list of .jsonl is one, else the file is.

    `UserError` naming the place of what is no id below `vocab_size`; `dtype` is that of .bin.
    """
    begins, count = True, 0
    try:
        for ids in _arrays(source, dtype):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise ValueError("it must hold integers in one dimension (in .jsonl a list of them on each line)")
            wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
            if wrong.size:
                raise UserError(
                    f"{source.place} holds id {ids[wrong[0]]} as token {count + wrong[0]:,}, counted from 0, and ids "
                    f"must be at least 0 and below {vocab_size}, the size that data.vocab_size or data.vocabulary says"
                )
            yield Part(ids, begins=begins)
            begins = documents == "record" and source.format == ".jsonl"
            count += len(ids)
    except UserError:
        raise
    except (OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{source.place} cannot be read after token {count:,}: {first_line(error)}") from error


def _arrays(source: Source, dtype: str | None) -> Iterator[NDArray[Any]]:
    if source.format == ".jsonl":
        with source.path.open("rb") as file:
            yield from (np.array(ids) for line in file if line.strip() and (ids := json.loads(line)) != [])
    elif source.format == ".txt":
        rest = b""
        for chunk in chain(without_mark(read_bytes(source)), [b" "]):
            words = (rest + chunk).split()
            rest = words.pop() if words and not chunk[-1:].isspace() else b""  # it may go on in what is read next
            yield np.array(list(map(int, words)), np.int64)
    else:
        ids = np.load(source.path, mmap_mode="r", allow_pickle=False) if source.format == ".npy" else None
        if ids is None:
            ids = np.memmap(source.path, np.dtype(dtype).newbyteorder("<"), mode="r")
        for start in range(0, len(ids), _IDS_AT_ONCE):
            yield np.asarray(ids[start : start + _IDS_AT_ONCE])
