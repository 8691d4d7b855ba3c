"""Text on disk in one encoding, as documents, read a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.tokenizer import character_border
from transformer_xl.errors import UserError

CHUNK_BYTES = 2 << 20
LONGEST_CHUNK_BYTES = 64 << 20
"""A chunk in which no place to cut is found grows to this, and is then cut between two characters."""
_ROWS_AT_ONCE = 1 << 16
_BUFFER_BYTES = 1 << 20

FindCut = Callable[[bytes], int]
"""Gives the last place in some text where it may be cut; 0: there is none."""


class Stretch(NamedTuple):
    """Consecutive documents in one file of UTF-8 (of any bytes, if bytes are the symbols).

    Attributes:
        path: of the file.
        rows: a row a document: its first byte, and the byte after its last; int64 (documents x 2), ascending.
        source: the user's file that the text is from, for messages.
        begins: whether the first row begins a document; else it goes on with the one of the stretch before.
        ends: whether the last row ends one.
    """

    path: Path
    rows: NDArray[np.int64]
    source: Path
    begins: bool = True
    ends: bool = True

    @property
    def size(self) -> int:
        """Count the bytes."""
        return sum(int((rows[:, 1] - rows[:, 0]).sum()) for _, rows in self.blocks())

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the rows some thousands at a time, with the number of the first: they may be too many for memory."""
        for first in range(0, len(self.rows), _ROWS_AT_ONCE):
            yield first, np.asarray(self.rows[first : first + _ROWS_AT_ONCE])

    def place(self, offset: int) -> str:
        """Name a byte of the file for a message."""
        if self.path == self.source:
            return f"{str(self.source)!r} at byte {offset}, counted from 0"
        return f"the text of {str(self.source)!r} at byte {offset} of its UTF-8, counted from 0"


class Chunk(NamedTuple):
    """Text of consecutive documents; a long one comes in several chunks.

    Attributes:
        data: its bytes, cut inside no word and no character.
        starts: places in `data` where a document begins, ascending; 0 is not among them if one is continued.
        ends: whether the document that `data` ends with is whole.
        places: where in the file the bytes at `starts` are, or those at 0 and `starts` if a document is continued.
    """

    data: bytes
    starts: NDArray[np.int64]
    ends: bool
    places: NDArray[np.int64]

    def parts(self) -> list[bytes]:
        """Give each document's bytes."""
        edges = [*self._begins.tolist(), len(self.data)]
        return [self.data[start:stop] for start, stop in pairwise(edges)]

    def place(self, part: int, offset: int) -> int:
        """Give the place in the file of a byte of a part."""
        return int(self.places[part]) + offset

    @property
    def continues(self) -> bool:
        """Say whether the first part goes on with a document."""
        return len(self.places) > len(self.starts)

    @property
    def _begins(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(1, np.int64), self.starts]) if self.continues else self.starts


def read_chunks(stretch: Stretch, *, find_cut: FindCut, chunk_bytes: int | None = None) -> Iterator[Chunk]:
    """Yield a stretch in chunks of about `chunk_bytes` (`CHUNK_BYTES`); `UserError` where it cannot be read."""
    limit = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    first, count = 0, len(stretch.rows)
    with _opened(stretch.path) as file:
        while first < count:
            rows = np.asarray(stretch.rows[first : first + _ROWS_AT_ONCE])
            together = int(np.searchsorted((rows[:, 1] - rows[:, 0]).cumsum(), limit, side="right"))
            begins = stretch.begins or first > 0
            taken = max(1, together)
            ends = stretch.ends or first + taken < count
            if together:
                yield _together(file, rows[:together], begins=begins, ends=ends)
            else:
                yield from _in_parts(file, rows[0], begins=begins, ends=ends, find_cut=find_cut, limit=limit)
            first += taken


def _together(file: BinaryIO, rows: NDArray[np.int64], *, begins: bool, ends: bool) -> Chunk:
    lengths = rows[:, 1] - rows[:, 0]
    runs = [0, *(np.flatnonzero(rows[1:, 0] != rows[:-1, 1]) + 1).tolist(), len(rows)]
    data = b"".join(
        _read(file, int(rows[start, 0]), int(rows[stop - 1, 1]) - int(rows[start, 0])) for start, stop in pairwise(runs)
    )
    starts = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()[:-1]])
    return Chunk(data=data, starts=starts if begins else starts[1:], ends=ends, places=rows[:, 0])


def _in_parts(
    file: BinaryIO, row: NDArray[np.int64], *, begins: bool, ends: bool, find_cut: FindCut, limit: int
) -> Iterator[Chunk]:
    position, stop = map(int, row)
    data, taken = b"", position
    is_first = begins
    while position < stop:
        fresh = _read(file, position, min(limit, stop - position))
        position += len(fresh)
        data += fresh
        cut = len(data) if position == stop else find_cut(data)
        if cut == 0 and len(data) >= max(LONGEST_CHUNK_BYTES, limit):
            cut = character_border(data)
        if cut:
            starts = np.zeros(int(is_first), np.int64)
            is_last = position == stop and cut == len(data)
            yield Chunk(data=data[:cut], starts=starts, ends=ends and is_last, places=np.array([taken]))
            data, taken, is_first = data[cut:], taken + cut, False


def _read(file: BinaryIO, start: int, size: int) -> bytes:
    try:
        file.seek(start)
        data = file.read(size)
    except OSError as error:
        raise UserError(f"{file.name!r} cannot be read: {error.strerror}") from error
    if len(data) < size:
        raise UserError(f"{file.name!r} became shorter while it was read; start again once it is at rest")
    return data


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=_BUFFER_BYTES)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def anywhere(data: bytes) -> int:
    """Cut bytes wherever they end."""
    return len(data)


def total_size(stretches: Sequence[Stretch]) -> int:
    """Count the bytes of several stretches."""
    return sum(stretch.size for stretch in stretches)
