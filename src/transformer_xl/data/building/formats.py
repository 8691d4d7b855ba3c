"""Records of JSON lines and CSV: the text of one key or column of each."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.decoding import LONGEST_LINE, REPLACEMENT, Errors, Tally, lines_of
from transformer_xl.errors import UserError

_BATCH_BYTES = 1 << 20
_BATCH_RECORDS = 1 << 14
_SHOWN = 10
_SHOWN_CHARACTERS = 40
_BYTE_ORDER_MARK = "\ufeff"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Batch(NamedTuple):
    """Texts of consecutive records in UTF-8, one after the other, and the bytes that each has (int64)."""

    data: bytes | memoryview
    lengths: NDArray[np.int64]


def batched(records: Iterator[bytes], *, ends_records: bool) -> Iterator[Batch]:
    r"""Gather records; with `ends_records`, each gets a final \n unless it has one."""
    while True:
        batch: list[bytes] = []
        size = 0
        for record in islice(records, _BATCH_RECORDS):
            batch.append(record + b"\n" if ends_records and not record.endswith(b"\n") else record)
            size += len(record)
            if size >= _BATCH_BYTES:
                break
        if not batch:
            return
        yield Batch(b"".join(batch), np.fromiter(map(len, batch), np.int64, len(batch)))


def json_records(texts: Iterable[str], *, field: str, errors: Errors, place: str, tally: Tally) -> Iterator[bytes]:
    """Yield the text under `field` of each line's JSON object; blank lines are none.

    Args:
        texts: parts of the file's text, cut anywhere.
        field: a key.
        errors: what is done about wrong text, as halves of surrogate pairs, which JSON can write and UTF-8 cannot.
        place: names the file in messages.
        tally: counts what was done.

    Raises:
        UserError: a line is no object, or has no string there.
    """
    parse = json.JSONDecoder().raw_decode  # does not look behind the object, in which it is faster than `loads`
    for number, line in enumerate(_short_lines(texts, place=place), 1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        line = line.strip()
        if not line:
            continue
        try:
            record, end = parse(line)
            if end < len(line):
                raise ValueError("more than one object")
            text = record[field]
            encoded = text.encode()
        except UnicodeEncodeError as error:
            if errors == "strict":
                raise UserError(
                    f"{place}, line {number:,}, has an escape \\u{ord(text[error.start]):04x}, half of a character, "
                    "without its other half; data.errors=replace takes the file all the same"
                ) from error
            text, wrong = _SURROGATE.subn(REPLACEMENT, text)
            tally.replaced += wrong
            encoded = text.encode()
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{place}, line {number:,}, {_problem(line, field=field)}") from error
        yield encoded


def _problem(line: str, *, field: str) -> str:
    """Say what is wrong with a line that is no JSON object with a text."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        return (
            f"is no JSON: {error.msg} at character {error.pos + 1:,}; each line must be an object, or data.format say "
            "how the file is written"
        )
    except (ValueError, RecursionError) as error:
        return f"is no JSON that can be read: {error}"
    if not isinstance(record, dict):
        return f"is JSON but no object, and must be one that holds its text under {field!r}"
    if field not in record:
        return missing_field(field, list(record), kind="key")
    shown = json.dumps(record[field])[:_SHOWN_CHARACTERS]
    return f"has {shown} under {field!r}; data.field must name a key whose values are strings"


def missing_field(field: str, there: Sequence[str], *, kind: Literal["key", "column"]) -> str:
    """Say that a record lacks the field, and which it has."""
    more = [f"{len(there) - _SHOWN:,} more"] if len(there) > _SHOWN else []
    names = ", ".join([*map(repr, there[:_SHOWN]), *more]) or "none"
    return f"has no {kind} {field!r} but {names}; data.field must name one of them"


def csv_records(texts: Iterable[str], *, field: str, delimiter: str, place: str) -> Iterator[bytes]:
    """Yield the text in the column `field` of each record after the header; blank lines are none.

    Args:
        texts: parts of the file's text, cut anywhere.
        field: a column's name in the header.
        delimiter: stands between columns.
        place: names the file in messages.

    Raises:
        UserError: there is no such column, or a record has not as many columns as the header.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # of the process; 131,072 unless it is raised
    reader = csv.reader(_without_mark(_short_lines(texts, place=place)), delimiter=delimiter)
    width = column = None
    ended = 0
    try:
        for record in reader:
            begin, ended = ended + 1, reader.line_num
            if not record:
                continue
            if column is None:
                if field not in record:
                    raise UserError(f"{place}, line {begin:,}, {missing_field(field, record, kind='column')}")
                width, column = len(record), record.index(field)
                continue
            if len(record) != width:
                raise UserError(
                    f"{place} has a record of {len(record)} columns at line {begin:,}, and must have {width} in each, "
                    "as in its header; a text with the delimiter in it must stand in quotes"
                )
            yield record[column].encode()
    except csv.Error as error:
        raise UserError(f"{place} cannot be read as CSV at line {ended + 1:,}: {error}") from error


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line.removeprefix(_BYTE_ORDER_MARK)
        break
    yield from lines


def _short_lines(texts: Iterable[str], *, place: str) -> Iterator[str]:
    """Yield lines that fit into memory."""
    for number, line in enumerate(lines_of(texts), 1):
        if len(line) >= LONGEST_LINE:
            raise UserError(
                f"{place}, line {number:,}, is longer than {LONGEST_LINE:,} characters, which no record may be"
            )
        yield line
