"""Members of zip and tar archives, read without unpacking the archive to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple, TypeVar, cast

from transformer_xl.data.building.unpacking import CHUNK_BYTES, Packing, read_chunks, reason_of, unpack
from transformer_xl.errors import UserError

T = TypeVar("T")

_PACKINGS: dict[bytes, Packing] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}


class Member(NamedTuple):
    """A member of an archive: its name, and its bytes, to be read to their end before the next member."""

    name: str
    chunks: Iterator[bytes]


def read_members(path: Path, limits: Mapping[str, int | None]) -> Iterator[Member]:
    """Yield the members of an archive that are wanted, in the archive's order; it is read once, to its end.

    Args:
        path: of a zip, or of a tar, packed as a whole or not.
        limits: for each name wanted the bytes that it may give; None: any number.

    Raises:
        UserError: the archive cannot be read; a member that is wanted is not there, there twice, damaged, or too large.
    """
    place = repr(str(path))
    try:
        with path.open("rb") as file:
            beginning = file.read(6)
    except OSError as error:
        raise UserError(f"{place} cannot be read: {reason_of(error)}") from error
    missing = set(limits)
    if beginning.startswith(b"PK"):
        members = _zip_members(path, limits, place=place)
    else:
        packing = next((packing for magic, packing in _PACKINGS.items() if beginning.startswith(magic)), None)
        members = _tar_members(unpack(path, packing, place=place, limit=None), limits, place=place)
    for member in members:
        if member.name not in missing:
            raise UserError(f"{place} holds {member.name!r} twice")
        missing.remove(member.name)
        yield member
    if missing:
        raise UserError(f"{place} does not hold {', '.join(sorted(missing))}, which it should, or is cut off")


def _zip_members(path: Path, limits: Mapping[str, int | None], *, place: str) -> Iterator[Member]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError, RuntimeError) as error:
        raise UserError(f"{place} cannot be read as zip; it is damaged or cut off: {reason_of(error)}") from error
    with archive:
        for info in archive.infolist():
            if info.filename not in limits:
                continue
            member, limit = f"{info.filename!r} in {place}", limits[info.filename]
            try:
                stream = archive.open(info)
            except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError, RuntimeError) as error:
                raise UserError(f"{member} cannot be read; it is damaged: {reason_of(error)}") from error
            with stream:
                yield Member(info.filename, _zip_chunks(stream, member=member, limit=limit))


def _zip_chunks(stream: IO[bytes], *, member: str, limit: int | None) -> Iterator[bytes]:
    try:
        yield from read_chunks(stream, place=member, kind="zip", limit=limit)
    except zipfile.BadZipFile as error:
        raise UserError(f"{member} is damaged: {reason_of(error)}") from error


def _tar_members(chunks: Iterator[bytes], limits: Mapping[str, int | None], *, place: str) -> Iterator[Member]:
    archive = _reading_tar(place, lambda: _open_tar(chunks))
    while (info := _reading_tar(place, archive.next)) is not None:
        name = info.name.removeprefix("./")
        if name in limits:
            member = f"{name!r} in {place}"
            if not info.isreg():
                raise UserError(f"{member} is no regular file, and must be one")
            stream = archive.extractfile(info)
            assert stream is not None
            yield Member(name, _tar_chunks(stream, member=member, limit=limits[name]))
    for _ in chunks:  # to the end, where the checksum of a packed archive is
        pass


def _open_tar(chunks: Iterator[bytes]) -> tarfile.TarFile:
    file = cast(IO[bytes], _Chunks(chunks))
    return tarfile.open(fileobj=file, mode="r|", bufsize=CHUNK_BYTES)


def _reading_tar(place: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except UserError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(
            f"{place} cannot be read as zip or tar; it is damaged or cut off: {reason_of(error)}"
        ) from error


def _tar_chunks(stream: IO[bytes], *, member: str, limit: int | None) -> Iterator[bytes]:
    try:
        yield from read_chunks(stream, place=member, kind="tar", limit=limit)
    except tarfile.TarError as error:
        raise UserError(f"{member} is damaged or cut off: {reason_of(error)}") from error


class _Chunks:
    """Chunks as the file that `tarfile` wants; it takes what it is given, more or less than it asked for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def read(self, size: int, /) -> bytes:
        return next(self._chunks, b"")
