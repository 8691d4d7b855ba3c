"""What is said of a file that holds something else than token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from transformer_xl.errors import UserError

LINE_BLANKS = b" \t\r\n"
LONGEST_NUMBER = 4096
"""Bytes; what has no end after so many is no number, and is not collected further."""

_QUOTED = 80


def refuse_words(
    path: Path, words: Sequence[bytes], *, vocab_size: int, before: int, line: int | None = None
) -> NoReturn:
    """Name the first word that is no id below `vocab_size`; there is one."""
    for token, word in enumerate(words, start=before):
        text = word.strip(LINE_BLANKS)
        if not re.fullmatch(rb"-?[0-9]{1,%d}" % LONGEST_NUMBER, text):
            place = _place(token, line)
            raise UserError(f"{str(path)!r} holds {quoted(text)} {place}, and must hold integers there")
        if text.startswith(b"-") or int(text) >= vocab_size:
            refuse_id(path, quoted(text).strip("'"), vocab_size=vocab_size, token=token, line=line)
    raise AssertionError("all words are ids")


def refuse_id(path: Path, number: str, *, vocab_size: int, token: int, line: int | None = None) -> NoReturn:
    """Name a number that is no id, and its place: `token` and, in JSON, `line`."""
    raise UserError(
        f"{str(path)!r} holds id {number} {_place(token, line)}, and ids must be at least 0 and below "
        f"{vocab_size}, the size that data.vocab_size or data.vocabulary says"
    )


def refuse_line(path: Path, line: int, what: str) -> NoReturn:
    """Say why a line is no list of integers."""
    raise UserError(f"{str(path)!r} {what} on line {line}, and each line must be a list of integers, such as [3, 1, 2]")


def _place(token: int, line: int | None) -> str:
    return f"as token {token} (counted from 0)" + ("" if line is None else f" on line {line}")


def quoted(word: bytes) -> str:
    """Quote the beginning of what a file holds, so that it can be printed."""
    text = word[:_QUOTED].decode("ascii", "backslashreplace")
    return repr(text + "..." if len(word) > _QUOTED else text.rstrip())
