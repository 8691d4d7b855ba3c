"""Which parts of a file are documents."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.errors import UserError

Rule = Literal["none", "file", "blank_line", "marker", "record"]
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
_WHITE = b" \t\r\n"
_BLOCK_BYTES = 4 << 20
_WRITTEN_AT_ONCE = 1 << 16
_MARGIN = 256
"""Blanks that may stand around a marker on its line; what is farther away is not looked at."""


def document_rows(
    path: Path, *, size: int, rule: Rule, marker: str | None, records: Path | None, table: Path
) -> NDArray[np.int64]:
    """Find the documents of a file of UTF-8.

    Args:
        path: of the file.
        size: its bytes.
        rule: `none` and `file`: all of it is one; `blank_line`: one begins after each run of blank lines, which belong
            to the one before; `marker`: lines that are `marker` stand between them and belong to none; `record`: one
            begins at each place that `records` lists, and without such a list all of it is one.
        marker: see there.
        records: a file of int64 numbers.
        table: where the documents are written down if there may be many of them.

    Returns:
        A row a document that is not empty: its first byte, and the byte after its last; int64 (documents x 2).
    """
    if size == 0:
        return np.zeros((0, 2), np.int64)
    if rule == "record" and records is not None:
        return _rows_of_starts(records, size=size, table=table)
    if rule == "blank_line":
        return _written(_between_blank_lines(path, size=size), table)
    if rule == "marker":
        assert marker is not None
        return _written(_between_markers(path, marker.strip().encode(), size=size), table)
    return np.array([[0, size]], np.int64)


def _rows_of_starts(records: Path, *, size: int, table: Path) -> NDArray[np.int64]:
    if records.stat().st_size == 0:
        return np.zeros((0, 2), np.int64)
    starts = np.memmap(records, "<i8", mode="r")
    with table.open("wb") as file:
        for first in range(0, len(starts), _WRITTEN_AT_ONCE):
            edges = np.asarray(starts[first : first + _WRITTEN_AT_ONCE + 1])
            if first + _WRITTEN_AT_ONCE >= len(starts):
                edges = np.append(edges, size)
            rows = np.stack([edges[:-1], edges[1:]], axis=1)
            file.write(rows[rows[:, 0] < rows[:, 1]].tobytes())
    return map_rows(table)


def _between_blank_lines(path: Path, *, size: int) -> Iterator[tuple[int, int]]:
    start = position = 0
    held = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            text = held + block
            is_last = position + len(text) >= size
            # white space at the end may go on in the next block
            settled = len(text) if is_last else len(text.rstrip(_WHITE))
            for blank in _BLANK_LINES.finditer(text):
                if blank.start() >= settled:
                    break
                if position + blank.start() > start:  # blank lines alone are no document
                    yield start, position + blank.end()
                    start = position + blank.end()
            held = text[settled:]
            position += settled
    _require(path, read=position + len(held), size=size)
    yield start, size


def _between_markers(path: Path, marker: bytes, *, size: int) -> Iterator[tuple[int, int]]:
    start = searched = base = 0
    text = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            text += block
            end = base + len(text)
            # what stands around a marker must be seen, too
            limit = end if end >= size else end - len(marker) - _MARGIN
            while 0 <= (found := text.find(marker, searched - base)) < limit - base:
                line = _line_around(text, found, length=len(marker))
                searched = base + found + len(marker)
                is_first = base + line.start == 0 or text[line.start - 1 : line.start] == b"\n"
                if (
                    is_first
                    and line.is_whole(end >= size, len(text))
                    and text[line.start : line.stop].strip() == marker
                ):
                    yield start, base + line.start
                    start = searched = base + line.stop
            searched = max(searched, limit)
            kept = max(0, searched - _MARGIN - 1 - base)
            text, base = text[kept:], base + kept
    _require(path, read=base + len(text), size=size)
    yield start, size


class _Line(NamedTuple):
    """Where a line begins and ends, its line end included; it may only seem to where it is longer than a margin."""

    start: int
    stop: int
    has_end: bool

    def is_whole(self, is_last: bool, length: int) -> bool:
        return self.has_end or (is_last and self.stop == length)


def _line_around(text: bytes, place: int, *, length: int) -> _Line:
    first, last = max(0, place - _MARGIN), min(len(text), place + length + _MARGIN)
    start, end = text.rfind(b"\n", first, place), text.find(b"\n", place, last)
    return _Line(first if start < 0 else start + 1, last if end < 0 else end + 1, end >= 0)


def _require(path: Path, *, read: int, size: int) -> None:
    if read != size:
        raise UserError(f"{str(path)!r} changed while it was read; start again once it is at rest")


def _written(rows: Iterator[tuple[int, int]], table: Path) -> NDArray[np.int64]:
    """Keep rows in a file, so that memory does not grow with their number; empty documents are left out."""
    with table.open("wb") as file:
        while some := list(itertools.islice(rows, _WRITTEN_AT_ONCE)):
            file.write(np.array([row for row in some if row[0] < row[1]], "<i8").tobytes())
    return map_rows(table)


def map_rows(table: Path) -> NDArray[np.int64]:
    """Map a file of documents that `document_rows` wrote."""
    if table.stat().st_size == 0:
        return np.zeros((0, 2), np.int64)
    return np.memmap(table, "<i8", mode="r").reshape(-1, 2)
