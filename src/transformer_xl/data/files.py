"""From what a user names to the files of each split and their bytes, packed or not."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NamedTuple

from transformer_xl.data.lanes import SPLITS
from transformer_xl.data_config import TextConfig, TokensConfig
from transformer_xl.errors import UserError, first_line

CHUNK_BYTES = 1 << 20
_XZ_MEMORY_BYTES = 1 << 30
_CACHE_FILES = {"corpus.json", "vocabulary.json"}
_WILDCARD = re.compile(r"[*?\[]")
_DAMAGE = (OSError, EOFError, ValueError, RuntimeError, KeyError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
_ARCHIVES = {".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".7z", ".rar"}
_SPLIT_NAME = re.compile(
    r"(?:(?P<train>training|train)|(?P<valid>validation|valid|val|dev)|(?P<test>test))(?:$|[-._0-9])", re.I
)


class SourceFile(NamedTuple):
    """A file as it was found; `name` is its path below the corpus's folder, with forward slashes."""

    path: Path
    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text or token ids in a file, and how they are written there.

    Attributes:
        file: that holds it.
        format: `text`, or records of which `field` is the text: `jsonl`, `csv`, `tsv`, `parquet`; of ids see token_ids.
        field: a key of JSON objects, or a column.
        compression: of the file as a whole: gzip, bz2, zstd, xz; None: it is not packed.
        member: of the zip or tar archive that the file is; None: it is none.
        limit: bytes that unpacking may give before the file is refused as damaged.
        dtype: of raw numbers, which are little-endian.
    """

    file: SourceFile
    format: str = "text"
    field: str | None = None
    compression: str | None = None
    member: str | None = None
    limit: int | None = None
    dtype: str | None = None

    @property
    def place(self) -> str:
        """The file, for messages."""
        path = repr(str(self.file.path))
        return path if self.member is None else f"{self.member!r} in {path}"


class Cut(NamedTuple):
    """How one text becomes three splits.

    Attributes:
        by: `bytes`: at exactly these shares; `fraction`: there, moved to the next border of a document or a line;
            `hash`: each document by a hash of its own content.
        valid: share of validation.
        test: share of test, behind it.
    """

    by: Literal["bytes", "fraction", "hash"]
    valid: float
    test: float


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files of a corpus.

    Attributes:
        setting: what the user set, and its value, for messages.
        location: the file or folder that was named.
        files: all of them, in order.
        splits: the texts of `train`, `valid` and `test`; where `cut` is given all of them stand under `train`.
        cut: how the text is divided; None: the files say it.
        notes: what is unusual about the files.
        vocabulary: the one of them that lists the vocabulary, where there is such a file.
        documents: the texts of the splits, where a corpus from outside gives them in place of files.
    """

    setting: str
    location: Path
    files: tuple[SourceFile, ...]
    splits: Mapping[str, tuple[Source, ...]]
    cut: Cut | None = None
    notes: tuple[str, ...] = ()
    vocabulary: SourceFile | None = None
    documents: Mapping[str, Iterable[str | bytes]] = field(default_factory=dict)

    def listing(self) -> str:
        """Return the sha256 of name, size and time of every file: token files are of these, or they are stale."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(os.fsencode(f"{file.name}\0{file.size}\0{file.mtime_ns}\n"))
        return digest.hexdigest()


def sources_of_path(
    config: TextConfig | TokensConfig,
    source: Callable[[SourceFile], Source],
    *,
    setting: str,
    wanted: str,
    without: Path | None = None,
) -> Sources:
    """Find the files that `path` names, each written as `source` says, and put those into splits whose names say so.

    `setting` (what the user set) and `wanted` are for messages, `without` is a file that is no source. `UserError`
    where there is no file, or not all splits have one.
    """
    location, files, notes = list_files(str(config.path), setting=setting, wanted=wanted)
    files = [file for file in files if file.path.resolve() != without]
    splits: dict[str | None, list[SourceFile]] = {split: [] for split in (*SPLITS, None)}
    for file in files:
        splits[split_of_name(file.name)].append(file)
    if config.split == "files" or (config.split == "auto" and splits["train"] and location.is_dir()):
        missing = [split for split in SPLITS if not splits[split]]
        if missing:
            there = named_first([file.name for found in splits.values() for file in found])
            raise UserError(
                f"{setting}, where no file's or folder's name begins with {' or '.join(missing)} beside {there}: there "
                "must be train*, valid* and test*, or data.split be fraction or hash"
            )
        if splits[None]:
            others = named_first([file.name for file in splits[None]])
            notes.append(f"left out, since others are named train*, valid* and test*: {others}")
        named = {split: tuple(splits[split]) for split in SPLITS}
        cut = None
    else:
        named = {"train": tuple(files)}
        by: Literal["hash", "fraction"] = "hash" if config.split == "hash" else "fraction"
        cut = Cut(by, config.valid_fraction, config.test_fraction)
    return Sources(
        setting=setting,
        location=location,
        files=tuple(file for found in named.values() for file in found),
        splits={split: tuple(map(source, found)) for split, found in named.items()},
        cut=cut,
        notes=tuple(notes),
    )


def split_of_name(name: str) -> str | None:
    """Return `train`, `valid` or `test` where a file's name says so, None where it does not.

    `name` is the file's path below the corpus's folder, with forward slashes. Its first folder decides before the
    file's own name: `train/test_of_time.txt` is training text. The word must end there or be followed by `.`, `-`, `_`
    or a digit: `trains.txt`, `testament.txt` and `devotion.txt` say nothing.
    """
    path = PurePosixPath(name)
    for part in (path.parts[0], path.name):
        if found := _SPLIT_NAME.match(part):
            return found.lastgroup
    return None


def source_of(file: SourceFile, *, format: str, field: str, setting: str) -> Source:
    """Tell from a file's name how it is written, as far as `data.format` leaves that open; `UserError` for archives."""
    stem, suffix = os.path.splitext(file.name.lower())
    compression = _COMPRESSIONS.get(suffix)
    if compression:
        suffix = os.path.splitext(stem)[1]
    if suffix in _ARCHIVES:
        raise UserError(f"{setting}, where {file.name!r} is an archive: unpack it, and name the folder with its files")
    by_name = _FORMATS.get(suffix, "text")
    kind = by_name if format == "auto" or (format == "csv" and by_name == "tsv") else format
    if kind == "parquet" and compression:
        raise UserError(
            f"{setting}, where {file.name!r} is packed with {compression}: Parquet packs its columns itself, and must "
            "not be packed once more"
        )
    return Source(file=file, format=kind, field=None if kind == "text" else field, compression=compression)


