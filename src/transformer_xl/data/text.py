"""Bytes of text, however they are encoded and divided, as documents in UTF-8, a few megabytes at a time."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple

from transformer_xl.data.files import CHUNK_BYTES, Source, named_first, read_bytes, reason_of, require_below
from transformer_xl.errors import UserError

LONGEST_RECORD = 64 << 20
"""Characters; a longer line of JSON or CSV is refused, so that memory stays bounded."""
_LONGEST_MARKER_LINE = 1 << 20
_BLANKS = rb"[ \t\r\x0b\x0c]*"
_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
_ADVICE = "data.encoding names another encoding, data.errors=replace goes on, data.tokenizer=byte takes any file"
# Python calls them text, but they are no encodings of files, cannot be cut, or give what UTF-8 cannot hold.
_UNFIT = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7"}


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
                text = self._noted(decoder.decode(chunk, not chunk))
            except UnicodeDecodeError as error:
                # the object is what the decoder kept from before and the chunk: both end at the same byte
                offset = position - len(error.object) + error.start
                lines += error.object[: error.start].decode(self.encoding, "ignore").count("\n")
                name = "UTF-8" if is_utf8(self.encoding) else self.encoding
                raise UserError(
                    f"{source.place} at byte {offset}, counted from 0, in line {lines + 1}, has the byte "
                    f"{error.object[error.start]:#04x}, which is not {name} there: {_ADVICE}"
                ) from error
            except UnicodeError as error:
                raise UserError(f"{source.place} cannot be read as {self.encoding}: {error}; {_ADVICE}") from error
            lines += text.count("\n")
            if text:
                yield text

    def _noted(self, text: str) -> str:
        self.replaced += text.count("\ufffd") if self.errors == "replace" else 0
        return text

    def _valid(self, record: str | bytes | None, place: str) -> bytes | None:
        """Return a record in UTF-8; what JSON or Parquet can hold need not be text."""
        if record is None or (self.any_bytes and isinstance(record, bytes)):
            return record
        try:
            return record.encode() if isinstance(record, str) else record.decode().encode()
        except UnicodeError as error:
            if self.errors == "strict":
                raise UserError(f"{place} holds what is not UTF-8: {error}; data.errors=replace goes on") from error
        # half a character of JSON, or a wrong byte, becomes one U+FFFD
        data = record.encode("utf-16", "surrogatepass") if isinstance(record, str) else record
        return self._noted(data.decode("utf-16" if isinstance(record, str) else "utf-8", "replace")).encode()

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
            if not isinstance(record, dict) or source.field not in record:
                there = list(record) if isinstance(record, dict) else []
                raise UserError(f"{place} {_missing_field(source.field, there, kind='key')}")
            text = record[source.field]
            if not isinstance(text, str | None):
                raise UserError(
                    f"{place} has {json.dumps(text)[:40]} under {source.field!r}, and must have a text there"
                )
            yield self._valid(text, place)

    def _parquet_records(self, source: Source) -> Iterator[bytes | None]:
        row = size = 0
        for column in _parquet_columns(source):
            for record in column.to_pylist():
                row += 1
                size += len(record or b"")
                yield self._valid(record, f"{source.place}, row {row:,},")
            require_below(source, size)


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
            f"{source.place} cannot be read as Parquet; it is damaged or cut off: {reason_of(error)}"
        ) from error


def _check_field(source: Source, names: Sequence[str], *, place: str) -> None:
    if source.field not in names:
        raise UserError(f"{place} {_missing_field(source.field, names, kind='column')}")
    if sum(name == source.field for name in names) > 1:
        raise UserError(f"{place} has more than one column {source.field!r}; data.field must name one")


def _missing_field(name: str | None, there: Sequence[str], *, kind: str) -> str:
    return f"has no {kind} {name!r} but {named_first(there, 10) or 'none'}; data.field must name one of them"
