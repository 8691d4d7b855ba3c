"""Token ids to the files of a split."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.counting import JOB_BYTES
from transformer_xl.data.building.encoding import Tokens, encoded
from transformer_xl.data.building.parallel import Telling, in_order
from transformer_xl.data.building.reading import Reading
from transformer_xl.data.building.splitting import into_jobs
from transformer_xl.data.building.text import Stretch, total_size
from transformer_xl.data.tokenizer import Tokenizer, load_vocabulary

START_DTYPE = np.dtype("<i8")
_COPIED_AT_ONCE = 16 << 20


class Written(NamedTuple):
    """What a split's files hold.

    Attributes:
        tokens: ids.
        unknown: how many of them are `<unk>` for a word or character that the vocabulary lacks.
        text_bytes: of the UTF-8 that decoding them gives back; 0 where they are of no text.
        lost_bytes: of the UTF-8 that decoding does not give back.
        documents: how many begin; 1 where the text is not divided.
    """

    tokens: int
    unknown: int
    text_bytes: int
    documents: int
    lost_bytes: int = 0


def token_dtype(size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type, little-endian, that holds `size` ids."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns text into token files.

    Attributes:
        reading: how text becomes symbols.
        vocabulary: a file that holds it, so that every process loads it once.
        announce: gets a line now and then.
    """

    reading: Reading
    vocabulary: Path
    announce: Callable[[str], None]

    def write(self, stretches: Sequence[Stretch], *, tokens: Path, starts: Path, max_tokens: int | None) -> Written:
        """Encode a split's text into new files that are on the disk when this returns.

        Args:
            stretches: the text, in order.
            tokens: gets the ids.
            starts: gets the places where documents begin, if rows are documents.
            max_tokens: where the split ends, or a little before; None: with the text.

        Raises:
            UserError: text cannot be read, or holds a character that the vocabulary lacks.
        """
        vocabulary = _vocabulary(self.vocabulary)
        # the library for sub-words uses all cores by itself
        alone = max_tokens is not None or vocabulary.uses_all_cores
        jobs = [list(stretches)] if alone else into_jobs(stretches, job_bytes=JOB_BYTES)
        folder = tokens.parent
        parts = [
            _Part(self.reading, self.vocabulary, job, folder / f"part-{uuid.uuid4().hex}", max_tokens, number == 0)
            for number, job in enumerate(jobs)
        ]
        if len(parts) == 1:
            parts[0] = parts[0]._replace(target=tokens)
        doing = f"turning the {tokens.stem} split into tokens"
        with starts.open("xb") as starts_file:
            written = Written(0, 0, 0, 0, 0)
            telling = Telling(doing, total=total_size(stretches), announce=self.announce)
            results = (
                (_encode_part(part, telling) for part in parts)
                if alone
                else in_order(_encode_part, parts, doing=doing, announce=self.announce)
            )
            for part, found in zip(parts, results, strict=True):
                _append_starts(_starts_of(part.target), starts_file, base=written.tokens)
                if len(parts) > 1:
                    _append(part.target, tokens)
                written = Written(*(total + more for total, more in zip(written, found, strict=True)))
            _to_disk(starts_file)
        if not self.reading.are_documents:
            starts.unlink()
            written = written._replace(documents=1)
        with tokens.open("ab") as file:
            _to_disk(file)
        return written


class _Part(NamedTuple):
    """Text that one process turns into tokens, and where it leaves them."""

    reading: Reading
    vocabulary: Path
    stretches: list[Stretch]
    target: Path
    max_tokens: int | None
    is_first: bool


def _starts_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.starts")


def _encode_part(part: _Part, telling: Telling | None = None) -> Written:
    vocabulary = _vocabulary(part.vocabulary)
    chunks = encoded(part.reading, vocabulary, part.stretches, short=part.max_tokens is not None)
    if telling is not None:
        chunks = _told(chunks, telling)
    return write_tokens(
        _begun(part, vocabulary, chunks),
        vocabulary=vocabulary,
        tokens=part.target,
        starts=_starts_of(part.target),
        are_documents=part.reading.are_documents,
        max_tokens=part.max_tokens,
    )


