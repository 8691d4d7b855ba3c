"""Pieces of files to token ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.pieces import read_bytes, read_text
from transformer_xl.data.building.reading import LINE_ENDS, Reading
from transformer_xl.data.sources.files import Piece
from transformer_xl.data.tokenizer import (
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SentenceVocabulary,
    Vocabulary,
)
from transformer_xl.errors import UserError


class Written(NamedTuple):
    """How many tokens a file got, and how many of them are `<unk>` for a word that the vocabulary lacks."""

    tokens: int
    unknown: int


def token_dtype(size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type, little-endian, that holds `size` ids."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def write_tokens(reading: Reading, vocabulary: Vocabulary, pieces: Iterable[Piece], path: Path) -> Written:
    """Encode pieces, in order, into a new file of token ids that is on the disk when this returns.

    Raises:
        UserError: a piece cannot be read, or holds a character that the vocabulary lacks.
    """
    dtype = token_dtype(vocabulary.size)
    tokens = unknown = 0
    with path.open("xb") as file:
        for ids, unknown_here in _encode_split(reading, vocabulary, pieces):
            file.write(ids.astype(dtype, copy=False).data)
            tokens, unknown = tokens + len(ids), unknown + unknown_here
        file.flush()
        os.fsync(file.fileno())
    return Written(tokens=tokens, unknown=unknown)


def _encode_split(
    reading: Reading, vocabulary: Vocabulary, pieces: Iterable[Piece]
) -> Iterator[tuple[NDArray[Any], int]]:
    begun = not isinstance(vocabulary, SentenceVocabulary)
    for piece in pieces:
        for ids, unknown in _encode(reading, vocabulary, piece):
            if not begun and len(ids):
                begun = True
                yield vocabulary.encode(""), 0
            yield ids, unknown


def _encode(reading: Reading, vocabulary: Vocabulary, piece: Piece) -> Iterator[tuple[NDArray[Any], int]]:
    if isinstance(vocabulary, ListedWords):
        for words in reading.words(piece):
            looked = vocabulary.look_up(words)
            yield looked.ids, looked.unknown
    elif isinstance(vocabulary, CharVocabulary):
        for text in reading.text(piece):
            ids = vocabulary.look_up(text)
            if (ids < 0).any():
                raise _missing_character(vocabulary, piece, reading)
            yield ids, 0
    elif isinstance(vocabulary, RankedByteVocabulary):
        for chunk in reading.bytes(piece):
            ids = vocabulary.look_up(chunk)
            if (ids < 0).any():
                raise _missing_byte(vocabulary, piece, reading)
            yield ids, 0
    else:
        for chunk in reading.bytes(piece):
            yield np.frombuffer(chunk, np.uint8), 0


def _missing_character(vocabulary: CharVocabulary, piece: Piece, reading: Reading) -> UserError:
    """Read a piece again, to say where its first character is that the vocabulary lacks."""
    position = piece.start
    for text in read_text(piece):
        for place in np.flatnonzero(vocabulary.look_up(text) < 0).tolist():
            character = text[place]
            if not (reading.drop_newlines and character in LINE_ENDS):
                at = position + len(text[:place].encode())
                return _missing(
                    piece, f"{character!a} (U+{ord(character):04X})", at, is_line_end=character in LINE_ENDS
                )
        position += len(text.encode())
    return UserError(f"{str(piece.path)!r} changed while it was read; start again once it is at rest")


def _missing_byte(vocabulary: RankedByteVocabulary, piece: Piece, reading: Reading) -> UserError:
    position = piece.start
    for chunk in read_bytes(piece):
        for place in np.flatnonzero(vocabulary.look_up(chunk) < 0).tolist():
            is_line_end = chr(chunk[place]) in LINE_ENDS
            if not (reading.drop_newlines and is_line_end):
                return _missing(piece, f"the byte {chunk[place]:#04x}", position + place, is_line_end=is_line_end)
        position += len(chunk)
    return UserError(f"{str(piece.path)!r} changed while it was read; start again once it is at rest")


def _missing(piece: Piece, symbol: str, at: int, *, is_line_end: bool) -> UserError:
    leave_out = ", and data.newline=drop leaves line ends out" if is_line_end else ""
    return UserError(
        f"{str(piece.path)!r} holds {symbol} at byte {at}, counted from 0, and the vocabulary of init_from lacks it: "
        f"init_vocabulary=extend adds what it lacks{leave_out}"
    )
