"""Documents to token ids, over several processes where there are many."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.corpus import START_DTYPE, start_file, token_dtype, token_file
from transformer_xl.data.flat import SEARCHED, WINDOW, Flat, Range, Window, windows
from transformer_xl.data.tokenizer import EncodeError, Part, Tokenizer, character_border
from transformer_xl.errors import UserError

_JOB = 8 << 20
_FEWEST_JOBS = 4
"""Starting processes takes a second or two: less than so many jobs are done here."""
_SECONDS_BETWEEN_LINES = 10.0
_LEARNING_WINDOW = 1 << 20


class Written(NamedTuple):
    """What a split's files hold.

    Attributes:
        tokens: ids.
        unknown: how many of them stand for something that the vocabulary lacks.
        text_bytes: of the text that decoding gives back; 0 where they are of no text.
        lost_bytes: of the text that decoding does not give back.
        documents: how many begin; 1 where the text is not divided.
    """

    tokens: int
    unknown: int
    text_bytes: int
    lost_bytes: int
    documents: int


class Encoded(NamedTuple):
    """Documents as ids, each with its end if it has one; `starts`: places in `ids` where documents begin."""

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    unknown: int
    text_bytes: int
    lost_bytes: int


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns ranges of documents into ids.

    Attributes:
        flat: the documents.
        tokenizer: of text; of ids it says what they stand for.
        strips: whether line ends are taken out.
        end: the id behind each document; None: there is none.
    """

    flat: Flat
    tokenizer: Tokenizer
    strips: bool
    end: int | None

    def encode(self, part: Range) -> Iterator[Encoded]:
        """Yield the ids of a range, window by window; `UserError` naming the place of what cannot be said."""
        end = [] if self.end is None else [np.array([self.end])]
        for window in windows(self.flat, part, self.tokenizer.split_point):
            last = len(window.contents) - 1
            found = self._encoded(window) if self.flat.is_text else [(ids, 0, 0, 0) for ids in window.contents]
            ids = [[one[0], *end] if place < last or window.ends else [one[0]] for place, one in enumerate(found)]
            ends = np.cumsum([sum(map(len, some)) for some in ids])
            starts = np.append(0, ends[:-1])
            yield Encoded(
                np.concatenate(list(chain.from_iterable(ids))).astype(token_dtype(self.tokenizer.size)),
                starts if window.begins else starts[1:],
                *(sum(numbers) for numbers in zip(*(one[1:] for one in found), strict=True)),
            )

    def _encoded(self, window: Window) -> list[tuple[NDArray[Any], int, int, int]]:
        last = len(window.contents) - 1
        parts = [
            Part(_stripped(content, self.strips), place < last or window.ends)
            for place, content in enumerate(window.contents)
        ]
        try:
            found = self.tokenizer.encode_parts(parts)
        except EncodeError:
            at = window.begin
            for part, content in zip(parts, window.contents, strict=True):
                try:
                    self.tokenizer.encode_part(part)
                except EncodeError as error:
                    kept = [place for place, value in enumerate(content) if not (self.strips and value in b"\r\n")]
                    raise UserError(
                        f"{self.flat.place(at + kept[error.byte])} {error.problem}: training from its model with "
                        "init_vocabulary=extend adds it, data.newline=drop leaves line ends out"
                    ) from error
                at += len(content)
            raise
        return [(*one, len(part.data) - one.text_bytes) for one, part in zip(found, parts, strict=True)]

    def write(
        self, part: Range, *, split: str, folder: Path, limit: int | None, announce: Callable[[str], None]
    ) -> Written:
        """Write a split's ids and where its documents begin into new files; `limit`: tokens at which it ends."""
        written = Written(0, 0, 0, 0, 0)
        telling = Telling(f"turning the {split} split into tokens", part.end - part.begin, announce)
        opening = np.array(self.tokenizer.opening, token_dtype(self.tokenizer.size))
        with (folder / token_file(split)).open("xb") as token_target, (folder / start_file(split)).open("xb") as starts:
            for found in self._all(part, spread=limit is None):
                telling.add(found.text_bytes + found.lost_bytes)
                if len(opening):  # before the first text
                    ids, places = np.concatenate([opening, found.ids]), found.starts + len(opening)
                    found = found._replace(ids=ids, starts=np.where(found.starts == 0, 0, places))
                    opening = opening[:0]
                if limit is not None and written.tokens + len(found.ids) > limit:
                    found = _first_ids(found, limit - written.tokens)
                token_target.write(found.ids.data)
                starts.write((found.starts + written.tokens).astype(START_DTYPE).data)
                more = (len(found.ids), *found[2:], len(found.starts))
                written = Written(*(sum(numbers) for numbers in zip(written, more, strict=True)))
                if written.tokens == limit:
                    break
            for file in (token_target, starts):
                file.flush()
                os.fsync(file.fileno())
        return written

    def _all(self, part: Range, *, spread: bool) -> Iterator[Encoded]:
        """Yield the ids of a range, from all cores where it is large."""
        jobs = list(_jobs(self.flat, part, self.tokenizer.split_point))
        workers = min(len(os.sched_getaffinity(0)), len(jobs))
        is_known = type(self.tokenizer).__module__ != "__main__"  # to other processes
        if not (spread and is_known) or self.tokenizer.uses_all_cores or workers < 2 or len(jobs) < _FEWEST_JOBS:
            yield from self.encode(part)
            return
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(workers, context, _prepare_worker, (self,)) as pool:
            try:
                waiting: deque[Future[Encoded]] = deque()
                for job in jobs:
                    with _without_main():
                        waiting.append(pool.submit(_encode_job, job))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            except BrokenProcessPool as error:
                raise RuntimeError("a process that read text has ended; was memory short?") from error
            finally:
                pool.shutdown(cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the user's own main program again, which may have no guard against that."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_worker_encoder: Encoder


def _prepare_worker(encoder: Encoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode_job(job: Range) -> Encoded:
    found = list(_worker_encoder.encode(job))
    before = np.append(0, np.cumsum([len(one.ids) for one in found])[:-1])
    return Encoded(
        np.concatenate([one.ids for one in found]),
        np.concatenate([one.starts + first for one, first in zip(found, before, strict=True)]),
        *(sum(numbers) for numbers in zip(*(one[2:] for one in found), strict=True)),
    )


def _jobs(flat: Flat, part: Range, split_point: Callable[[bytes], int]) -> Iterator[Range]:
    """Cut a range into pieces of work, between documents or where a document may be cut."""
    begin, stop = part.begin, part.begin + _JOB
    while stop + _JOB < part.end:
        border = flat.next_start(stop)
        if border - stop > SEARCHED:
            data = flat.read(stop - WINDOW, stop)
            cut = split_point(data.tobytes()) if flat.is_text else len(data)
            border = stop - len(data) + cut if cut else begin
        if begin < border < part.end:
            yield Range(begin, border)
            begin = border
        stop = max(stop, begin) + _JOB
    yield Range(begin, part.end)


def _first_ids(found: Encoded, count: int) -> Encoded:
    """Cut ids; their bytes and unknown ones are taken in proportion."""
    unknown, text, lost = (number * count // len(found.ids) for number in found[2:])
    return Encoded(found.ids[:count], found.starts[found.starts < count], unknown, text, lost)


def _stripped(content: bytes, strips: bool) -> bytes:
    return content.translate(None, b"\r\n") if strips else content


def learning_parts(flat: Flat, ranges: Iterable[Range], cls: type[Tokenizer], *, strips: bool) -> Iterator[Part]:
    """Yield the documents that a vocabulary is learnt from; of a large text windows that a fixed seed draws."""
    for part in ranges:
        total = part.end - part.begin
        if cls.sample_bytes is None or total <= cls.sample_bytes:
            for window in windows(flat, part, cls.learning_split_point):
                last = len(window.contents) - 1
                for place, content in enumerate(window.contents):
                    yield Part(_stripped(content, strips), place < last or window.ends)
            continue
        drawn = np.random.Generator(np.random.PCG64(0)).permutation(-(-total // _LEARNING_WINDOW))
        for number in np.sort(drawn[: cls.sample_bytes // _LEARNING_WINDOW]).tolist():
            begin = part.begin + number * _LEARNING_WINDOW
            some = Range(begin, min(begin + _LEARNING_WINDOW, part.end))
            for window in windows(flat, some, character_border):
                for content in window.contents:  # a window may begin or end inside a character
                    yield Part(_stripped(content.decode(errors="ignore").encode(), strips))


class Telling:
    """Announces every ten seconds how much of something is done."""

    def __init__(self, doing: str, total: int, announce: Callable[[str], None]) -> None:
        self._doing, self._total, self._announce = doing, total, announce
        self._done, self._said = 0, time.monotonic()

    def add(self, done: int) -> None:
        """Count what was done."""
        self._done += done
        if self._done < self._total and time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._announce(f"data: {self._doing}, {100 * self._done // self._total} %")