def list_files(path: str, *, setting: str, wanted: str) -> tuple[Path, list[SourceFile], list[str]]:
    """List the files that a path names: itself, all visible ones below a folder, or those that match a glob.

    Links are followed, those to folders once each. Folders that hold a corpus's token files are passed over: taking
    them would change the corpus at every build. So is what is no regular file, unless the path names it.

    Args:
        path: as the user wrote it, with `~` for his home; a glob only if nothing has that very name.
        setting: what the user set, and its value, for messages.
        wanted: what it must name, for messages.

    Returns:
        The file, the folder, or the longest folder of a glob that has no wildcards, without symbolic links; the files
        in the order of their names, which are paths below it; what is unusual.

    Raises:
        UserError: there is no file, all are empty, or they cannot be read.
    """
    expanded = Path(os.path.expanduser(path))
    nothing = "a folder without files"
    broken: list[str] = []
    try:
        if _WILDCARD.search(str(expanded)) and not os.path.lexists(expanded):
            nothing = "which matches no file ('**' goes through folders)"
            beginning = next(number for number, part in enumerate(expanded.parts) if _WILDCARD.search(part))
            location = Path(*expanded.parts[:beginning]).resolve(strict=True)
            found = set(_matching(str(location), expanded.parts[beginning:]))
        else:
            location = expanded.resolve(strict=True)
            found = set(walk(location)) if location.is_dir() else set()
        if location.is_dir():
            named = {each.relative_to(location).as_posix(): each for each in found}
            files = [describe(each, name=name) for name, each in sorted(named.items()) if each.is_file()]
            broken = [name for name, each in sorted(named.items()) if not each.exists()]
        else:  # what a link is called says how the file is written, more than the name of what it leads to
            files = [describe(location, name=expanded.name)]
    except (OSError, ValueError, RuntimeError) as error:
        where = f" ({os.fsdecode(error.filename)!r})" if isinstance(error, OSError) and error.filename else ""
        raise UserError(f"{setting}, which cannot be read: {reason_of(error)}{where}; it must name {wanted}") from error
    if not files:
        raise UserError(f"{setting}, {nothing}, and must name {wanted}")
    if not any(file.size for file in files):
        raise UserError(f"{setting}, which is empty, and must name {wanted}")
    return location, files, [f"links that lead nowhere: {named_first(broken)}"] if broken else []


def describe(path: Path, *, name: str) -> SourceFile:
    """Return what a file is now; `OSError` where it is none."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "not a regular file", str(path))
    return SourceFile(path, name, status.st_size, status.st_mtime_ns)


def is_visible(name: str) -> bool:
    """Return whether a name is not that of a hidden file or folder."""
    return not name.startswith(".")


def walk(root: Path, *, keep_folder: Callable[[str], bool] = is_visible) -> Iterator[Path]:
    """Yield what is no folder in `root` and the folders below it; hidden names are left out."""
    return (Path(folder, name) for folder, names in _folders(root, keep_folder) for name in names if is_visible(name))


def _folders(root: Path, keep: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder once, with the names of what else is in it; links to folders come after all others."""
    seen: set[str] = set()
    waiting = [str(root)]
    while waiting:
        for folder, folders, names in os.walk(waiting.pop(0), onerror=_raise):
            real = os.path.realpath(folder)
            if real in seen or set(names) >= _CACHE_FILES:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(filter(keep, folders))
            waiting += filter(os.path.islink, [os.path.join(folder, name) for name in folders])
            yield folder, names


