"""Files as users write them, and what is extracted from them."""

from __future__ import annotations

import bz2
import gzip
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from transformer_xl.data.building.extraction import Extracted, extract
from transformer_xl.data.sources.files import Origin, describe

ODD_TEXTS = (
    "lines\nof\ttext\n",
    "\r\ncarriage\rreturns\r\n\r",
    "\ufeffa byte order mark",
    "emoji \U0001f600\U0001f468\u200d\U0001f469 and combining e\u0301 \u0928\u093f",
    'NUL \x00, quotes "\'", commas ,,; separators \x0b\x0c\x1c\x85\u2028\u2029, \ufffd',
    "\u4e2d\u6587\u5c0f\u8bf4",
    "",
    "\n",
    "x" * 300,
)


def zstd(data: bytes) -> bytes:
    packed: bytes = pyarrow.compress(data, "zstd", asbytes=True)
    return packed


PACKERS = {"gzip": gzip.compress, "zstd": zstd, "xz": lzma.compress, "bzip2": bz2.compress}


class Content(NamedTuple):
    data: bytes
    records: list[bytes] | None
    replaced: int
    skipped: int


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def origin_of(path: Path, **changes: Any) -> Origin:
    return Origin(file=describe(path, name=path.name), **changes)


def content(extracted: Extracted) -> Content:
    data = extracted.path.read_bytes()
    assert len(data) == extracted.size
    records = None
    if extracted.records is not None:
        begins = np.fromfile(extracted.records, "<i8").tolist()
        assert begins == sorted(begins)
        assert not begins or begins[0] == 0
        assert begins or not data
        records = [data[start:stop] for start, stop in pairwise([*begins, len(data)])]
    return Content(data, records, extracted.replaced, extracted.skipped)


def extracted(path: Path, *, of: dict[str, Any] | None = None, **changes: Any) -> Content:
    """Extract with the ordinary settings but for `changes`; `of` is about the file."""
    settings: dict[str, Any] = {"encoding": "utf-8", "errors": "strict", "raw": False, "ends_records": False}
    target = path.with_name(f"{path.name}.extracted")
    return content(extract(origin_of(path, **(of or {})), target=target, **(settings | changes)))
