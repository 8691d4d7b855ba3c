"""Text to token ids, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.reading import LINE_ENDS, Reading, decoded
from transformer_xl.data.building.text import Chunk, Stretch, read_chunks
from transformer_xl.data.building.word_splitting import split_texts
from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SubwordVocabulary,
    Vocabulary,
)
from transformer_xl.errors import UserError

_EVAL_CHUNK_BYTES = 1 << 16


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


def encoded(
    reading: Reading, vocabulary: Vocabulary, stretches: Sequence[Stretch], *, short: bool = False
) -> Iterator[Tokens]:
    """Yield text as ids, in chunks (`short`: small ones)."""
    chunk_bytes = _EVAL_CHUNK_BYTES if short else None
    for stretch in stretches:
        for chunk in read_chunks(stretch, find_cut=reading.find_cut(vocabulary), chunk_bytes=chunk_bytes):
            yield _encode(reading, vocabulary, chunk, stretch)


def _encode(reading: Reading, vocabulary: Vocabulary, chunk: Chunk, stretch: Stretch) -> Tokens:
    if reading.is_of_bytes:
        return _encode_bytes(reading, vocabulary, chunk, stretch)
    texts = decoded(chunk, stretch)
    unknown = 0
    if isinstance(vocabulary, SubwordVocabulary):
        found = vocabulary.encode_many(texts)
        lengths = list(map(len, found))
        ids = np.concatenate(found)
        unknown = 0 if vocabulary.unknown is None else int((ids == vocabulary.unknown).sum())
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
        f"{stretch.place(at)}, holds {symbol}, and the trained model's vocabulary lacks it: training from it with "
        f"init_vocabulary=extend adds what it lacks{leave_out}"
    )
