"""Cutting one text, which may lie in several files, into training, validation and test parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_xl.data.building.text import Stretch, anywhere, read_chunks, total_size
from transformer_xl.data.sources.files import SPLITS, Cut

_SEARCHED_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 16


def split_text(
    stretches: Sequence[Stretch], cut: Cut, *, are_documents: bool, max_eval_bytes: int | None
) -> dict[str, list[Stretch]]:
    """Divide a text.

    Args:
        stretches: the text, in order.
        cut: how. With `fraction` training comes first, then validation, then test; each cut moves forward to the next
            border of a document within 1 MiB and before the next cut, else to just after the next line end (a file's
            end is one), else to the next border of a UTF-8 character. A share of 0 gives nothing.
        are_documents: whether rows are documents, and not only files that follow each other.
        max_eval_bytes: of validation and of test by `fraction`, each; what a share has above it is training's.

    Returns:
        The parts: train, valid, test.
    """
    if cut.by == "hash":
        return by_shares(stretches, cut, shares=_shares)
    total = total_size(stretches)
    if cut.by == "bytes":
        # whole numbers of a hundred: 0.95 has no exact double, and these cuts are exact
        valid, test = round(100 * cut.valid), round(100 * cut.test)
        first, second = total * (100 - valid - test) // 100, total * (100 - test) // 100
    else:
        first, second = _fractions(stretches, cut, total=total, are_documents=are_documents, limit=max_eval_bytes)
    edges = (0, first, max(first, second), total)
    return {split: between(stretches, edges[part], edges[part + 1]) for part, split in enumerate(SPLITS)}


def between(stretches: Sequence[Stretch], begin: int, end: int) -> list[Stretch]:
    """Give the bytes [begin, end) of a text, counted over its rows."""
    found = []
    position = 0
    for stretch in stretches:
        size = stretch.size
        start, stop = max(begin - position, 0), min(end - position, size)
        if start < stop and (start, stop) == (0, size):
            found.append(stretch)
        elif start < stop:
            first, last = _places(stretch, [start, stop])
            found += _part(stretch, first, last)
        position += size
    return found


class _Place(NamedTuple):
    """A byte of a stretch: in which row, and how far in it; behind the last row it is at its end, in the next."""

    row: int
    inside: int


def _places(stretch: Stretch, offsets: Sequence[int]) -> list[_Place]:
    """Find bytes counted over a stretch's rows, in ascending order."""
    found: list[_Place] = []
    before = 0
    for first, rows in stretch.blocks():
        edges = before + np.concatenate([np.zeros(1, np.int64), (rows[:, 1] - rows[:, 0]).cumsum()])
        while len(found) < len(offsets) and offsets[len(found)] < edges[-1]:
            row = int(np.searchsorted(edges, offsets[len(found)], side="right")) - 1
            found.append(_Place(first + row, offsets[len(found)] - int(edges[row])))
        before = int(edges[-1])
    return found + [_Place(len(stretch.rows), 0)] * (len(offsets) - len(found))


def _part(stretch: Stretch, first: _Place, last: _Place) -> list[Stretch]:
    """Give a stretch from one place to another: whole rows as they are, and those that are cut apart from them."""
    count = len(stretch.rows)

    def rows_between(start: int, stop: int) -> Stretch:
        begins, ends = stretch.begins or start > 0, stretch.ends or stop < count
        return stretch._replace(rows=stretch.rows[start:stop], begins=begins, ends=ends)

    def cut(row: int, *, start: int, stop: int | None) -> Stretch:
        part = rows_between(row, row + 1)
        (begin, end), *_ = part.rows.tolist()
        rows = np.array([[begin + start, end if stop is None else begin + stop]], np.int64)
        return part._replace(rows=rows, begins=part.begins and start == 0, ends=part.ends and stop is None)

    if first.row == last.row:
        return [cut(first.row, start=first.inside, stop=last.inside)]
    found = [cut(first.row, start=first.inside, stop=None)] if first.inside else []
    start = first.row + (first.inside > 0)
    found += [rows_between(start, last.row)] if start < last.row else []
    return found + ([cut(last.row, start=0, stop=last.inside)] if last.inside else [])


def _fractions(
    stretches: Sequence[Stretch], cut: Cut, *, total: int, are_documents: bool, limit: int | None
) -> tuple[int, int]:
    test_from = int(total * (1 - cut.test)) if cut.test else total
    valid_from = int(total * (1 - (cut.valid + cut.test))) if cut.valid else test_from
    if limit is not None:
        test_from = max(test_from, total - limit)
        valid_from = max(valid_from, test_from - limit) if cut.valid else test_from
    second = _border(stretches, at=test_from, bound=total, are_documents=are_documents)
    # Equal raw cuts (no validation part) must stay equal after they move.
    same = valid_from == test_from
    first = second if same else _border(stretches, at=valid_from, bound=test_from, are_documents=are_documents)
    return first, second


