"""Text on disk in one encoding, as documents, and read a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.errors import UserError

CHUNK_BYTES = 2 << 20
LONGEST_CHUNK_BYTES = 64 << 20
"""Where no place to cut is found, a chunk grows to this, and is then cut between two characters."""


class Stretch(NamedTuple):
    """Documents in one file of UTF-8 (or of any bytes, if bytes are the symbols).

    Attributes:
        path: of the file.
        rows: a row a document, int64 (documents x 2): its first byte, and the byte after its last; ascending.
        source: the user's file that this text is from, for messages.
        is_source: whether `path` is that file itself, so that bytes can be named by their place in it.
    """

    path: Path
    rows: NDArray[np.int64]
    source: str
    is_source: bool


class Chunk(NamedTuple):
    """Text of consecutive documents; a long document comes in several chunks.

    Attributes:
        data: its bytes, cut where no word or character is.
        starts: places in `data` where a document begins, ascending; 0 among them unless one is continued.
        ends: whether the document that `data` ends with is complete.
        position: place of the first byte in the file.
    """

    data: bytes
    starts: NDArray[np.int64]
    ends: bool
    position: int


FindCut = Callable[[bytes], int]
"""Gives the last place in some text where it may be cut, 0 where there is none."""
