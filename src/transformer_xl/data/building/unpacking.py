"""The bytes of compressed files, a few megabytes at a time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, Protocol

from transformer_xl.data.sources.files import Compression
from transformer_xl.errors import UserError

CHUNK_BYTES = 2 << 20
_XZ_MEMORY_BYTES = 1 << 30
"""What an .xz may ask for; xz -9 needs 65 MB."""

Packing = Compression | Literal["bzip2"]


class Readable(Protocol):
    """Something that gives up to `size` bytes, and none at its end."""

    def read(self, size: int, /) -> bytes:
        """Read."""
        ...


def unpack(path: Path, packing: Packing | None, *, place: str, limit: int | None) -> Iterator[bytes]:
    """Yield what a file holds, unpacked, to its end, where its checksum is.

    Args:
        path: of the file.
        packing: how it is packed; None: not at all.
        place: names the file in messages.
        limit: bytes that it may give; None: any number.

    Raises:
        UserError: the file cannot be read, is damaged or cut off, or gives more than `limit` bytes.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"{place} cannot be read: {reason_of(error)}") from error
    with file:
        if packing is not None and not file.peek(1):
            raise UserError(f"{place} is empty, and no {packing} file")
        yield from read_chunks(_opened(file, packing), place=place, kind=packing, limit=limit)


def read_chunks(stream: Readable, *, place: str, kind: str | None, limit: int | None) -> Iterator[bytes]:
    """Yield what a stream gives until its end; `UserError` where it is damaged or gives more than `limit` bytes."""
    total = 0
    while True:
        try:
            chunk = stream.read(CHUNK_BYTES)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            damaged = f" as {kind}; it is damaged or cut off" if kind else ""
            raise UserError(f"{place} cannot be read{damaged}: {reason_of(error)}") from error
        if not chunk:
            return
        total += len(chunk)
        if limit is not None and total > limit:
            raise UserError(too_large(place, limit=limit))
        yield chunk


def too_large(place: str, *, limit: int) -> str:
    """Say that a file is larger than what it should hold could be."""
    return f"{place} holds more than {limit:,} bytes when unpacked: it is damaged, or not what it should be"


def reason_of(error: Exception) -> str:
    """Give what an error says, in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _opened(file: IO[bytes], packing: Packing | None) -> Readable:
    if packing is None:
        return file
    if packing == "gzip":
        return gzip.GzipFile(fileobj=file)
    if packing == "bzip2":
        return bz2.BZ2File(file)
    if packing == "xz":
        return _XzStreams(file)
    import pyarrow

    stream: Readable = pyarrow.CompressedInputStream(file, "zstd")
    return stream


class _XzStreams:
    """Reads the streams of an .xz file one after another; unlike `lzma`'s reader it refuses what else is there."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packed = b""
        self._decompressor = self._new()

    def read(self, size: int, /) -> bytes:
        while True:
            if self._decompressor.eof and not self._next_stream():
                return b""
            packed = b""
            if self._decompressor.needs_input:
                packed, self._packed = self._packed or self._file.read(CHUNK_BYTES), b""
                if not packed:
                    raise EOFError("it ends before its end marker")
            unpacked = self._decompressor.decompress(packed, size)
            if unpacked:
                return unpacked

    def _next_stream(self) -> bool:
        rest = self._decompressor.unused_data
        while not self._packed:
            # Zeros may stand between streams and at the end.
            self._packed = rest.lstrip(b"\0")
            if not self._packed:
                rest = self._file.read(CHUNK_BYTES)
                if not rest:
                    return False
        self._decompressor = self._new()
        return True

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
