"""Text on disk, however it is named, packed, encoded and divided, as documents in UTF-8, a few megabytes at a time."""

from __future__ import annotations

import codecs
import csv
import json
import lzma
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from transformer_xl.errors import UserError, first_line

CHUNK_BYTES = 1 << 20
LONGEST_RECORD = 64 << 20
"""Characters; a longer line of JSON or CSV is refused, so that memory stays bounded."""
_XZ_MEMORY_BYTES = 1 << 30
_LONGEST_MARKER_LINE = 1 << 20
_CACHE_FILES = {"corpus.json", "vocabulary.json"}
_WILDCARD = re.compile(r"[*?\[]")
_BLANKS = rb"[ \t\r\x0b\x0c]*"
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
_DAMAGE = (OSError, EOFError, ValueError, RuntimeError, KeyError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
# Python calls them text, but they are no encodings of files, cannot be cut, or give what UTF-8 cannot hold.
_UNFIT = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7"}
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
_ARCHIVES = {".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".7z", ".rar"}


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


class Piece(NamedTuple):
    """A document or a part of one: bytes, or token ids; `begins`: whether a document begins with it."""

    data: Any
    begins: bool


@dataclass(kw_only=True)
class TextReader:
    """How files become documents.

    Attributes:
        documents: `none`, `file`: every file is one; `record`: every record is one, or a file of plain text;
            `blank_line`: one begins after each run of blank lines; `marker`: lines that are `marker` stand between them
            and belong to none.
        marker: see there.
        encoding: of the files, as Python names it.
        errors: `strict`: bytes that the encoding forbids are refused; `replace`: U+FFFD takes their place.
        any_bytes: bytes are the symbols: text in UTF-8 is passed on as it is, whatever it holds.
        replaced: counts U+FFFD in what has been read with `replace`.
    """

    documents: str
    marker: str | None = None
    encoding: str = "utf-8"
    errors: Literal["strict", "replace"] = "strict"
    any_bytes: bool = False
    replaced: int = field(default=0, init=False)

    def read(self, source: Source) -> Iterator[Piece]:
        r"""Yield a file's documents in UTF-8; a record that is no document of its own gets a final `\n`.

        Raises:
            UserError: the file is damaged or holds what it must not; it names file and place.
        """
        rule = self.documents
        if source.format == "text":
            chunks = _without_mark(read_bytes(source))
            if not self.any_bytes:
                chunks = (text.encode() for text in self._decoded(chunks, source))
        else:
            records = _refusing_nulls(self._records(source), source)
            if rule == "record":
                return (Piece(record, begins=True) for record in records)
            chunks = (record if record.endswith(b"\n") else record + b"\n" for record in records)
        if rule == "blank_line":
            return _after_blank_lines(chunks)
        if rule == "marker":
            assert self.marker is not None
            return _between_markers(chunks, self.marker.strip().encode())
        return map(Piece, chunks, chain([True], repeat(False)))

    def _decoded(self, chunks: Iterable[bytes], source: Source) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)(self.errors)
        position = lines = 0
        for chunk in chain(chunks, [b""]):
            position += len(chunk)
            try:
                text = decoder.decode(chunk, not chunk)
            except UnicodeDecodeError as error:
                # the object is what the decoder kept from before and the chunk: both end at the same byte
                offset = position - len(error.object) + error.start
                lines += error.object[: error.start].decode(self.encoding, "ignore").count("\n")
                name = "UTF-8" if is_utf8(self.encoding) else self.encoding
                raise UserError(
                    f"{source.place} at byte {offset}, counted from 0, in line {lines + 1}, has the byte "
                    f"{error.object[error.start]:#04x}, which is not {name} there: data.encoding names another "
                    "encoding, data.errors=replace goes on, data.tokenizer=byte takes any file"
                ) from error
            except UnicodeError as error:
                raise UserError(
                    f"{source.place} cannot be read as {self.encoding}: {error}; data.encoding must name its encoding"
                ) from error
            lines += text.count("\n")
            self._count_replaced(text)
            if text:
                yield text

    def _count_replaced(self, text: str) -> None:
        if self.errors == "replace":
            self.replaced += text.count("\ufffd")

    def _records(self, source: Source) -> Iterator[bytes | None]:
        if source.format == "parquet":
            return self._parquet_records(source)
        lines = _lines(self._decoded(_without_mark(read_bytes(source)), source), source)
        return self._json_records(lines, source) if source.format == "jsonl" else _csv_records(lines, source)

    def _json_records(self, lines: Iterable[str], source: Source) -> Iterator[bytes | None]:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            place = f"{source.place}, line {number:,},"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{place} is no JSON: {error}; each line must be an object, or data.format say how it is written"
                ) from error
            if not isinstance(record, dict):
                raise UserError(f"{place} is JSON but no object, and must be one with its text under {source.field!r}")
            if source.field not in record:
                raise UserError(f"{place} {_missing_field(source.field, list(record), kind='key')}")
            text = record[source.field]
            if not isinstance(text, str | None):
                shown = json.dumps(text)[:40]
                raise UserError(
                    f"{place} has {shown} under {source.field!r}; data.field must name a key whose values are strings"
                )
            yield None if text is None else self._encoded(text, place)

    def _encoded(self, text: str, place: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            if self.errors == "strict":
                raise UserError(
                    f"{place} has an escape \\u{ord(text[error.start]):04x}, half of a character, without its other "
                    "half; data.errors=replace takes the file all the same"
                ) from error
            mended = re.sub("[\ud800-\udfff]", "\ufffd", text)
            self._count_replaced(mended)
            return mended.encode()

    def _parquet_records(self, source: Source) -> Iterator[bytes | None]:
        row = size = 0
        for column in _parquet_columns(source):
            for record in column.to_pylist():
                row += 1
                size += len(record or b"")
                yield record if record is None or self.any_bytes else self._checked(record, source, row=row)
            _require_below(source, size)

    def _checked(self, record: bytes, source: Source, *, row: int) -> bytes:
        try:
            record.decode()
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise UserError(
                    f"{source.place} has the byte {record[error.start]:#04x} at offset {error.start} (counted from 0) "
                    f"of row {row:,}, which is not UTF-8 there; data.errors=replace goes on"
                ) from error
            mended = record.decode(errors="replace")
            self._count_replaced(mended)
            return mended.encode()
        return record


def check_encoding(name: str) -> str | None:
    """Return a sentence on what is wrong with a name for `data.encoding`; None where it is an encoding of text."""
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
    """Return whether a name that `check_encoding` passes is one of UTF-8."""
    return codecs.lookup(encoding).name == "utf-8"


def read_bytes(source: Source) -> Iterator[bytes]:
    """Yield what a file or a member of a zip holds, unpacked; `UserError` where it is damaged or above its limit."""
    kind = source.compression or (source.member and "zip")
    if kind is not None and source.file.size == 0:
        raise UserError(f"{source.place} is empty, and no {kind} file")
    total = 0
    try:
        for chunk in _unpacked(source):
            total += len(chunk)
            _require_below(source, total)
            yield chunk
    except UserError:
        raise
    except _DAMAGE as error:
        damaged = f" as {kind}; it is damaged or cut off" if kind else ""
        raise UserError(f"{source.place} cannot be read{damaged}: {_reason(error)}") from error


def unpack_tar(sources: Sequence[Source], *, folder: Path) -> list[Source]:
    """Write members of one packed tar into a folder; the archive is read once, as a stream.

    Args:
        sources: members of the same archive.
        folder: gets them, under numbers.

    Returns:
        The same texts as files of their own.

    Raises:
        UserError: the archive is damaged, lacks a member, or has one above its limit.
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
                        _require_below(wanted[name], info.size)
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
        raise UserError(f"{str(path)!r} cannot be read as tar; it is damaged or cut off: {_reason(error)}") from error
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


def _require_below(source: Source, size: int) -> None:
    if source.limit is not None and size > source.limit:
        raise UserError(
            f"{source.place} holds more than {source.limit:,} bytes when unpacked: it is damaged, or not what it "
            "should be"
        )


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)


def _without_mark(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out the byte order mark that some programs write at the beginning of UTF-8."""
    following = iter(chunks)
    first = b""
    while len(first) < len(codecs.BOM_UTF8) and (chunk := next(following, b"")):
        first += chunk
    first = first.removeprefix(codecs.BOM_UTF8)
    return chain([first] if first else [], following)


def _after_blank_lines(chunks: Iterable[bytes]) -> Iterator[Piece]:
    held, begins = b"", True
    for chunk in chain(chunks, [b""]):
        text = held + chunk
        # white space at the end may go on in the next chunk
        settled = len(text.rstrip(b" \t\r\n")) if chunk else len(text)
        start = 0
        for blank in _BLANK_LINES.finditer(text, 0, settled):
            if blank.start() > start or not begins:  # blank lines alone are no document
                yield Piece(text[start : blank.end()], begins)
                start, begins = blank.end(), True
        if start < settled:
            yield Piece(text[start:settled], begins)
            begins = False
        held = text[settled:]


def _between_markers(chunks: Iterable[bytes], marker: bytes) -> Iterator[Piece]:
    line = re.compile(rb"^" + _BLANKS + re.escape(marker) + _BLANKS + rb"(?:\n|\Z)", re.MULTILINE)
    held, begins, in_line = b"", True, False
    for chunk in chain(chunks, [b""]):
        text = held + chunk
        settled = text.rfind(b"\n") + 1 if chunk else len(text)
        is_long = not settled and len(text) > _LONGEST_MARKER_LINE
        settled = len(text) if is_long else settled
        start = 0
        for found in line.finditer(text, 0, settled):
            if not (in_line and found.start() == 0):
                if start < found.start():
                    yield Piece(text[start : found.start()], begins)
                start, begins = found.end(), True
        if start < settled:
            yield Piece(text[start:settled], begins)
            begins = False
        in_line = is_long or (in_line and not settled)
        held = text[settled:]


def _lines(texts: Iterable[str], source: Source) -> Iterator[str]:
    rest, number = "", 1
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield f"{line}\n"
        number += len(lines)
        if len(rest) >= LONGEST_RECORD:
            raise UserError(
                f"{source.place}, line {number:,}, is longer than {LONGEST_RECORD:,} characters, which no record may be"
            )
    if rest:
        yield rest


def _refusing_nulls(records: Iterable[bytes | None], source: Source) -> Iterator[bytes]:
    nulls = first = number = 0
    for number, record in enumerate(records, 1):
        if record is None:
            nulls, first = nulls + 1, first or number
        elif not nulls:
            yield record
    if nulls:
        raise UserError(
            f"{source.place} has null under {source.field!r} in {nulls:,} of its {number:,} records, first in record "
            f"{first:,}: leave these records out, or name another data.field"
        )


def _csv_records(lines: Iterator[str], source: Source) -> Iterator[bytes]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_RECORD))  # of the process; 131,072 unless it is raised
    reader = csv.reader(lines, delimiter="\t" if source.format == "tsv" else ",")
    width = column = None
    ended = 0
    try:
        for record in reader:
            begin, ended = ended + 1, reader.line_num
            if not record:
                continue
            if column is None:
                _check_field(source, record, place=f"{source.place}, line {begin:,},")
                width, column = len(record), record.index(str(source.field))
                continue
            if len(record) != width:
                raise UserError(
                    f"{source.place} has a record of {len(record)} columns at line {begin:,}, and must have {width} in "
                    "each, as in its header; a text with the delimiter in it must stand in quotes"
                )
            yield record[column].encode()
    except csv.Error as error:
        raise UserError(f"{source.place} cannot be read as CSV at line {ended + 1:,}: {error}") from error


