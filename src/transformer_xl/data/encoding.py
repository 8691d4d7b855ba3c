"""Pieces of files to vocabularies and token ids, a few megabytes at a time."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.sources import Piece
from transformer_xl.data.tokenizer import (
    EOS,
    UNK,
    ByteVocabulary,
    CharVocabulary,
    Vocabulary,
    WordVocabulary,
    split_words,
)
from transformer_xl.errors import UserError

CHUNK_BYTES = 2 << 20


class Written(NamedTuple):
    """How many tokens a file got, and how many of them are `<unk>` for a word that the vocabulary lacks."""

    tokens: int
    unknown: int


def token_dtype(size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type, little-endian, that holds `size` ids."""
    return np.dtype("u1" if size <= 1 << 8 else "<u2" if size <= 1 << 16 else "<u4")


def piece_sha256(piece: Piece) -> str:
    """Return the sha256, in hex, of a piece's bytes."""
    digest = hashlib.sha256()
    for chunk in read_bytes(piece):
        digest.update(chunk)
    return digest.hexdigest()


def build_vocabulary(tokenizer: str, splits: Mapping[str, Sequence[Piece]]) -> Vocabulary:
    """Count the symbols of all splits (char) or of the training split (word), most frequent first.

    Equally frequent characters stand by code point, words by first occurrence as in the published vocabulary.
    """
    if tokenizer == ByteVocabulary.kind:
        return ByteVocabulary()
    if tokenizer == CharVocabulary.kind:
        return CharVocabulary(_characters_by_frequency([piece for pieces in splits.values() for piece in pieces]))
    assert tokenizer == WordVocabulary.kind
    return WordVocabulary(_words_by_frequency(splits["train"]))


def write_tokens(vocabulary: Vocabulary, pieces: Iterable[Piece], path: Path) -> Written:
    """Encode pieces, in order, into a new file of token ids that is on the disk when this returns."""
    dtype = token_dtype(vocabulary.size)
    tokens = unknown = 0
    with path.open("xb") as file:
        for piece in pieces:
            for ids, unknown_here in _encode(vocabulary, piece):
                file.write(ids.astype(dtype, copy=False).data)
                tokens, unknown = tokens + len(ids), unknown + unknown_here
        file.flush()
        os.fsync(file.fileno())
    return Written(tokens=tokens, unknown=unknown)


def _encode(vocabulary: Vocabulary, piece: Piece) -> Iterator[tuple[NDArray[Any], int]]:
    if isinstance(vocabulary, WordVocabulary):
        for words in read_words(piece):
            looked = vocabulary.look_up(words)
            yield looked.ids, looked.unknown
    elif isinstance(vocabulary, CharVocabulary):
        for text in read_text(piece):
            yield vocabulary.encode(text), 0
    else:
        for chunk in read_bytes(piece):
            yield np.frombuffer(chunk, np.uint8), 0


def read_bytes(piece: Piece) -> Iterator[bytes]:
    """Yield a piece in chunks of at most `CHUNK_BYTES`."""
    left = piece.stop - piece.start
    with _open_source(piece.path) as file:
        file.seek(piece.start)
        while left:
            try:
                chunk = file.read(min(CHUNK_BYTES, left))
            except OSError as error:
                raise UserError(f"{str(piece.path)!r} cannot be read: {error.strerror}") from error
            if not chunk:
                raise UserError(f"{str(piece.path)!r} became shorter while it was read; start again once it is at rest")
            left -= len(chunk)
            yield chunk


def read_text(piece: Piece) -> Iterator[str]:
    """Yield a piece's characters in chunks; `UserError` naming the file and the byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = piece.start
    for chunk in read_bytes(piece):
        yield _decode(decoder, chunk, piece=piece, position=position)
        position += len(chunk)
    yield _decode(decoder, b"", piece=piece, position=position)


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, *, piece: Piece, position: int) -> str:
    held, _ = decoder.getstate()
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{str(piece.path)!r} is not UTF-8 at byte {position - len(held) + error.start}, counted from 0; "
            "data.tokenizer=byte takes any file"
        ) from error


def read_words(piece: Piece) -> Iterator[list[str]]:
    r"""Yield a piece's words, with `<eos>` after every line.

    Lines end at `\n`, `\r\n` and `\r` only, as a text file's do; white space of any kind lies between words.
    """
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    held: list[str] = []
    line_open = False
    for text in read_text(piece):
        lines = newlines.decode(text)
        line_open = not lines.endswith("\n") if lines else line_open
        cut = _after_last_space(lines)
        if cut:
            yield split_words("".join([*held, lines[:cut]]))
            held = []
        held.append(lines[cut:])
    rest = newlines.decode("", final=True)
    line_open = not rest.endswith("\n") if rest else line_open
    yield split_words("".join([*held, rest, "\n" if line_open else ""]))


def _after_last_space(text: str) -> int:
    place = len(text)
    while place and not text[place - 1].isspace():
        place -= 1
    return place


def _characters_by_frequency(pieces: Iterable[Piece]) -> list[str]:
    counts = np.zeros(0x110000, np.int64)
    for piece in pieces:
        for text in read_text(piece):
            found = np.bincount(np.frombuffer(text.encode("utf-32-le"), "<u4"))
            counts[: len(found)] += found
    codes = np.flatnonzero(counts)
    return [chr(code) for code in codes[np.argsort(-counts[codes], kind="stable")]]


def _words_by_frequency(pieces: Iterable[Piece]) -> list[str]:
    counts: Counter[str] = Counter()
    for piece in pieces:
        for words in read_words(piece):
            counts.update(words)
    counts.pop(EOS, None)
    symbols = [EOS, *(word for word, _ in counts.most_common())]
    return symbols if UNK in counts else [*symbols, UNK]


def _open_source(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
