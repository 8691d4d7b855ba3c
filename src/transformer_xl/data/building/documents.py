"""Which parts of a file are documents."""

from __future__ import annotations

import itertools
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rule = Literal["none", "file", "blank_line", "marker", "record"]
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
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
    return _mapped(table)


def _between_blank_lines(path: Path, *, size: int) -> Iterator[tuple[int, int]]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = 0
        for blank in _BLANK_LINES.finditer(text):
            yield start, blank.end()
            start = blank.end()
        yield start, size


def _between_markers(path: Path, marker: bytes, *, size: int) -> Iterator[tuple[int, int]]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = 0
        found = text.find(marker)
        while found >= 0:
            line_start = text.rfind(b"\n", max(0, found - _MARGIN), found) + 1 or max(0, found - _MARGIN)
            after = found + len(marker) + _MARGIN
            line_end = text.find(b"\n", found, after)
            after = line_end + 1 if line_end >= 0 else min(after, size)
            is_line = (line_end >= 0 or after == size) and (line_start == 0 or text[line_start - 1] == 10)
            if is_line and text[line_start:after].strip() == marker:
                yield start, line_start
                start = after
            found = text.find(marker, max(found + len(marker), start))
        yield start, size


def _written(rows: Iterator[tuple[int, int]], table: Path) -> NDArray[np.int64]:
    """Keep rows in a file, so that memory does not grow with their number; empty documents are left out."""
    with table.open("wb") as file:
        while some := list(itertools.islice(rows, _WRITTEN_AT_ONCE)):
            file.write(np.array([row for row in some if row[0] < row[1]], "<i8").tobytes())
    return _mapped(table)


def _mapped(table: Path) -> NDArray[np.int64]:
    if table.stat().st_size == 0:
        return np.zeros((0, 2), np.int64)
    return np.memmap(table, "<i8", mode="r").reshape(-1, 2)
