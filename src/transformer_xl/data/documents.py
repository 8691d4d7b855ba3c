"""Documents one behind the other in a flat file, of which splits and pieces of work are ranges, and their ids."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.corpus import START_DTYPE, token_dtype
from transformer_xl.data.files import CHUNK_BYTES, Cut
from transformer_xl.data.lanes import SPLITS
from transformer_xl.data.tokenizer import EncodeError, Part, Tokenizer, character_border
from transformer_xl.errors import UserError

WINDOW = 2 << 20
"""Bytes, or ids, that are encoded together; a document without a place to cut may have up to `_LONGEST`."""
SEARCHED = 1 << 20
"""How far a cut moves forward to the next border of a document or a line."""
_LONGEST = 64 << 20
_LEARNING_WINDOW = 1 << 20
_WORTH_PROCESSES_S = 2.0
_SECONDS_BETWEEN_LINES = 10.0
_LINE_END = re.compile(rb"\r\n|[\r\n]")
Encoded = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]
"""What `Encoder.encode` returns."""


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

    def write(self, parts: Iterable[Part], *, place: str) -> None:
        """Append documents that come from one place, such as a file; those without content are left out."""
        self._places.append((self.size, place))
        begins = False
        with self._path.open("ab", CHUNK_BYTES) as file, self._starts_path.open("ab") as starts:
            for data, _, is_first, _ in parts:
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


def windows(flat: Flat, part: range, split_point: Callable[[bytes], int]) -> Iterator[list[Part]]:
    """Yield the documents of a range, many short ones together, and long ones in parts.

    `split_point` finds the last place in some bytes where a document may be cut; 0: there is none.
    """
    begin, width = part.start, WINDOW
    while begin < part.stop:
        stop = min(begin + width, part.stop)
        data: Any = flat.read(begin, stop)
        data = data.tobytes() if flat.is_text else data
        first, last = np.searchsorted(flat.starts, [begin + 1, stop + 1])
        edges = [begin, *flat.starts[first:last].tolist()]
        if stop == part.stop:
            edges += [stop] if edges[-1] != stop else []
        elif len(edges) == 1:
            cut = split_point(data) if flat.is_text else len(data)
            if not cut and width < _LONGEST:
                width *= 2
                continue
            edges.append(begin + (cut or character_border(data)))
        begins, ends = flat.next_start(begin) == begin, flat.next_start(edges[-1]) == edges[-1]
        yield [
            Part(data[start - begin : end - begin], ends or end < edges[-1], begins or start > begin, start)
            for start, end in pairwise(edges)
        ]
        begin, width = edges[-1], WINDOW


def split_documents(
    flat: Flat, cut: Cut, *, are_documents: bool, limit: int | None, folder: Path
) -> tuple[Flat, list[range]]:
    """Divide documents into training, validation and test, at borders of the text that depend on no tokenizer.

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
    for window in windows(flat, range(flat.size), len):
        for content, ends, _, _ in window:
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


