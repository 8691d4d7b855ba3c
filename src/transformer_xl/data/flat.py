"""Documents one behind the other in a flat file, of which splits and pieces of work are ranges."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.corpus import START_DTYPE
from transformer_xl.data.files import CHUNK_BYTES, Cut
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data.text import Piece
from transformer_xl.data.tokenizer import Part, character_border

WINDOW = 2 << 20
"""Bytes, or ids, that are encoded together; a document without a place to cut may have up to `_LONGEST`."""
SEARCHED = 1 << 20
"""How far a cut moves forward to the next border of a document or a line."""
_LONGEST = 64 << 20
_LINE_END = re.compile(rb"\r\n|[\r\n]")


class Flat:
    """Documents one behind the other in a file, and the places where they begin in another.

    It holds `size` bytes of UTF-8, or token ids of a type, in `count` documents.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any] | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.is_text = dtype is None
        self.dtype = np.dtype(np.uint8) if dtype is None else dtype
        self.size = self.count = 0
        self._path, self._starts_path = folder / "documents", folder / "starts"
        self._places: list[tuple[int, str]] = []
        self._path.touch()

    def write(self, pieces: Iterable[Piece], *, place: str) -> None:
        """Append documents that come from one place, such as a file; those without content are left out."""
        self._places.append((self.size, place))
        begins = False
        with self._path.open("ab", CHUNK_BYTES) as file, self._starts_path.open("ab") as starts:
            for data, is_first in pieces:
                begins = begins or is_first
                if begins and len(data):
                    starts.write(self.size.to_bytes(START_DTYPE.itemsize, "little"))
                    self.count += 1
                    begins = False
                file.write(data if isinstance(data, bytes) else data.astype(self.dtype).data)
                self.size += len(data)

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Return what stands in [begin, end)."""
        return np.fromfile(self._path, self.dtype, end - begin, offset=begin * self.dtype.itemsize)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The places where documents begin, once all are written."""
        return np.memmap(self._starts_path, START_DTYPE, mode="r") if self.count else np.zeros(0, START_DTYPE)

    def next_start(self, place: int) -> int:
        """Return where the first document begins that begins at or behind a place; the end where none does."""
        number = int(np.searchsorted(self.starts, place))
        return int(self.starts[number]) if number < self.count else self.size

    def place(self, at: int) -> str:
        """Return where something comes from, for messages."""
        begin, place = [entry for entry in self._places if entry[0] <= at][-1]
        return f"{place} at byte {at - begin:,}"


class Window(NamedTuple):
    """Documents that are encoded together, from the place `begin`, where the first one `begins` or goes on."""

    begin: int
    begins: bool
    parts: Sequence[Part]


def windows(flat: Flat, part: range, split_point: Callable[[bytes], int]) -> Iterator[Window]:
    """Yield a range as whole documents, and long ones in parts.

    `split_point` finds the last place in some bytes where a document may be cut; 0: there is none.
    """
    begin, width = part.start, WINDOW
    while begin < part.stop:
        stop = min(begin + width, part.stop)
        data: Any = flat.read(begin, stop)
        data = data.tobytes() if flat.is_text else data
        first, last = np.searchsorted(flat.starts, [begin + 1, stop + 1])
        edges = flat.starts[first:last].tolist()
        if stop == part.stop:
            edges += [stop] if edges[-1:] != [stop] else []
        elif not edges:
            cut = split_point(data) if flat.is_text else len(data)
            if not cut and width < _LONGEST:
                width *= 2
                continue
            edges = [begin + (cut or character_border(data))]
        parts = [data[one - begin : other - begin] for one, other in pairwise([begin, *edges])]
        ends = flat.next_start(edges[-1]) == edges[-1]
        found = [Part(content, number < len(parts) or ends) for number, content in enumerate(parts, 1)]
        yield Window(begin, flat.next_start(begin) == begin, found)
        begin, width = edges[-1], WINDOW


# --- splits ---


def split_documents(
    flat: Flat, cut: Cut, *, are_documents: bool, limit: int | None, folder: Path
) -> tuple[Flat, list[range]]:
    """Divide documents into training, validation and test, at borders of the text that hang on no tokenizer.

    `limit`: bytes (or ids) of validation and of test by `fraction`; what a share has above it is training's. `folder`
    gets a copy where documents have to be sorted.
    """
    if cut.by == "hash":
        return _by_hash(flat, cut, folder)
    total = flat.size
    if cut.by == "bytes":
        # whole numbers of a hundred: 0.95 has no exact double, and these cuts are exact
        valid, test = round(100 * cut.valid), round(100 * cut.test)
        first, second = total * (100 - valid - test) // 100, total * (100 - test) // 100
    else:
        test_from = int(total * (1 - cut.test)) if cut.test else total
        valid_from = int(total * (1 - (cut.valid + cut.test))) if cut.valid else test_from
        border = partial(_border, flat, are_documents=are_documents)
        second = border(test_from if limit is None else max(test_from, total - limit), bound=total)
        if limit is not None:
            valid_from = max(valid_from, second - limit)
        first = border(valid_from, bound=max(test_from, second)) if cut.valid else second
    return flat, [range(*some) for some in pairwise((0, first, max(first, second), total))]


def _border(flat: Flat, at: int, *, bound: int, are_documents: bool) -> int:
    """Move a cut forward: to a document's border before `bound`, else a line's, else a character's."""
    following = flat.next_start(at)
    if at in (0, following, flat.size):
        return at
    if are_documents and following < bound and following - at <= SEARCHED:
        return following
    if not flat.is_text:
        return at
    # the byte before belongs to the search: it may be the line end itself
    data = flat.read(at - 1, min(following, at + SEARCHED + 1)).tobytes()
    line_end = _LINE_END.search(data)
    moved = at - 1 + (line_end.end() if line_end else len(data))
    if moved < bound and moved - at <= SEARCHED:
        return moved
    following_bytes = data[1:4]
    return at + len(following_bytes) - len(following_bytes.lstrip(bytes(range(0x80, 0xC0))))


def _by_hash(flat: Flat, cut: Cut, folder: Path) -> tuple[Flat, list[range]]:
    """Put each document into a split by a number that follows from it alone, so that it stays whatever is added."""
    shares = array("d")
    digest = blake2b(digest_size=8)
    whole = range(flat.size)
    for window in windows(flat, whole, len):
        for content, ends in window.parts:
            # of ids the same whatever the type, which grows with the vocabulary
            digest.update(content if isinstance(content, bytes) else content.astype("<u4").tobytes())
            if ends:
                # 2**64 numbers are more than a double tells apart: the highest would round up to 1
                shares.append((int.from_bytes(digest.digest(), "big") >> 11) / 2**53)
                digest = blake2b(digest_size=8)
    found = np.array(shares)
    split_of = np.where(found >= 1 - cut.test, 2, np.where(found < 1 - (cut.valid + cut.test), 0, 1))
    target, ranges = Flat(folder / "split", None if flat.is_text else flat.dtype), []
    for split in range(len(SPLITS)):
        begin = target.size
        target.write(_chosen(flat, split_of == split), place="a document")
        ranges.append(range(begin, target.size))
    return target, ranges


def _chosen(flat: Flat, mask: NDArray[np.bool_]) -> Iterator[Piece]:
    number, begins = 0, True
    for window in windows(flat, range(flat.size), len):
        for content, ends in window.parts:
            if mask[number]:
                yield Piece(content, begins)
            number, begins = number + ends, ends
