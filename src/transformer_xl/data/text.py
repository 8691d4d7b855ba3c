"""Files of text, however they are encoded and divided, as documents in UTF-8, a few megabytes at a time."""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from transformer_xl import registry
from transformer_xl.data.files import CHUNK_BYTES, Source, Sources, divide, list_files, read_bytes
from transformer_xl.data.tokenizer import Part
from transformer_xl.data_config import TextConfig
from transformer_xl.errors import UserError, first_line

LONGEST_RECORD = 64 << 20
"""Characters; a longer line of JSON or CSV is refused, so that memory stays bounded."""
_WANTED = "a text file, a folder of text files, or a glob such as 'logs/**/*.txt'"
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
_ARCHIVES = {".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".7z", ".rar"}
_BLANK_LINES = re.compile(rb"(?<=[^ \t\r\n])[ \t\r]*\n(?:[ \t\r]*\n)+()")
_BLANKS = rb"[ \t\r\x0b\x0c]*"
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_ADVICE = "data.encoding names another encoding, data.errors=replace goes on, data.tokenizer=byte takes any file"


@registry.register("corpus", "text", TextConfig)
def text_sources(config: TextConfig, *, announce: Callable[[str], None]) -> Sources:
    """Find the files that `data.path` names, and their splits; `UserError` where they are missing or unclear."""
    setting = f"data.path is {config.path!r}"
    read_as = partial(_as_named, format=config.format, field=config.field, setting=setting)
    return divide(config, list_files(str(config.path), setting=setting, wanted=_WANTED), read_as)


def _as_named(file: Source, *, format: str, field: str, setting: str) -> Source:
    """Return a file with what its name says of how it is written, as far as `data.format` leaves that open.

    `UserError` for archives.
    """
    stem, suffix = os.path.splitext(file.name.lower())
    compression = _COMPRESSIONS.get(suffix)
    if compression:
        suffix = os.path.splitext(stem)[1]
    by_name = _FORMATS.get(suffix, "text")
    kind = by_name if format == "auto" or (format == "csv" and by_name == "tsv") else format
    if suffix in _ARCHIVES or (kind == "parquet" and compression):
        raise UserError(f"{setting}, where {file.name!r} is packed: unpack it, and name the folder with its files")
    return file._replace(format=kind, field=None if kind == "text" else field, compression=compression)


def read_text(
    source: Source,
    *,
    documents: str,
    marker: str | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
    any_bytes: bool = False,
) -> Iterator[Part]:
    r"""Yield a file's documents in UTF-8; a record that is no document of its own gets a final `\n`.

    Args:
        source: the file.
        documents: `none`, `file`: the file is one; `record`: every record is one, or a file of plain text;
            `blank_line`: one begins after each run of blank lines; `marker`: lines that are `marker` stand between them
            and belong to none.
        marker: see there.
        encoding: of the file, as Python names it.
        errors: `strict`: bytes that the encoding forbids are refused; `replace`: U+FFFD takes their place.
        any_bytes: bytes are the symbols: plain text in UTF-8 is passed on as it is, whatever it holds.

    Raises:
        UserError: the file is damaged or holds what it must not; it names file and place.
    """
    encoding = "utf-8" if encoding.lower() == "utf8" else encoding.lower()
    decoded = _decoded(source, encoding, errors)
    if source.format == "text":
        passes = any_bytes and encoding == "utf-8" and errors == "strict"
        chunks = without_mark(read_bytes(source)) if passes else decoded
    else:
        records = _records(source, decoded, errors)
        if documents == "record":
            return (Part(record) for record in records)
        chunks = (record if record.endswith(b"\n") else record + b"\n" for record in records)
    if documents == "blank_line":
        return _divided(chunks, _BLANK_LINES)
    if documents == "marker":
        line = _BLANKS + re.escape(str(marker).strip().encode()) + _BLANKS
        return _divided(chunks, re.compile(rb"^(" + line + rb"(?:\n|\Z))", re.MULTILINE))
    return (Part(chunk, begins=not number) for number, chunk in enumerate(chunks))


def _decoded(source: Source, encoding: str, errors: str) -> Iterator[bytes]:
    """Yield plain text in UTF-8; pieces may end inside a character."""
    position = 0
    try:
        "".encode(encoding)  # unlike base64, which is none of text
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        for chunk in chain(without_mark(read_bytes(source)), [b""]):
            position += len(chunk)
            text = decoder.decode(chunk, not chunk)
            yield chunk if encoding == "utf-8" and errors == "strict" else text.encode()
    except UnicodeDecodeError as error:
        # the object is what the decoder kept from before and the chunk: both end at the same byte
        offset = position - len(error.object) + error.start
        raise UserError(
            f"{source.place} at byte {offset:,} has the byte {error.object[error.start]:#04x}, which is not "
            f"{encoding.upper()} there: {_ADVICE}"
        ) from error
    except (LookupError, UnicodeError) as error:
        raise UserError(f"{source.place} cannot be read with data.encoding={encoding}: {error}; {_ADVICE}") from error


def _records(source: Source, decoded: Iterable[bytes], errors: str) -> Iterator[bytes]:
    """Yield records in UTF-8; what JSON can hold need not be text."""
    if source.format == "parquet":
        texts = _columns(source)
    else:
        lines = _lines(decoded, source)
        texts = _json_texts(lines, source) if source.format == "jsonl" else _csv_texts(lines, source)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            found = f"has {json.dumps(text, default=str)[:40]} under {source.field!r}, and must have text there"
            raise UserError(f"{source.place}, record {number:,}, {found}")
        try:
            yield text.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                found = f"holds half a character: {error}; data.errors=replace goes on"
                raise UserError(f"{source.place}, record {number:,}, {found}") from error
            yield _HALF_CHARACTER.sub("\ufffd", text).encode()


def without_mark(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out the byte order mark that some programs write at the beginning of UTF-8."""
    following = iter(chunks)
    first = b""
    while len(first) < len(codecs.BOM_UTF8) and (chunk := next(following, b"")):
        first += chunk
    return chain([first.removeprefix(codecs.BOM_UTF8)] if first else [], following)


def _divided(chunks: Iterable[bytes], border: re.Pattern[bytes]) -> Iterator[Part]:
    """Divide a text where a border matches; its first group belongs to no document."""
    held, begins = b"", True
    for chunk in chain(chunks, [b""]):
        text = held + chunk
        # the last line that is not blank, and what is behind it, may go on in the next chunk
        content = len(text.rstrip(b" \t\r\n"))
        settled = text.rfind(b"\n", 0, content) + 1 or (content if len(text) > LONGEST_RECORD else 0)
        if not chunk:
            settled = len(text)
        start = 0
        for found in border.finditer(text, 0, settled):
            if start < found.start(1):
                yield Part(text[start : found.start(1)], begins=begins)
            start, begins = found.end(1), True
        if start < settled:
            yield Part(text[start:settled], begins=begins)
            begins = False
        held = text[settled:]


def _lines(chunks: Iterable[bytes], source: Source) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (f"{line.decode()}\n" for line in lines)
        if len(rest) > LONGEST_RECORD:
            raise UserError(f"{source.place} has a line longer than {LONGEST_RECORD:,} bytes, which no record may be")
    if rest:
        yield rest.decode()


def _json_texts(lines: Iterable[str], source: Source) -> Iterator[object]:
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{source.place}, line {number:,}, is no JSON: {error}; a line must be an object"
            ) from error
        if not isinstance(record, dict) or source.field not in record:
            _check_field(source, list(record) if isinstance(record, dict) else [], place=f", line {number:,},")
        yield record[source.field]


def _csv_texts(lines: Iterable[str], source: Source) -> Iterator[object]:
    csv.field_size_limit(LONGEST_RECORD)  # of the process; 131,072 unless it is raised
    reader = csv.DictReader(lines, delimiter="\t" if source.format == "tsv" else ",")
    try:
        names = reader.fieldnames or []
        _check_field(source, names)
        for record in reader:
            if None in record or None in record.values():
                raise UserError(
                    f"{source.place}, line {reader.line_num:,}, must have {len(names)} columns, as the header; a text "
                    "with the delimiter in it must stand in quotes"
                )
            yield record[str(source.field)]
    except csv.Error as error:
        raise UserError(f"{source.place}, line {reader.line_num:,}, cannot be read as CSV: {error}") from error


def _columns(source: Source) -> Iterator[object]:
    from pyarrow import ArrowException, parquet

    options = {"pre_buffer": False, "buffer_size": CHUNK_BYTES, "page_checksum_verification": True}
    try:
        with parquet.ParquetFile(source.path, **options) as table:
            _check_field(source, table.schema_arrow.names)
            for batch in table.iter_batches(1024, columns=[source.field], use_threads=False):
                yield from batch.column(0).to_pylist()
    except UserError:
        raise
    except (ArrowException, OSError, ValueError) as error:
        raise UserError(f"{source.place} cannot be read as Parquet: {first_line(error)}") from error


def _check_field(source: Source, names: Sequence[str], *, place: str = "") -> None:
    if names.count(source.field) != 1:
        there = ", ".join(map(repr, names[:10])) or "none"
        number = "more than one" if source.field in names else "no"
        raise UserError(f"{source.place}{place} has {number} field {source.field!r} but {there}: data.field names one")