def _chosen(flat: Flat, mask: NDArray[np.bool_]) -> Iterator[Part]:
    number = -1
    for window in windows(flat, range(flat.size), len):
        for part in window:
            number += part.begins
            if mask[number]:
                yield part


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns ranges of documents into ids; `strips`: without line ends; `end`: the id behind each document."""

    flat: Flat
    tokenizer: Tokenizer
    strips: bool
    end: int | None

    def encode(self, window: list[Part]) -> Encoded:
        """Return the ids of documents, where in them documents begin, and counts.

        Counted: ids for what the vocabulary lacks, bytes of text that decoding gives back, bytes that it does not.
        `UserError` naming the place of what cannot be said.
        """
        ids: list[Any] = []
        starts, size, counts = [], 0, np.zeros(3, np.int64)
        for part in window:
            found, *numbers = self._encoded(part) if self.flat.is_text else (part.data, 0, 0, 0)
            ends = [self.end] if part.ends and self.end is not None else []
            starts += [size] if part.begins else []
            ids += [found, ends]
            size += len(found) + len(ends)
            counts += numbers
        joined = np.concatenate(ids, dtype=token_dtype(self.tokenizer.size), casting="unsafe")
        return joined, np.array(starts, START_DTYPE), counts

    def _encoded(self, part: Part) -> tuple[NDArray[Any], int, int, int]:
        text = _stripped(part, self.strips)
        try:
            found = self.tokenizer.encode_part(text)
        except EncodeError as error:
            kept = [place for place, value in enumerate(part.data) if not (self.strips and value in b"\r\n")]
            raise UserError(
                f"{self.flat.place(part.place + kept[error.byte])} {error.problem}: training from its model with "
                "init_vocabulary=extend adds it, data.newline=drop leaves line ends out"
            ) from error
        return *found, len(text.data) - found.text_bytes

    def write(
        self, part: range, *, split: str, folder: Path, limit: int | None, announce: Callable[[str], None]
    ) -> dict[str, int]:
        """Write a split's ids and where its documents begin into new files; return their numbers and the counts.

        `limit`: tokens at which it ends.
        """
        tokens = documents = 0
        counts = np.zeros(3, np.int64)
        said = time.monotonic()
        with (
            (folder / f"{split}.bin").open("xb") as ids_file,
            (folder / f"{split}.documents.bin").open("xb") as starts_file,
        ):
            for ids, starts, found in self._all(part, spread=limit is None):
                if not tokens and self.tokenizer.opening:  # stands before the first text
                    opening = np.array(self.tokenizer.opening, ids.dtype)
                    ids, starts = np.concatenate([opening, ids]), np.where(starts == 0, 0, starts + len(opening))
                if limit is not None and tokens + len(ids) > limit:
                    kept = limit - tokens
                    found = found * kept // len(ids)
                    ids, starts = ids[:kept], starts[starts < kept]
                ids_file.write(ids.data)
                starts_file.write((starts + tokens).data)
                tokens, documents, counts = tokens + len(ids), documents + len(starts), counts + found
                if tokens == limit:
                    break
                done, total = int(counts[1:].sum()) or tokens, len(part)
                if done < total and time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                    said = time.monotonic()
                    announce(f"data: turning the {split} split into tokens, {100 * done // total} %")
            for file in (ids_file, starts_file):
                file.flush()
                os.fsync(file.fileno())
        named = zip(("unknown", "text_bytes", "lost_bytes"), counts.tolist(), strict=True)
        return {"tokens": tokens, "documents": documents, **dict(named)}

    def _all(self, part: range, *, spread: bool) -> Iterator[Encoded]:
        """Yield the ids of a range, window by window, from all cores once that is worth it."""
        waiting = windows(self.flat, part, self.tokenizer.split_point)
        cores = len(os.sched_getaffinity(0)) if spread else 1
        began = time.monotonic()
        for window in waiting:
            yield self.encode(window)
            done = window[-1].place + len(window[-1].data) - part.start
            if cores > 1 and (time.monotonic() - began) * (len(part) - done) > _WORTH_PROCESSES_S * done:
                break
        else:
            return
        with ProcessPoolExecutor(cores, get_context("fork"), _prepare_worker, (self,)) as pool:
            found: deque[Future[Encoded]] = deque()
            try:
                for window in waiting:
                    found.append(pool.submit(_encode, window))
                    if len(found) > 2 * cores:
                        yield found.popleft().result()
                while found:
                    yield found.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)


_worker_encoder: Encoder


def _prepare_worker(encoder: Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else the library warns of the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode(window: list[Part]) -> Encoded:
    return _worker_encoder.encode(window)


def _stripped(part: Part, strips: bool) -> Part:
    return part._replace(data=part.data.translate(None, b"\r\n")) if strips else part


def learning_parts(flat: Flat, ranges: Iterable[range], cls: type[Tokenizer], *, strips: bool) -> Iterator[Part]:
    """Yield the documents that a vocabulary is learnt from; of a large text windows that a fixed seed draws."""
    for part in ranges:
        if cls.sample_bytes is None or len(part) <= cls.sample_bytes:
            for window in windows(flat, part, cls.learning_split_point):
                yield from (_stripped(one, strips) for one in window)
            continue
        drawn = np.random.Generator(np.random.PCG64(0)).permutation(-(-len(part) // _LEARNING_WINDOW))
        for number in np.sort(drawn[: cls.sample_bytes // _LEARNING_WINDOW]).tolist():
            begin = part.start + number * _LEARNING_WINDOW
            some = range(begin, min(begin + _LEARNING_WINDOW, part.stop))
            for window in windows(flat, some, character_border):
                for one in window:  # it may begin or end inside a character
                    yield _stripped(Part(one.data.decode(errors="ignore").encode()), strips)
