"""Cutting one text, which may lie in several files, into training, validation and test parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

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
        if start < stop:
            found.append(stretch if (start, stop) == (0, size) else _part(stretch, start, stop))
        position += size
    return found


def _part(stretch: Stretch, start: int, stop: int) -> Stretch:
    """Give the bytes [start, stop) of a stretch's rows."""
    edges = np.concatenate([np.zeros(1, np.int64), (stretch.rows[:, 1] - stretch.rows[:, 0]).cumsum()])
    first = int(np.searchsorted(edges, start, side="right")) - 1
    last = int(np.searchsorted(edges, stop, side="left"))
    rows = np.array(stretch.rows[first:last])
    begins = stretch.begins if first == 0 else True
    ends = stretch.ends if last == len(stretch.rows) else True
    begins, ends = begins and edges[first] == start, ends and edges[last] == stop
    rows[-1, 1] -= edges[last] - stop
    rows[0, 0] += start - edges[first]
    return stretch._replace(rows=rows, begins=bool(begins), ends=bool(ends))


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
    edges = starts[number] + np.concatenate([np.zeros(1, np.int64), (stretch.rows[:, 1] - stretch.rows[:, 0]).cumsum()])
    row = int(np.searchsorted(edges, at, side="right")) - 1
    if edges[row] == at:
        return at
    row_end = int(edges[row + 1])
    if are_documents and row_end < bound and row_end - at <= _SEARCHED_BYTES:
        return row_end
    offset = int(stretch.rows[row, 0]) + at - int(edges[row])
    moved = at + _after_line_end(stretch.path, offset=offset, size=int(stretch.rows[row, 1])) - offset
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
    edges = [0]
    while edges[-1] + 2 * size <= total:
        edges.append(_border([stretch], at=edges[-1] + size, bound=total, are_documents=True))
    edges.append(total)
    return [part for start, stop in pairwise(edges) for part in between([stretch], start, stop)]
