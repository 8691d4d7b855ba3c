"""Cutting one text, which may lie in several files, into contiguous training, validation and test parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

_SEARCHED_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16


class Range(NamedTuple):
    """The bytes [start, stop) of the file with this number."""

    number: int
    start: int
    stop: int


def cut_into_splits(
    paths: Sequence[Path], sizes: Sequence[int], *, valid_fraction: float, test_fraction: float
) -> tuple[list[Range], list[Range], list[Range]]:
    """Cut the concatenated files (sizes in bytes) into training, validation and test ranges, in this order.

    A cut moves forward to just after the next line end (a file's end is one); where none lies within 1 MiB and before
    the next cut, to the next border of a UTF-8 character. A fraction of 0 gives no ranges.
    """
    starts = [0, *accumulate(sizes)]
    total = starts[-1]
    test_from = int(total * (1 - test_fraction)) if test_fraction else total
    valid_from = int(total * (1 - (valid_fraction + test_fraction))) if valid_fraction else test_from
    second = _border(paths, starts, at=test_from, bound=total)
    # Equal raw cuts (no validation part) must stay equal after they move.
    first = second if valid_from == test_from else _border(paths, starts, at=valid_from, bound=test_from)
    edges = (0, first, max(first, second), total)
    train, valid, test = (_ranges(starts, begin=edges[part], end=edges[part + 1]) for part in range(3))
    return train, valid, test


def cut_by_bytes(size: int) -> tuple[Range, Range, Range]:
    """Cut one file of `size` bytes as enwik8 and text8 are: 90, 5 and 5 in a hundred of its bytes, wherever that is."""
    edges = (0, size * 90 // 100, size * 95 // 100, size)
    train, valid, test = (Range(0, start, stop) for start, stop in pairwise(edges))
    return train, valid, test


def _ranges(starts: Sequence[int], *, begin: int, end: int) -> list[Range]:
    found = []
    for number in range(len(starts) - 1):
        start, stop = max(begin, starts[number]), min(end, starts[number + 1])
        if start < stop:
            found.append(Range(number, start - starts[number], stop - starts[number]))
    return found


def _border(paths: Sequence[Path], starts: Sequence[int], *, at: int, bound: int) -> int:
    """Find where the cut wished for at byte `at` of the whole text may fall: in [at, bound)."""
    if at in starts:
        return at
    number = max(number for number, start in enumerate(starts) if start < at)
    size = starts[number + 1] - starts[number]
    offset = at - starts[number]
    moved = starts[number] + _after_line_end(paths[number], offset=offset, size=size)
    if moved < bound and moved - at <= _SEARCHED_BYTES:
        return moved
    return starts[number] + _character_border(paths[number], offset=offset)


def _after_line_end(path: Path, *, offset: int, size: int) -> int:
    """Return the first offset, not below this one, that follows a line end, as far as the search goes."""
    with path.open("rb") as file:
        # The byte before the cut belongs to the search: it may be the line end itself.
        position = file.seek(offset - 1)
        while position <= offset + _SEARCHED_BYTES:
            block = file.read(_BLOCK_BYTES)
            if not block:
                return size
            ends = [place for place in (block.find(b"\n"), block.find(b"\r")) if place >= 0]
            if not ends:
                position += len(block)
                continue
            after = position + min(ends) + 1
            file.seek(after - 1)
            return after + (file.read(2) == b"\r\n")
    return position


def _character_border(path: Path, *, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        following = file.read(3)
    # In UTF-8 the bytes 10xxxxxx continue a character, at most three of them.
    continued = 0
    while continued < len(following) and following[continued] & 0xC0 == 0x80:
        continued += 1
    return offset + continued
