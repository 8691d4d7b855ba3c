"""Text of any encoding, a few megabytes at a time; what to do about bytes that the encoding forbids."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from transformer_xl.errors import UserError

Errors = Literal["strict", "replace"]

MARK = "\udfff"
"""Stands for forbidden bytes in decoded text: half of a surrogate pair, which no text can hold."""
LONGEST_LINE = 64 << 20
"""A longer line, in characters, comes in pieces of about this length, so that memory stays bounded."""
REPLACEMENT = "\ufffd"

_MARKING = "transformer_xl.mark"
# Python calls them text, but they are no encodings of files, cannot be cut, or give what UTF-8 cannot hold.
_UNFIT = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7"}
_BYTE_ORDER_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
_LONGEST_MARK = 4


@dataclass
class Tally:
    """Counts characters put in place of wrong text."""

    replaced: int = 0


def check_encoding(name: str) -> str | None:
    """Give a sentence on what is wrong with a name for `data.encoding`; None where it is an encoding of text files."""
    try:
        codec = codecs.lookup(name)
        "a".encode(name)
        if codec.incrementaldecoder is not None and codec.name not in _UNFIT:
            return None
    except (LookupError, ValueError):  # UnicodeError is one of them
        pass
    return (
        f"data.encoding is {name!r}, and must be an encoding of text that Python knows, such as utf-8, utf-16, "
        "gb18030, shift_jis, latin-1 or cp1252"
    )


def is_utf8(encoding: str) -> bool:
    """Say whether a checked name of an encoding is one of UTF-8."""
    return codecs.lookup(encoding).name == "utf-8"


def decode(
    chunks: Iterable[bytes], *, encoding: str, errors: Errors, place: str, remedy: str, tally: Tally
) -> Iterator[str]:
    """Decode bytes that come in chunks, cut anywhere.

    Args:
        chunks: none of them empty.
        encoding: a name that `check_encoding` passes.
        errors: `strict`: refused; `replace`: U+FFFD, counted.
        place: names the file in messages.
        remedy: what the user might do besides setting data.errors, for messages.
        tally: counts replacements.

    Raises:
        UserError: forbidden bytes, with `strict`.
    """
    codecs.register_error(_MARKING, _mark)
    beginning, chunks = _beginning(chunks)
    name = codecs.lookup(encoding).name
    if name in _BYTE_ORDER_MARKS and not beginning.startswith(_BYTE_ORDER_MARKS[name]):
        name += "-le"  # as almost all files without a byte order mark are
    decoder = codecs.getincrementaldecoder(name)("strict" if errors == "strict" else _MARKING)
    lines = _LineCount()
    position = 0
    for chunk in chain(chunks, [b""]):
        state = decoder.getstate()
        position += len(chunk)
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            # The object is what the decoder kept from before and the chunk, so that both end at the same byte.
            offset = position - len(error.object) + error.start
            marking = codecs.getincrementaldecoder(name)(_MARKING)
            marking.setstate(state)
            lines.add(marking.decode(chunk, not chunk).partition(MARK)[0])
            raise UserError(
                f"{place} has the byte 0x{error.object[error.start]:02x} at offset {offset:,} (counted from 0), on "
                f"line {lines.ended + 1:,}, which {encoding} does not allow there; data.encoding must name the "
                f"encoding that the file has, or data.errors be replace{remedy}"
            ) from error
        except UnicodeError as error:
            raise UserError(
                f"{place} cannot be read as {encoding}: {error}; data.encoding must name the encoding that it has"
            ) from error
        if errors == "strict":
            lines.add(text)
        else:
            wrong = text.count(MARK)
            if wrong:
                tally.replaced += wrong
                text = text.replace(MARK, REPLACEMENT)
        if text:
            yield text


def lines_of(texts: Iterable[str]) -> Iterator[str]:
    r"""Yield lines with their ends, which are \n, \r\n and \r; `LONGEST_LINE` says what becomes of long ones."""
    pending: list[str] = []
    size = 0
    for text in texts:
        # A \r that ends a text may be half of a \r\n.
        if "\n" in text or "\r" in text or (pending and pending[-1].endswith("\r")):
            lines = io.StringIO("".join([*pending, text]), newline="").readlines()
            last = "" if lines[-1].endswith("\n") else lines.pop()
            yield from lines
            pending, size = [last] if last else [], len(last)
        else:
            pending.append(text)
            size += len(text)
        if size >= LONGEST_LINE:
            yield "".join(pending)
            pending, size = [], 0
    if pending:
        yield "".join(pending)


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return MARK, error.end


def _beginning(chunks: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """Give the first bytes, long enough for a byte order mark where there are so many, and all chunks."""
    following = iter(chunks)
    read: list[bytes] = []
    while sum(map(len, read)) < _LONGEST_MARK:
        chunk = next(following, None)
        if chunk is None:
            break
        read.append(chunk)
    return b"".join(read), chain(read, following)


class _LineCount:
    r"""Counts line ends of a text that comes in parts; \r\n is one, also when it is parted."""

    def __init__(self) -> None:
        self.ended = 0
        self._half = False

    def add(self, text: str) -> None:
        self.ended += text.count("\n")
        if "\r" in text:
            self.ended += text.count("\r") - text.count("\r\n")
        if self._half and text.startswith("\n"):
            self.ended -= 1
        if text:
            self._half = text.endswith("\r")
