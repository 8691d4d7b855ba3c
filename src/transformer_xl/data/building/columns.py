"""A column of text in a Parquet file, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from transformer_xl.data.building.decoding import REPLACEMENT, Errors, Tally
from transformer_xl.data.building.formats import Batch, batched, missing_field
from transformer_xl.data.building.unpacking import reason_of, too_large
from transformer_xl.errors import UserError

_BATCH_BYTES = 4 << 20
_BATCH_RECORDS = 1 << 16
_BUFFER_BYTES = 1 << 20


def parquet_records(
    path: Path,
    *,
    field: str,
    errors: Errors,
    raw: bool,
    ends_records: bool,
    limit: int | None,
    place: str,
    tally: Tally,
) -> Iterator[Batch]:
    r"""Yield the texts of a column, a missing one as an empty text.

    Args:
        path: of the file.
        field: the column's name.
        errors: what is done about texts that are no UTF-8, which the format does not rule out.
        raw: they are taken as they are.
        ends_records: each gets a final \n unless it has one.
        limit: bytes that the texts may have together; None: any number.
        place: names the file in messages.
        tally: counts what was done.

    Raises:
        UserError: the file is damaged, has no such column of text, or more than `limit` bytes there.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"{place} cannot be read: {reason_of(error)}") from error
    with file:
        row, total = 1, 0
        for column in _columns(file, field=field, place=place):
            total += _size(column)
            if limit is not None and total > limit:
                raise UserError(too_large(place, limit=limit))
            if raw or _is_valid(column):
                yield _batch(column, ends_records=ends_records)
            else:
                texts = _mend(column, errors=errors, place=place, row=row, tally=tally)
                yield from batched(texts, ends_records=ends_records)
            row += len(column)


def _columns(file: IO[bytes], *, field: str, place: str) -> Iterator[Any]:
    """Yield the column as arrays of large strings."""
    import pyarrow
    from pyarrow import parquet

    try:
        # Without pre_buffer and with a buffer, a row group is read page by page.
        source = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
        number = _column_number(source, field=field, place=place)
        for group in range(source.num_row_groups):
            metadata = source.metadata.row_group(group)
            mean = metadata.column(number).total_uncompressed_size // max(1, metadata.num_rows) + 1
            batches = source.iter_batches(
                batch_size=min(_BATCH_RECORDS, _BATCH_BYTES // mean + 1),
                row_groups=[group],
                columns=[field],
                use_threads=False,
            )
            for batch in batches:
                yield batch.column(0).cast(pyarrow.large_string()).fill_null("")
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{place} cannot be read as Parquet; it is damaged or cut off: {reason_of(error)}") from error


def _column_number(source: Any, *, field: str, place: str) -> int:
    """Give the column's place among the leaves of the schema, which metadata counts by."""
    import pyarrow

    schema = source.schema_arrow
    if schema.names.count(field) != 1:
        if field in schema.names:
            raise UserError(f"{place} has more than one column {field!r}; data.field must name one")
        raise UserError(f"{place} {missing_field(field, schema.names, kind='column')}")
    type = schema.field(field).type
    value = type.value_type if pyarrow.types.is_dictionary(type) else type
    if value not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
        raise UserError(f"{place} has {type} in its column {field!r}; data.field must name a column of text")
    paths = [source.schema.column(number).path for number in range(len(source.schema))]
    return paths.index(field)


def _size(column: Any) -> int:
    from pyarrow import compute

    return compute.sum(compute.binary_length(column)).as_py() or 0


def _is_valid(column: Any) -> bool:
    import pyarrow

    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid:
        return False
    return True


def _batch(column: Any, *, ends_records: bool) -> Batch:
    if ends_records:
        import pyarrow
        from pyarrow import compute

        end, nothing = (pyarrow.scalar(text, pyarrow.large_string()) for text in ("\n", ""))
        ended = compute.binary_join_element_wise(column, end, nothing)
        column = compute.if_else(compute.ends_with(column, "\n"), column, ended)
    _, places, data = column.buffers()
    borders = np.frombuffer(places, np.int64)[column.offset : column.offset + len(column) + 1]
    if data is None:
        return Batch(b"", np.diff(borders))
    return Batch(memoryview(data)[borders[0] : borders[-1]], np.diff(borders))


def _mend(column: Any, *, errors: Errors, place: str, row: int, tally: Tally) -> Iterator[bytes]:
    """Yield the texts of a column in which some are no UTF-8."""
    import pyarrow

    for number, value in enumerate(column.cast(pyarrow.large_binary()), row):
        text: bytes = value.as_py()
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if errors == "strict":
                raise UserError(
                    f"{place} has the byte 0x{text[error.start]:02x} at offset {error.start:,} (counted from 0) of "
                    f"row {number:,}, which utf-8 does not allow there; data.errors=replace takes the file all the "
                    "same"
                ) from error
            mended = text.decode(errors="replace")
            tally.replaced += mended.count(REPLACEMENT) - text.count(REPLACEMENT.encode())
            text = mended.encode()
        yield text
