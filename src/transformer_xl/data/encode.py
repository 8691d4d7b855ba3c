"""Documents to files of token ids, over all cores where that takes long."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.corpus import START_DTYPE, token_dtype
from transformer_xl.data.flat import Flat, Window, windows
from transformer_xl.data.tokenizer import Encoded as EncodedPart
from transformer_xl.data.tokenizer import EncodeError, Part, Tokenizer, character_border
from transformer_xl.errors import UserError

_WORTH_PROCESSES_S = 2.0
_SECONDS_BETWEEN_LINES = 10.0
_LEARNING_WINDOW = 1 << 20


class Encoded(NamedTuple):
    """A window as ids, and the places in them where documents begin.

    `counts`: ids for what the vocabulary lacks, bytes of text that decoding gives back, and bytes that it does not.
    """

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns ranges of documents into ids; `strips`: without line ends; `end`: the id behind each document."""

    flat: Flat
    tokenizer: Tokenizer
    strips: bool
    end: int | None

    def encode(self, window: Window) -> Encoded:
        """Return the ids of documents; `UserError` naming the place of what cannot be said."""
        ids: list[Any] = []
        starts, size, counts = [], 0, np.zeros(3, np.int64)
        for data, found, ends in self._encoded(window):
            starts.append(size)
            ids.append(found.ids)
            size += len(found.ids)
            if self.flat.is_text:
                counts += (found.unknown, found.text_bytes, len(data) - found.text_bytes)
            if ends and self.end is not None:
                ids.append([self.end])
                size += 1
        joined = np.concatenate(ids, dtype=token_dtype(self.tokenizer.size), casting="unsafe")
        return Encoded(joined, np.array(starts if window.begins else starts[1:], START_DTYPE), counts)

    def _encoded(self, window: Window) -> Iterator[tuple[bytes, EncodedPart, bool]]:
        parts = [_stripped(part, self.strips) for part in window.parts]
        done = 0
        try:
            for part in parts:
                found = self.tokenizer.encode_part(part) if self.flat.is_text else EncodedPart(part.data, 0, 0)  # type: ignore[arg-type]
                yield part.data, found, part.ends
                done += 1
        except EncodeError as error:
            data, at = window.parts[done].data, window.begin + sum(len(part.data) for part in window.parts[:done])
            kept = [place for place, value in enumerate(data) if not (self.strips and value in b"\r\n")]
            raise UserError(
                f"{self.flat.place(at + kept[error.byte])} {error.problem}: training from its model with "
                "init_vocabulary=extend adds it, data.newline=drop leaves line ends out"
            ) from error

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
            done = sum(len(data) for data, _ in window.parts) + window.begin - part.start
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


def _encode(window: Window) -> Encoded:
    return _worker_encoder.encode(window)


def _stripped(part: Part, strips: bool) -> Part:
    return Part(part.data.translate(None, b"\r\n"), part.ends) if strips else part


def learning_parts(flat: Flat, ranges: Iterable[range], cls: type[Tokenizer], *, strips: bool) -> Iterator[Part]:
    """Yield the documents that a vocabulary is learnt from; of a large text windows that a fixed seed draws."""
    for part in ranges:
        if cls.sample_bytes is None or len(part) <= cls.sample_bytes:
            for window in windows(flat, part, cls.learning_split_point):
                yield from (_stripped(part, strips) for part in window.parts)
            continue
        drawn = np.random.Generator(np.random.PCG64(0)).permutation(-(-len(part) // _LEARNING_WINDOW))
        for number in np.sort(drawn[: cls.sample_bytes // _LEARNING_WINDOW]).tolist():
            begin = part.start + number * _LEARNING_WINDOW
            some = range(begin, min(begin + _LEARNING_WINDOW, part.stop))
            for window in windows(flat, some, character_border):
                for data, _ in window.parts:  # a window may begin or end inside a character
                    yield _stripped(Part(data.decode(errors="ignore").encode()), strips)