def _parquet_columns(source: Source) -> Iterator[Any]:
    """Yield a column as arrays of bytes, a few megabytes at a time."""
    import pyarrow
    from pyarrow import parquet

    buffers = {"pre_buffer": False, "buffer_size": CHUNK_BYTES, "page_checksum_verification": True}
    try:
        with parquet.ParquetFile(source.file.path, **buffers) as table:
            schema = table.schema_arrow
            _check_field(source, schema.names, place=source.place)
            kind = schema.field(source.field).type
            value = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            if value not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
                raise UserError(
                    f"{source.place} has {kind} in its column {source.field!r}; data.field must name a column of text"
                )
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                mean = group.total_byte_size // max(1, group.num_rows)
                rows = min(1 << 16, 4 * CHUNK_BYTES // (mean + 1) + 1)
                for batch in table.iter_batches(rows, row_groups=[number], columns=[source.field], use_threads=False):
                    yield batch.column(0).cast(pyarrow.large_string()).cast(pyarrow.large_binary())
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{source.place} cannot be read as Parquet; it is damaged or cut off: {_reason(error)}"
        ) from error


def _check_field(source: Source, names: Sequence[str], *, place: str) -> None:
    if source.field not in names:
        raise UserError(f"{place} {_missing_field(source.field, names, kind='column')}")
    if sum(name == source.field for name in names) > 1:
        raise UserError(f"{place} has more than one column {source.field!r}; data.field must name one")


