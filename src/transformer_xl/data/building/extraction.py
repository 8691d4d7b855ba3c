"""From a user's file, however text is written in it, to a plain file of UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self

import numpy as np

from transformer_xl.data.building.archives import read_members
from transformer_xl.data.building.columns import parquet_records
from transformer_xl.data.building.decoding import Errors, Tally, decode, is_utf8
from transformer_xl.data.building.formats import Batch, batched, csv_records, json_records
from transformer_xl.data.building.unpacking import unpack
from transformer_xl.data.sources.files import Origin

RECORDS_DTYPE = np.dtype("<i8")
_DELIMITERS = {"csv": ",", "tsv": "\t"}


class Extracted(NamedTuple):
    """Text in UTF-8 (any bytes, if bytes are the symbols).

    Attributes:
        path: the source itself where it is such text already, else the target.
        size: bytes.
        records: file of the places where each record begins (`RECORDS_DTYPE`; an empty record begins where the next
            does), beside the target; None where text does not come in records.
        replaced: characters put in place of bytes that the encoding forbids.
    """

    path: Path
    size: int
    records: Path | None
    replaced: int


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How text is extracted; see `extract_many`."""

    encoding: str
    errors: Errors
    raw: bool
    ends_records: bool

    @property
    def takes_any_utf8(self) -> bool:
        return self.errors == "strict" and is_utf8(self.encoding)


def extract(origin: Origin, *, encoding: str, errors: Errors, raw: bool, ends_records: bool, target: Path) -> Extracted:
    """Extract one text; `extract_many` says how, and is faster for several members of one tar."""
    (extracted,) = extract_many(
        [origin], encoding=encoding, errors=errors, raw=raw, ends_records=ends_records, targets=[target]
    )
    return extracted


def extract_many(
    origins: Sequence[Origin],
    *,
    encoding: str,
    errors: Errors,
    raw: bool,
    ends_records: bool,
    targets: Sequence[Path],
) -> list[Extracted]:
    r"""Turn texts, however they are written, into plain files of UTF-8, with little memory however large they are.

    Plain text in UTF-8 with errors=strict is neither read nor copied; that it is UTF-8 must be found by who reads it.
    An archive is read once for all of its members.

    Args:
        origins: of the texts. One that comes several times is extracted once.
        encoding: of the files, as `check_encoding` passes it.
        errors: on bytes that it forbids: `strict` refuses them, `replace` puts U+FFFD in their place.
        raw: bytes are the symbols: text in UTF-8 with errors=strict is unpacked, and need not be UTF-8.
        ends_records: each record gets a final \n unless it has one.
        targets: a path for each text, for a new file; places of records stand in one beside it.

    Raises:
        UserError: a file cannot be read, is damaged, or holds what it must not.
        OSError: a target cannot be written.
    """
    way = _Way(encoding=encoding, errors=errors, raw=raw, ends_records=ends_records)
    done: dict[Origin, Extracted] = {}
    archives: dict[Path, dict[str, Origin]] = {}
    target_of: dict[Origin, Path] = {}
    for origin, target in zip(origins, targets, strict=True):
        if origin in target_of:
            continue
        target_of[origin] = target
        if origin.member is not None:
            members = archives.setdefault(origin.file.path, {})
            assert origin.member not in members, "a member is one text"
            members[origin.member] = origin
        elif _is_plain(origin, way):
            done[origin] = Extracted(origin.file.path, origin.file.size, None, 0)
        else:
            done[origin] = _extract(origin, None, way=way, target=target)
    for path, members in archives.items():
        for name, chunks in read_members(path, {name: origin.unpacked_limit for name, origin in members.items()}):
            origin = members[name]
            done[origin] = _extract(origin, chunks, way=way, target=target_of[origin])
    return [done[origin] for origin in origins]


def _is_plain(origin: Origin, way: _Way) -> bool:
    return origin.format == "text" and origin.compression is None and way.takes_any_utf8


def _extract(origin: Origin, chunks: Iterator[bytes] | None, *, way: _Way, target: Path) -> Extracted:
    """Extract a text from a file of its own (`chunks` is None), or from a member's bytes."""
    place = repr(str(origin.file.path))
    if origin.member is not None:
        place = f"{origin.member!r} in {place}"
    tally = Tally()
    with _Output(target, has_records=origin.format != "text") as output:
        if origin.format == "parquet":
            assert chunks is None, "a Parquet file is read at many places, and is no member"
            assert origin.compression is None, "a Parquet file packs its columns itself"
            assert origin.field is not None
            batches = parquet_records(
                origin.file.path,
                field=origin.field,
                errors=way.errors,
                raw=way.raw and way.takes_any_utf8,
                ends_records=way.ends_records,
                limit=origin.unpacked_limit,
                place=place,
                tally=tally,
            )
            output.write_records(batches)
        else:
            if chunks is None:
                chunks = unpack(origin.file.path, origin.compression, place=place, limit=origin.unpacked_limit)
            if origin.format == "text":
                output.write(_text(chunks, way=way, place=place, tally=tally))
            else:
                records = _records(origin, chunks, way=way, place=place, tally=tally)
                output.write_records(batched(records, ends_records=way.ends_records))
    return Extracted(target, output.size, output.records, tally.replaced)


def _text(chunks: Iterator[bytes], *, way: _Way, place: str, tally: Tally) -> Iterator[bytes]:
    if way.raw and way.takes_any_utf8:
        yield from chunks
        return
    texts = decode(
        chunks,
        encoding=way.encoding,
        errors=way.errors,
        place=place,
        remedy=", or data.tokenizer be byte with data.encoding=utf-8, which takes any bytes",
        tally=tally,
    )
    for text in texts:
        yield text.encode()


def _records(origin: Origin, chunks: Iterator[bytes], *, way: _Way, place: str, tally: Tally) -> Iterator[bytes]:
    assert origin.field is not None
    texts = decode(chunks, encoding=way.encoding, errors=way.errors, place=place, remedy="", tally=tally)
    if origin.format == "jsonl":
        return json_records(texts, field=origin.field, errors=way.errors, place=place, tally=tally)
    return csv_records(
        texts,
        field=origin.field,
        delimiter=_DELIMITERS[origin.format],
        place=place,
    )


class _Output:
    """A file of text, and beside it, for records, one of the places where they begin."""

    def __init__(self, target: Path, *, has_records: bool) -> None:
        self.size = 0
        self.records = target.with_name(f"{target.name}.records") if has_records else None
        self._target = target
        self._text: IO[bytes]
        self._places: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._text = self._target.open("wb")
        if self.records is not None:
            self._places = self.records.open("wb")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._text.close()
        if self._places is not None:
            self._places.close()

    def write(self, parts: Iterator[bytes]) -> None:
        for part in parts:
            self.size += self._text.write(part)

    def write_records(self, batches: Iterator[Batch]) -> None:
        assert self._places is not None
        for data, lengths in batches:
            self._text.write(data)
            ends = self.size + np.cumsum(lengths)
            self._places.write((ends - lengths).astype(RECORDS_DTYPE).tobytes())
            self.size = int(ends[-1]) if len(ends) else self.size
