"""Text to files of token ids."""

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
from transformer_xl.data.building.parallel import in_order
from transformer_xl.data.building.reading import LINE_ENDS, Reading, decoded
from transformer_xl.data.building.splitting import into_jobs
from transformer_xl.data.building.text import Chunk, Stretch, read_chunks
from transformer_xl.data.building.word_splitting import split_texts
from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SentenceVocabulary,
    SubwordVocabulary,
    Vocabulary,
    load_vocabulary,
)
from transformer_xl.errors import UserError

START_DTYPE = np.dtype("<i8")
_EVAL_CHUNK_BYTES = 1 << 16
_COPIED_AT_ONCE = 16 << 20


class Written(NamedTuple):
    """What a split's files hold.

    Attributes:
        tokens: ids.
        unknown: how many of them are `<unk>` for a word or character that the vocabulary lacks.
        text_bytes: of the UTF-8 that they stand for; 0 where they are of no text.
        documents: how many begin; 1 where the text is not divided.
    """

    tokens: int
    unknown: int
    text_bytes: int
    documents: int


class Tokens(NamedTuple):
    """Ids of consecutive documents, or parts of them.

    Attributes:
        ids: in order.
        starts: places in `ids` where a document begins.
        begins: whether the first of them does, at 0; else `ids` go on with the document before.
        unknown: how many are `<unk>` for something that the vocabulary lacks.
        ends: whether the document that `ids` end with is whole.
        text_bytes: of the text that they stand for.
    """

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    begins: bool
    unknown: int
    ends: bool
    text_bytes: int


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
        alone = max_tokens is not None or isinstance(vocabulary, SubwordVocabulary)
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
            written = Written(0, 0, 0, 0)
            for part, found in zip(
                parts, in_order(_encode_part, parts, doing=doing, announce=self.announce), strict=True
            ):
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


def _encode_part(part: _Part) -> Written:
    vocabulary = _vocabulary(part.vocabulary)
    chunks = encoded(part.reading, vocabulary, part.stretches, short=part.max_tokens is not None)
    return write_tokens(
        _begun(part, vocabulary, chunks),
        vocabulary=vocabulary,
        tokens=part.target,
        starts=_starts_of(part.target),
        are_documents=part.reading.are_documents,
        max_tokens=part.max_tokens,
    )


