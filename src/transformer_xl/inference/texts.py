"""Texts that come one a line or one a paragraph, from a file or a pipe, in parts of bounded size.

Nothing is read ahead: a text is given as soon as its end has been read, so that it can be answered before the next one
is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol

from transformer_xl.data.tokenizer import character_border

Unit = Literal["line", "document"]
FindCut = Callable[[bytes], int]
"""Returns the last place in some text where it may be cut; 0: there is none."""
LONGEST_CHUNK_BYTES = 64 << 20
"""A text in which no place to cut is found grows to this, and is then cut between two characters."""
PART_BYTES = 1 << 16
"""From so many bytes on a text comes in parts."""
_LINE_ENDS = b"\r\n"
_BLANKS = b" \t\r\n"


class Input(Protocol):
    """Bytes, as `open(path, "rb")` and `sys.stdin.buffer` give them."""

    def read1(self, size: int, /) -> bytes:
        """Give what is there, at most so much; wait only where nothing is; nothing at the end."""


class Part(NamedTuple):
    """A text or a part of one, cut where the symbols of the parts are those of the whole.

    Attributes:
        data: its bytes, line ends among them.
        begins: whether the text begins with it.
        ends: whether the text ends with it.
        line: number, from 1, of the line in which it begins.
    """

    data: bytes
    begins: bool
    ends: bool
    line: int


def read_texts(source: Input, *, unit: Unit, keeps_blank_lines: bool, find_cut: FindCut) -> Iterator[Part]:
    r"""Yield texts in order, in parts.

    Args:
        source: read to its end.
        unit: `line`: a text ends with each `\n`; `document`: lines of nothing but blanks stand between texts.
        keeps_blank_lines: whether those belong to the document before them, as in a corpus, which then ends only where
            the next one begins, or to none.
        find_cut: finds where a long text may be cut.
    """
    held = _Held(find_cut)
    if unit == "line":
        for piece in _pieces(source):
            yield from held.add(piece)
            if piece.endswith(b"\n"):
                yield held.end()
    else:
        yield from _documents(source, held, keeps_blank_lines=keeps_blank_lines)
    if not held.is_empty:
        yield held.end()


def _documents(source: Input, held: _Held, *, keeps_blank_lines: bool) -> Iterator[Part]:
    """Yield all documents but the end of the last one."""
    blanks = b""  # the beginning of a line that may still be blank
    in_line = has_text = is_over = False
    for piece in _pieces(source):
        line, blanks = blanks + piece, b""
        ends_line = line.endswith(b"\n")
        is_blank = not in_line and not line.strip(_BLANKS)
        if is_blank and not ends_line and len(line) < PART_BYTES:
            blanks = line
        elif is_blank and keeps_blank_lines:
            yield from held.add(line)
            is_over = has_text
        elif is_blank:
            if not held.is_empty:
                yield held.end()
            held.skip(line)
        else:
            if is_over:
                yield held.end()
            yield from held.add(line)
            in_line, has_text, is_over = not ends_line, True, False
    if keeps_blank_lines:
        yield from held.add(blanks)


class _Held:
    """What has been read of a text and not been given on."""

    def __init__(self, find_cut: FindCut) -> None:
        self._find_cut = find_cut
        self._pieces: list[bytes] = []
        self._size = 0
        self._cut_from = PART_BYTES
        self._begins = True
        self._line = 1

    @property
    def is_empty(self) -> bool:
        """Say whether no text has begun."""
        return self._begins and not self._size

    def add(self, data: bytes) -> Iterator[Part]:
        """Take more of the text, and yield what can be given on of a long one; never its last line end."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._cut_from:
            return
        text = b"".join(self._pieces)
        settled = text.rstrip(_LINE_ENDS)
        cut = self._find_cut(settled)
        if not cut and len(text) >= LONGEST_CHUNK_BYTES:
            cut = character_border(settled)
        if cut:
            yield self._give(text[:cut], rest=text[cut:], ends=False)
        else:
            self._pieces, self._cut_from = [text], 2 * len(text)

    def end(self) -> Part:
        """Give the rest of the text."""
        return self._give(b"".join(self._pieces), rest=b"", ends=True)

    def skip(self, data: bytes) -> None:
        """Count lines that belong to no text."""
        self._line += data.count(b"\n")

    def _give(self, data: bytes, *, rest: bytes, ends: bool) -> Part:
        part = Part(data, begins=self._begins, ends=ends, line=self._line)
        self._line += data.count(b"\n")
        self._pieces, self._size, self._begins, self._cut_from = [rest], len(rest), ends, PART_BYTES
        return part


def _pieces(source: Input) -> Iterator[bytes]:
    """Yield lines, or parts of them, as they come; a line's last part has its line end."""
    while block := source.read1(PART_BYTES):
        start = 0
        while start < len(block):
            stop = block.find(b"\n", start) + 1 or len(block)
            yield block[start:stop]
            start = stop
