"""Members of zip and tar archives, read without unpacking the archive to disk."""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple, Self, TypeVar, cast

from transformer_xl.data.building.unpacking import CHUNK_BYTES, Packing, read_chunks, reason_of, unpack
from transformer_xl.errors import UserError

T = TypeVar("T")

_PACKINGS: dict[bytes, Packing] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")
_ENCRYPTED = 0x1
_LONGEST_HEADER_BYTES = 1 << 20
_EXTENDED_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


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
        UserError: the archive cannot be read; a name in it, wanted or not, leads out of the folder that it would be
            unpacked in; a member that is wanted is not there, there twice, encrypted, a link, damaged, or too large.
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
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise UserError(f"{place} cannot be read as zip; it is damaged or cut off: {reason_of(error)}") from error
    with archive:
        for info in archive.infolist():
            _require_inside(info.orig_filename, place=place)
        for info in archive.infolist():
            if info.filename not in limits:
                continue
            member, limit = f"{info.filename!r} in {place}", limits[info.filename]
            _check_zip_member(info, member=member)
            try:
                stream = archive.open(info)
            except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
                raise UserError(f"{member} cannot be read; it is damaged: {reason_of(error)}") from error
            with stream:
                yield Member(info.filename, _zip_chunks(stream, member=member, limit=limit))


def _check_zip_member(info: zipfile.ZipInfo, *, member: str) -> None:
    mode = info.external_attr >> 16
    if info.flag_bits & _ENCRYPTED:
        raise UserError(f"{member} is encrypted, and must not be")
    if info.is_dir() or stat.S_ISLNK(mode):
        raise UserError(f"{member} is no regular file, and must be one")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # The others may unpack to any size from a few bytes before they can be stopped.
        raise UserError(f"{member} is packed with method {info.compress_type} of zip, and must be stored or deflated")


def _zip_chunks(stream: IO[bytes], *, member: str, limit: int | None) -> Iterator[bytes]:
    try:
        yield from read_chunks(stream, place=member, kind="zip", limit=limit)
    except zipfile.BadZipFile as error:
        raise UserError(f"{member} is damaged: {reason_of(error)}") from error


def _tar_members(chunks: Iterator[bytes], limits: Mapping[str, int | None], *, place: str) -> Iterator[Member]:
    archive = _reading_tar(place, lambda: _open_tar(chunks))
    while (info := _reading_tar(place, archive.next)) is not None:
        _require_inside(info.name, place=place)
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
    return tarfile.open(fileobj=file, mode="r|", bufsize=CHUNK_BYTES, tarinfo=_Header)


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


def _require_inside(name: str, *, place: str) -> None:
    if _ABSOLUTE.match(name) or ".." in re.split(r"[/\\]", name):
        raise UserError(f"{place} holds {name!r}, which leads out of its folder: it is not to be trusted, and not read")


class _Chunks:
    """Chunks as the file that `tarfile` wants; it takes what it is given, more or less than it asked for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def read(self, size: int, /) -> bytes:
        return next(self._chunks, b"")


class _Header(tarfile.TarInfo):
    """A header whose extension, which `tarfile` reads at once, is not too large for that."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDED_HEADERS and header.size > _LONGEST_HEADER_BYTES:
            raise UserError(
                f"a tar archive has a header of {header.size:,} bytes, and must have none above "
                f"{_LONGEST_HEADER_BYTES:,}: it is not to be trusted, and not read"
            )
        return header
