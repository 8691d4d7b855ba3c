"""Places where a text can be cut so that sub-words of its parts are those of the whole.

The splitting of GPT-2, of cl100k, and of all that are made like them (Llama 3, Qwen, DeepSeek and others) ends a word
of letters or digits where white space begins, whatever follows, and looks back at nothing from there; the same holds
for the full-width stops of Chinese and Japanese. Behind a full stop or between two line ends they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_BORDER = re.compile(rb"(?<=[0-9A-Za-z\x80-\xff])(?:[ \t\r\n]|\xe3\x80[\x81\x82]|\xef\xbc[\x81\x8c\x9a\x9b\x9f])")
_WINDOW = 1 << 12
_WIDEST_BORDER = 3
_WIDEST_CHARACTER = 4

PROBES = (
    ("The old cat", " sat, on 12"),
    ("in 1906", " it"),
    ("The end", "\nIt's"),
    ("1906", "\n\n\n  a"),
    ("cat", "\r\n\r\ndog"),
    ("cat", "   dog"),
    ("cat", "\tdog"),
    ("caf\u00e9", " \u0436\u0438\u0437\u043d\u044c"),
    ("\u4ed6\u8bf4", "\u3002\u5979\u8bf4"),
    ("\u732b", "\uff0c 12"),
)
"""Texts in two parts, cut as `last_border` cuts."""


def last_border(data: bytes) -> int:
    """Find the last place in UTF-8 where a letter or digit ends a word; 0: there is none.

    Args:
        data: may end inside a character.
    """
    stop = len(data)
    while stop > 0:
        start = max(stop - _WINDOW, 0)
        # a border that begins in this window may end in the next
        places = [border.start() for border in _BORDER.finditer(data, start, stop + _WIDEST_BORDER - 1)]
        for place in reversed(places):
            if data[place - 1] < 0x80 or _follows_letter(data, place):
                return place
        stop = start
    return 0


def in_parts(data: bytes, find_cut: Callable[[bytes], int], *, size: int) -> Iterator[bytes]:
    """Cut UTF-8 into parts of at most `size` bytes where there are places to do so, else larger ones."""
    start = 0
    while len(data) - start > size:
        width = size
        while not (cut := find_cut(data[start : start + width])) and width < len(data) - start:
            width *= 4
        if not cut:
            break
        yield data[start : start + cut]
        start += cut
    yield data[start:]


def _follows_letter(data: bytes, place: int) -> bool:
    before = data[max(place - _WIDEST_CHARACTER, 0) : place].decode("utf-8", errors="ignore")
    return before[-1:].isalnum()