def _border(stretches: Sequence[Stretch], *, at: int, bound: int, are_documents: bool) -> int:
    """Find where the cut wished for at byte `at` of the whole text may fall: in [at, bound)."""
    starts = [0, *accumulate(stretch.size for stretch in stretches)]
    if at in starts:
        return at
    number = max(number for number, start in enumerate(starts) if start < at)
    stretch = stretches[number]
    (place,) = _places(stretch, [at - starts[number]])
    if place.inside == 0:
        return at
    row_start, row_stop = map(int, stretch.rows[place.row])
    row_end = at + row_stop - row_start - place.inside
    if are_documents and row_end < bound and row_end - at <= _SEARCHED_BYTES:
        return row_end
    offset = row_start + place.inside
    moved = at + _after_line_end(stretch.path, offset=offset, size=row_stop) - offset
    if moved < bound and moved - at <= _SEARCHED_BYTES:
        return moved
    return at + _character_border(stretch.path, offset=offset) - offset


def _after_line_end(path: Path, *, offset: int, size: int) -> int:
    """Return the first offset, not below this one, that follows a line end or is `size`, as far as the search goes."""
    with path.open("rb") as file:
        # The byte before the cut belongs to the search: it may be the line end itself.
        position = file.seek(offset - 1)
        while position <= offset + _SEARCHED_BYTES:
            block = file.read(_BLOCK_BYTES)[: max(0, size - position)]
            if not block:
                return size
            ends = [place for place in (block.find(b"\n"), block.find(b"\r")) if place >= 0]
            if not ends:
                position += len(block)
                continue
            after = position + min(ends) + 1
            file.seek(after - 1)
            return min(size, after + (file.read(2) == b"\r\n"))
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


def by_shares(
    stretches: Sequence[Stretch], cut: Cut, *, shares: Callable[[Stretch], Iterable[float]]
) -> dict[str, list[Stretch]]:
    """Give each document to a split by a number that follows from it alone, so that it stays whatever is added.

    Args:
        stretches: documents.
        cut: the shares of the splits.
        shares: gives a number in [0, 1) for each document of a stretch, evenly spread.
    """
    found: dict[str, list[Stretch]] = {split: [] for split in SPLITS}
    for stretch in stretches:
        numbers = np.fromiter(shares(stretch), np.float64, count=len(stretch.rows))
        of_test = numbers >= 1 - cut.test
        of_train = numbers < 1 - (cut.valid + cut.test)
        for split, mask in zip(SPLITS, (of_train, ~of_train & ~of_test, of_test), strict=True):
            if mask.any():
                found[split].append(stretch._replace(rows=np.asarray(stretch.rows)[mask]))
    return found


def share_of(digest: bytes) -> float:
    """Turn eight bytes of a hash into a number in [0, 1)."""
    # 2**64 numbers are more than a double tells apart: the highest would round up to 1
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def _shares(stretch: Stretch) -> Iterator[float]:
    """Give a number in [0, 1) for each document."""
    digest = hashlib.blake2b(digest_size=8)
    for chunk in read_chunks(stretch, find_cut=anywhere):
        *whole, last = chunk.parts()
        for part in whole:
            digest.update(part)
            yield share_of(digest.digest())
            digest = hashlib.blake2b(digest_size=8)
        digest.update(last)
        if chunk.ends:
            yield share_of(digest.digest())
            digest = hashlib.blake2b(digest_size=8)


def into_jobs(stretches: Iterable[Stretch], *, job_bytes: int) -> list[list[Stretch]]:
    """Divide a text into parts of about `job_bytes`, cut between documents or after line ends."""
    jobs: list[list[Stretch]] = [[]]
    taken = 0
    for stretch in stretches:
        for part in _pieces(stretch, job_bytes):
            if taken and taken + part.size > job_bytes:
                jobs.append([])
                taken = 0
            jobs[-1].append(part)
            taken += part.size
    return jobs


def _pieces(stretch: Stretch, size: int) -> list[Stretch]:
    total = stretch.size
    if total < 2 * size:
        return [stretch] if total else []
    wished = list(range(size, total - size + 1, size))
    edges = [_Place(0, 0)]
    for place in _places(stretch, wished):
        moved = _to_border(stretch, place)
        if moved > edges[-1]:
            edges.append(moved)
    if edges[-1].row < len(stretch.rows):
        edges.append(_Place(len(stretch.rows), 0))
    return [part for first, last in pairwise(edges) for part in _part(stretch, first, last)]


def _to_border(stretch: Stretch, place: _Place) -> _Place:
    """Move a place forward to where a text may be cut: the next row if it is near, else the next line."""
    if place.inside == 0:
        return place
    row_start, row_stop = map(int, stretch.rows[place.row])
    offset = row_start + place.inside
    if row_stop - offset <= _SEARCHED_BYTES:
        return _Place(place.row + 1, 0)
    moved = _after_line_end(stretch.path, offset=offset, size=row_stop)
    if moved - offset > _SEARCHED_BYTES:
        moved = _character_border(stretch.path, offset=offset)
    return _Place(place.row, moved - row_start) if moved < row_stop else _Place(place.row + 1, 0)
