"""A checksum at the end of an archive of `torch.save`, as the archive's comment: torch itself notices no changed bit.

Any reader of such archives passes over the comment.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from transformer_xl.errors import DamagedError

SEALED = "sealed"
"""A key of what an archive holds: it was written with a checksum, and is cut off where it has none."""
_NO_COMMENT = b"\0\0"
"""How an archive without a comment ends: with its length."""
_COMMENT = re.compile(rb"crc32 ([0-9a-f]{8})")
_COMMENT_LEN = 14
_CHUNK = 1 << 20


class _Summed:
    """A file that sums up what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.checksum = 0
        self._file = file

    def write(self, data: bytes) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def write_sealed(file: BinaryIO, write: Callable[[_Summed], None]) -> None:
    """Write an archive with its checksum.

    Args:
        file: open for writing, empty.
        write: writes an archive without a comment to the file that it is given, from its beginning to its end.
    """
    summed = _Summed(file)
    write(summed)
    file.seek(-len(_NO_COMMENT), 2)
    file.write(_COMMENT_LEN.to_bytes(2, "little") + f"crc32 {summed.checksum:08x}".encode())


def check_seal(path: Path) -> bool:
    """Compare a file with the checksum at its end.

    Returns:
        False where it has none.

    Raises:
        DamagedError: it is empty, or does not hold the bytes that were written.
    """
    end_len = len(_NO_COMMENT) + _COMMENT_LEN
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            raise DamagedError(f"{path} is damaged: it is empty")
        file.seek(max(0, size - end_len))
        end = file.read()
        found = _COMMENT.fullmatch(end, len(_NO_COMMENT))
        if found is None:
            return False
        file.seek(0)
        checksum, left = 0, size - end_len
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            checksum = zlib.crc32(chunk, checksum)
            left -= len(chunk)
    checksum = zlib.crc32(_NO_COMMENT, checksum)
    if checksum != int(found[1], 16) or end[: len(_NO_COMMENT)] != _COMMENT_LEN.to_bytes(2, "little"):
        raise DamagedError(f"{path} is damaged: its bytes are not those that were written")
    return True