def _matching(folder: str, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the paths below a folder that match a glob's parts, some perhaps more than once."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        for below, _ in _folders(Path(folder), is_visible):
            yield from _matching(below, rest or ("*",))
        return
    names = os.listdir(folder)
    for name in names if not set(names) >= _CACHE_FILES else ():
        if fnmatchcase(name, part) and (is_visible(name) or part.startswith(".")):
            path = os.path.join(folder, name)
            if not rest:
                yield Path(path)
            elif os.path.isdir(path):
                yield from _matching(path, rest)


def _raise(error: OSError) -> None:
    raise error


def named_first(names: Sequence[str], shown: int = 3) -> str:
    """Return the first names, quoted, and how many more there are."""
    more = [f"{len(names) - shown:,} more"] if len(names) > shown else []
    return ", ".join([*map(repr, names[:shown]), *more])


def read_bytes(source: Source) -> Iterator[bytes]:
    """Yield what a file or a member of a zip holds, unpacked; `UserError` where it is damaged or above its limit."""
    kind = source.compression or (source.member and "zip")
    if kind is not None and source.file.size == 0:
        raise UserError(f"{source.place} is empty, and no {kind} file")
    total = 0
    try:
        for chunk in _unpacked(source):
            total += len(chunk)
            require_below(source, total)
            yield chunk
    except UserError:
        raise
    except _DAMAGE as error:
        damaged = f" as {kind}; it is damaged or cut off" if kind else ""
        raise UserError(f"{source.place} cannot be read{damaged}: {reason_of(error)}") from error


def unpack_tar(sources: Sequence[Source], *, folder: Path) -> list[Source]:
    """Return members of one packed tar as files of their own in `folder`; it is read once, as a stream.

    `UserError` where it is damaged, lacks a member, or has one above its limit.
    """
    import pyarrow

    path = sources[0].file.path
    wanted = {str(source.member): source for source in sources}
    found: dict[str, Source] = {}
    try:
        with pyarrow.input_stream(str(path), compression="gzip") as packed:
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                for info in archive:
                    name = info.name.removeprefix("./")
                    if name in wanted and info.isreg():
                        require_below(wanted[name], info.size)
                        target = folder / f"member-{len(found)}"
                        member: Any = archive.extractfile(info)
                        with target.open("wb") as file:
                            file.writelines(iter(partial(member.read, CHUNK_BYTES), b""))
                        found[name] = Source(file=SourceFile(target, name, info.size, 0))
            while packed.read(CHUNK_BYTES):  # to the end, where the checksum is
                pass
    except (*_DAMAGE, tarfile.TarError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{str(path)!r} cannot be read as tar; it is damaged or cut off: {reason_of(error)}") from error
    if missing := sorted(name for name in wanted if name not in found):
        raise UserError(f"{str(path)!r} does not hold {', '.join(missing)}, which it should, or is cut off")
    return [found[str(source.member)] for source in sources]


def _unpacked(source: Source) -> Iterator[bytes]:
    path = source.file.path
    if source.member is not None:
        with zipfile.ZipFile(path) as archive, archive.open(source.member) as member:
            yield from iter(partial(member.read, CHUNK_BYTES), b"")
    elif source.compression == "xz":
        with path.open("rb") as file:
            yield from _unpacked_xz(file)
    elif source.compression is not None:
        import pyarrow

        with pyarrow.input_stream(str(path), compression=source.compression) as stream:
            yield from iter(partial(stream.read, CHUNK_BYTES), b"")
    else:
        with path.open("rb") as file:
            yield from iter(partial(file.read, CHUNK_BYTES), b"")


def _unpacked_xz(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the streams of an .xz file; unlike `lzma`'s own reader it refuses what else is there."""
    data = file.read(CHUNK_BYTES)
    while data:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        while not stream.eof:
            if stream.needs_input and not data and not (data := file.read(CHUNK_BYTES)):
                raise EOFError("it ends before its end marker")
            unpacked, data = stream.decompress(data, CHUNK_BYTES), b""
            if unpacked:
                yield unpacked
        data = stream.unused_data.lstrip(b"\0")
        while not data and (data := file.read(CHUNK_BYTES)):  # zeros may stand between streams and at the end
            data = data.lstrip(b"\0")


def require_below(source: Source, size: int) -> None:
    """Raise `UserError` where unpacking a file has given more bytes than its limit."""
    if source.limit is not None and size > source.limit:
        raise UserError(
            f"{source.place} holds more than {source.limit:,} bytes when unpacked: it is damaged, or not what it "
            "should be"
        )


def reason_of(error: Exception) -> str:
    """Return what an error says, in one line."""
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