def _missing_field(name: str | None, there: Sequence[str], *, kind: str) -> str:
    return f"has no {kind} {name!r} but {named_first(there, 10) or 'none'}; data.field must name one of them"


class Listing(NamedTuple):
    """Files in the order of their names.

    Attributes:
        location: the file, the folder, or the longest folder of a glob that has no wildcards, without symbolic links.
        files: named by their path below `location`; a file that the user named himself by the name he gave it.
        notes: what is unusual.
    """

    location: Path
    files: list[SourceFile]
    notes: tuple[str, ...]


def list_files(path: str, *, setting: str, wanted: str) -> Listing:
    """List the files that a path names: itself, all visible ones below a folder, or those that match a glob.

    Links are followed, those to folders once each. Folders that hold a corpus's token files are passed over: taking
    them would change the corpus at every build. So is what is no regular file, unless the path names it.

    Args:
        path: as the user wrote it, with `~` for his home; a glob only if nothing has that very name.
        setting: what the user set, and its value, for messages.
        wanted: what it must name, for messages.

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
        raise UserError(f"{setting}, which cannot be read: {_reason(error)}{where}; it must name {wanted}") from error
    if not files:
        raise UserError(f"{setting}, {nothing}, and must name {wanted}")
    if not any(file.size for file in files):
        raise UserError(f"{setting}, which is empty, and must name {wanted}")
    return Listing(location, files, (f"links that lead nowhere: {named_first(broken)}",) if broken else ())


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


def source_of(file: SourceFile, *, format: str, field: str, setting: str) -> Source:
    """Tell from a file's name how it is written, as far as `data.format` leaves that open.

    Raises:
        UserError: its name says that it is an archive, or a packed Parquet file.
    """
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


def named_first(names: Sequence[str], shown: int = 3) -> str:
    """Return the first names, quoted, and how many more there are."""
    more = [f"{len(names) - shown:,} more"] if len(names) > shown else []
    return ", ".join([*map(repr, names[:shown]), *more])


def _raise(error: OSError) -> None:
    raise error