def write_tokens(
    chunks: Iterator[Tokens],
    *,
    vocabulary: Vocabulary,
    tokens: Path,
    starts: Path,
    are_documents: bool,
    max_tokens: int | None,
) -> Written:
    """Write ids, and the places where documents begin, ending each with the vocabulary's symbol for that if it has one.

    With `max_tokens` the chunk that would go beyond is left out, so that bytes and tokens belong to each other; if that
    would leave less than half, it is cut instead, and its bytes are taken in proportion.
    """
    dtype = token_dtype(vocabulary.size)
    end = vocabulary.end_of_document if are_documents else None
    count = unknown = text_bytes = documents = 0
    with tokens.open("xb") as token_file, starts.open("xb") as start_file:
        for chunk in chunks:
            ids, begins = _with_ends(chunk, end=end, dtype=dtype)
            if max_tokens is not None and count + len(ids) > max_tokens:
                if count >= max_tokens // 2:
                    break
                kept = max_tokens - count
                chunk = chunk._replace(text_bytes=chunk.text_bytes * kept // len(ids))
                ids, begins = ids[:kept], begins[begins < kept]
            token_file.write(ids.astype(dtype, copy=False).data)
            start_file.write((begins + count).astype(START_DTYPE).data)
            count, unknown, documents = count + len(ids), unknown + chunk.unknown, documents + len(begins)
            text_bytes += chunk.text_bytes
            if count == max_tokens:
                break
    return Written(tokens=count, unknown=unknown, text_bytes=text_bytes, documents=documents)


def _with_ends(chunk: Tokens, *, end: int | None, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Put `end` behind every document that ends here."""
    if end is None:
        return chunk.ids, chunk.starts
    behind = chunk.starts[1:] if chunk.begins else chunk.starts
    places = np.append(behind, len(chunk.ids)) if chunk.ends else behind
    ids = np.insert(chunk.ids.astype(dtype, copy=False), places, end)
    return ids, chunk.starts + np.arange(len(chunk.starts)) + (not chunk.begins)


def encoded(
    reading: Reading, vocabulary: Vocabulary, stretches: Sequence[Stretch], *, short: bool = False
) -> Iterator[Tokens]:
    """Yield text as ids, in chunks (`short`: small ones)."""
    chunk_bytes = _EVAL_CHUNK_BYTES if short else None
    for stretch in stretches:
        for chunk in read_chunks(stretch, find_cut=reading.find_cut(vocabulary), chunk_bytes=chunk_bytes):
            yield _encode(reading, vocabulary, chunk, stretch)


def _begun(part: _Part, vocabulary: Vocabulary, chunks: Iterator[Tokens]) -> Iterator[Tokens]:
    """Put the symbol that stands before the first sentence there."""
    if part.is_first and isinstance(vocabulary, SentenceVocabulary):
        first = next(chunks, None)
        if first is None:
            return
        yield first._replace(ids=np.concatenate([vocabulary.encode(""), first.ids]))
    yield from chunks


def _encode(reading: Reading, vocabulary: Vocabulary, chunk: Chunk, stretch: Stretch) -> Tokens:
    if reading.is_of_bytes:
        return _encode_bytes(reading, vocabulary, chunk, stretch)
    texts = decoded(chunk, stretch)
    unknown = 0
    if isinstance(vocabulary, SubwordVocabulary):
        found = vocabulary.encode_many(texts)
        lengths = list(map(len, found))
        ids = np.concatenate(found)
        text_bytes = len(chunk.data)
    elif isinstance(vocabulary, ListedWords):
        different, numbers, lengths = split_texts(reading, texts, ends=chunk.ends)
        ids, is_unknown = vocabulary.look_up_each(different)
        ids, unknown = ids[numbers], int(is_unknown[numbers].sum())
        text_bytes = len(chunk.data)
    else:
        assert isinstance(vocabulary, CharVocabulary)
        symbols = list(map(reading.text, texts))
        lengths = list(map(len, symbols))
        together = "".join(symbols)
        ids, unknown = vocabulary.look_up(together)
        if (ids < 0).any():
            raise _missing_character(vocabulary, chunk, stretch, reading)
        text_bytes = len(chunk.data) - chunk.data.count(b"\n") - chunk.data.count(b"\r")
        text_bytes = text_bytes if reading.drop_newlines else len(chunk.data)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[:-1], dtype=np.int64)])
    return Tokens(
        ids=ids,
        starts=starts[1:] if chunk.continues else starts,
        begins=not chunk.continues,
        unknown=unknown,
        ends=chunk.ends,
        text_bytes=text_bytes,
    )


def _encode_bytes(reading: Reading, vocabulary: Vocabulary, chunk: Chunk, stretch: Stretch) -> Tokens:
    data, starts = chunk.data, chunk.starts
    if reading.drop_newlines:
        data = reading.bytes(chunk.data)
        if len(starts):
            values = np.frombuffer(chunk.data, np.uint8)
            dropped = np.concatenate([np.zeros(1, np.int64), ((values == 10) | (values == 13)).cumsum()])
            starts = starts - dropped[starts]
    if isinstance(vocabulary, RankedByteVocabulary):
        ids: NDArray[Any] = vocabulary.look_up(data)
        if (ids < 0).any():
            raise _missing_byte(vocabulary, chunk, stretch, reading)
    else:
        assert isinstance(vocabulary, ByteVocabulary)
        ids = np.frombuffer(data, np.uint8)
    return Tokens(ids=ids, starts=starts, begins=not chunk.continues, unknown=0, ends=chunk.ends, text_bytes=len(data))


def _missing_character(vocabulary: CharVocabulary, chunk: Chunk, stretch: Stretch, reading: Reading) -> UserError:
    """Say where the first character of a chunk is that the vocabulary lacks."""
    for number, text in enumerate(decoded(chunk, stretch)):
        for place, character in enumerate(text):
            symbol = reading.text(character)
            if symbol and (vocabulary.look_up(symbol).ids < 0).any():
                at = chunk.place(number, len(text[:place].encode()))
                named = f"{character!a} (U+{ord(character):04X})"
                return _missing(stretch, named, at, is_line_end=character in LINE_ENDS)
    raise AssertionError("the chunk lacks nothing")


def _missing_byte(vocabulary: RankedByteVocabulary, chunk: Chunk, stretch: Stretch, reading: Reading) -> UserError:
    for number, part in enumerate(chunk.parts()):
        for place in np.flatnonzero(vocabulary.look_up(part) < 0).tolist():
            if reading.bytes(part[place : place + 1]):
                is_line_end = chr(part[place]) in LINE_ENDS
                at = chunk.place(number, place)
                return _missing(stretch, f"the byte {part[place]:#04x}", at, is_line_end=is_line_end)
    raise AssertionError("the chunk lacks nothing")


def _missing(stretch: Stretch, symbol: str, at: int, *, is_line_end: bool) -> UserError:
    leave_out = ", and data.newline=drop leaves line ends out" if is_line_end else ""
    return UserError(
        f"{stretch.place(at)}, holds {symbol}, and the vocabulary of init_from lacks it: init_vocabulary=extend adds "
        f"what it lacks{leave_out}"
    )


@lru_cache(maxsize=1)
def _vocabulary(path: Path) -> Vocabulary:
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