def _told(chunks: Iterator[Tokens], telling: Telling) -> Iterator[Tokens]:
    for chunk in chunks:
        yield chunk
        telling.add(chunk.text_bytes + chunk.lost_bytes)


def write_tokens(
    chunks: Iterator[Tokens],
    *,
    vocabulary: Tokenizer,
    tokens: Path,
    starts: Path,
    are_documents: bool,
    max_tokens: int | None,
) -> Written:
    """Write ids, and the places where documents begin, ending each with the vocabulary's symbol for that if it has one.

    With `max_tokens` the chunk that would go beyond is left out, so that bytes and tokens belong to each other; if that
    would leave less than half, it is cut instead, and its bytes and unknown symbols are taken in proportion.
    """
    dtype = token_dtype(vocabulary.size)
    end = vocabulary.end_of_document if are_documents else None
    count = unknown = text_bytes = lost_bytes = documents = 0
    with tokens.open("xb") as token_file, starts.open("xb") as start_file:
        for chunk in chunks:
            ids, begins = _with_ends(chunk, end=end, dtype=dtype)
            if max_tokens is not None and count + len(ids) > max_tokens:
                if count >= max_tokens // 2:
                    break
                kept = max_tokens - count
                chunk = chunk._replace(
                    text_bytes=chunk.text_bytes * kept // len(ids),
                    lost_bytes=chunk.lost_bytes * kept // len(ids),
                    unknown=chunk.unknown * kept // len(ids),
                )
                ids, begins = ids[:kept], begins[begins < kept]
            token_file.write(ids.astype(dtype, copy=False).data)
            start_file.write((begins + count).astype(START_DTYPE).data)
            count, unknown, documents = count + len(ids), unknown + chunk.unknown, documents + len(begins)
            text_bytes, lost_bytes = text_bytes + chunk.text_bytes, lost_bytes + chunk.lost_bytes
            if count == max_tokens:
                break
    return Written(count, unknown=unknown, text_bytes=text_bytes, documents=documents, lost_bytes=lost_bytes)


def _with_ends(chunk: Tokens, *, end: int | None, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Put `end` behind every document that ends here."""
    if end is None:
        return chunk.ids, chunk.starts
    behind = chunk.starts[1:] if chunk.begins else chunk.starts
    places = np.append(behind, len(chunk.ids)) if chunk.ends else behind
    ids = np.insert(chunk.ids.astype(dtype, copy=False), places, end)
    return ids, chunk.starts + np.arange(len(chunk.starts)) + (not chunk.begins)


def _begun(part: _Part, vocabulary: Tokenizer, chunks: Iterator[Tokens]) -> Iterator[Tokens]:
    """Put the ids that stand before the first text there."""
    if part.is_first and vocabulary.opening:
        first = next(chunks, None)
        if first is None:
            return
        yield first._replace(ids=np.concatenate([np.array(vocabulary.opening), first.ids]))
    yield from chunks


@lru_cache(maxsize=1)
def _vocabulary(path: Path) -> Tokenizer:
    return load_vocabulary(path)


def _append(part: Path, whole: Path) -> None:
    with part.open("rb") as source, whole.open("ab") as target:
        shutil.copyfileobj(source, target, _COPIED_AT_ONCE)
    part.unlink()


def _append_starts(part: Path, target: IO[bytes], *, base: int) -> None:
    if part.stat().st_size:
        starts = np.memmap(part, START_DTYPE, mode="r")
        for first in range(0, len(starts), _COPIED_AT_ONCE):
            target.write((starts[first : first + _COPIED_AT_ONCE] + base).astype(START_DTYPE).data)
    part.unlink()


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
