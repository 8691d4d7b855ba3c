"""Pieces of files as bytes, characters and words, a few megabytes at a time."""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from transformer_xl.data.sources.files import Piece
from transformer_xl.data.vocabularies.moses import last_cut, moses_rules
from transformer_xl.data.vocabularies.words import EOS, split_words
from transformer_xl.errors import UserError

CHUNK_BYTES = 2 << 20


def piece_sha256(piece: Piece) -> str:
    """Return the sha256, in hex, of a piece's bytes."""
    digest = hashlib.sha256()
    for chunk in read_bytes(piece):
        digest.update(chunk)
    return digest.hexdigest()


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


def read_words(piece: Piece, *, lower_case: bool = False, end: str = EOS) -> Iterator[list[str]]:
    r"""Yield a piece's words, with `end` after every line.

    Lines end at `\n`, `\r\n` and `\r` only, as a text file's do; white space of any kind lies between words.
    """
    held: list[str] = []
    for lines in _read_lines(piece):
        cut = _after_last_space(lines)
        if cut:
            yield split_words("".join([*held, lines[:cut]]), lower_case=lower_case, end=end)
            held = []
        held.append(lines[cut:])


def read_raw_words(piece: Piece) -> Iterator[list[str]]:
    """Yield the words of a piece of raw text as the Moses rules split it, with `<eos>` after every line."""
    rules = moses_rules()
    held: list[str] = []
    for lines in _read_lines(piece):
        cut = last_cut(lines)
        if cut:
            yield rules.split("".join([*held, lines[:cut]]), following=lines[cut:].lstrip(" "))
            held = []
        held.append(lines[cut:])


def _read_lines(piece: Piece) -> Iterator[str]:
    r"""Yield a piece's characters in chunks, every line end as `\n`, one after the last line too."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    line_open = False
    for text in read_text(piece):
        lines = newlines.decode(text)
        line_open = not lines.endswith("\n") if lines else line_open
        yield lines
    rest = newlines.decode("", final=True)
    line_open = not rest.endswith("\n") if rest else line_open
    yield rest + ("\n" if line_open else "")


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, *, piece: Piece, position: int) -> str:
    held, _ = decoder.getstate()
    try:
        return decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{str(piece.path)!r} is not UTF-8 at byte {position - len(held) + error.start}, counted from 0; "
            "data.tokenizer=byte takes any file"
        ) from error


def _after_last_space(text: str) -> int:
    place = len(text)
    while place and not text[place - 1].isspace():
        place -= 1
    return place


def _open_source(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
