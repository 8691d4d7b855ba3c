"""Parquet: a column of text."""

from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.building.written import ODD_TEXTS, Content, extracted, write
from transformer_xl.data.building import columns
from transformer_xl.errors import UserError

PARQUET = {"format": "parquet", "field": "text"}
TYPES = {
    "string": pyarrow.string(),
    "large_string": pyarrow.large_string(),
    "string_view": pyarrow.string_view(),
    "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
}


def write_table(path: Path, texts: list[str | None], type: Any = None, **settings: Any) -> Path:
    column = pyarrow.array(texts, pyarrow.string()).cast(type or pyarrow.string())
    nested = pyarrow.array([{"text": "no"}] * len(texts), pyarrow.struct([("text", pyarrow.string())]))
    table = pyarrow.table({"id": list(range(len(texts))), "meta": nested, "text": column, "other": texts})
    parquet.write_table(table, path, **settings)
    return path


def write_bytes(path: Path, texts: list[bytes]) -> Path:
    """Write bytes as a column of strings, as other programs do."""
    column = pyarrow.array(texts, pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": column}), path)
    return path


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("ends_records", [False, True])
@pytest.mark.parametrize("type", list(TYPES))
def test_a_column_survives(
    type: str, ends_records: bool, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        monkeypatch.setattr(columns, "_BATCH_RECORDS", 2)
    path = write_table(tmp_path / "a", [*ODD_TEXTS, None, "end"], TYPES[type], row_group_size=5)
    texts = [*ODD_TEXTS, "", "end"]
    records = [(text + "\n" * (ends_records and not text.endswith("\n"))).encode() for text in texts]
    found = extracted(path, of=PARQUET, ends_records=ends_records)
    assert found == Content(b"".join(records), records, 0, 0)


def test_tables_without_rows_or_text(tmp_path: Path) -> None:
    assert extracted(write_table(tmp_path / "a", []), of=PARQUET) == Content(b"", [], 0, 0)
    assert extracted(write_table(tmp_path / "b", [None, ""]), of=PARQUET) == Content(b"", [b"", b""], 0, 0)


def test_a_text_of_five_megabytes(tmp_path: Path) -> None:
    texts = ["a", "long \u4e2d\n" * 500_000, "b"]
    found = extracted(write_table(tmp_path / "a", [*texts]), of=PARQUET)
    assert found.records == [text.encode() for text in texts]


def test_a_column_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a", ["x"])
    with pytest.raises(UserError, match=r"a' has no column 'body' but 'id', 'meta', 'text', 'other'; data\.field"):
        extracted(path, of=PARQUET | {"field": "body"})
    with pytest.raises(UserError, match=r"a' has int64 in its column 'id'; data\.field must name a column of text"):
        extracted(path, of=PARQUET | {"field": "id"})
    with pytest.raises(UserError, match=r"a' has struct<.*> in its column 'meta'"):
        extracted(path, of=PARQUET | {"field": "meta"})


@pytest.mark.parametrize("kept", [0, 3, 100, -1, "half"])
def test_a_file_that_is_cut_off_is_refused(kept: int | str, tmp_path: Path) -> None:
    data = write_table(tmp_path / "whole", ["some text"] * 1000).read_bytes()
    path = write(tmp_path / "a", data[: len(data) // 2] if isinstance(kept, str) else data[:kept])
    with pytest.raises(UserError, match=r"a' cannot be read as Parquet; it is damaged or cut off: .") as refused:
        extracted(path, of=PARQUET)
    assert "\n" not in str(refused.value)


def test_a_file_whose_pages_are_damaged_is_refused(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {number}" for number in range(5000)]
    for name, settings in (
        ("a", {"compression": "snappy"}),
        ("b", {"compression": "none", "write_page_checksum": True}),
    ):
        path = write_table(tmp_path / name, texts, None, use_dictionary=False, **settings)
        column = parquet.read_metadata(path).row_group(0).column(2)
        assert column.path_in_schema == "text"
        data = bytearray(path.read_bytes())
        middle = column.data_page_offset + column.total_compressed_size // 2
        if name == "a":
            data[middle : middle + 40] = b"\xff" * 40
        else:
            data[data.index(b"text ", middle)] ^= 1
        with pytest.raises(UserError, match=rf"{name}' cannot be read as Parquet"):
            extracted(write(path, bytes(data)), of=PARQUET)


def test_texts_that_are_no_utf8_in_each_mode(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "a", [b"a", b"ab\xff\xff", "\ufffd".encode() + b"\xe4", b"b\n"])
    with pytest.raises(UserError, match=r"a' has the byte 0xff at offset 2 \(counted from 0\) of row 2,"):
        extracted(path, of=PARQUET)
    replaced = [b"a\n", "ab\ufffd\ufffd\n".encode(), "\ufffd\ufffd\n".encode(), b"b\n"]
    found = extracted(path, of=PARQUET, errors="replace", ends_records=True)
    assert found == Content(b"".join(replaced), replaced, 3, 0)
    assert extracted(path, of=PARQUET, errors="skip_line") == Content(b"ab\n", [b"a", b"b\n"], 0, 2)
    raw = extracted(path, of=PARQUET, raw=True)
    assert raw.records == [b"a", b"ab\xff\xff", "\ufffd".encode() + b"\xe4", b"b\n"]


def test_rows_are_counted_over_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BATCH_RECORDS", 3)
    path = write_bytes(tmp_path / "a", [b"a"] * 10 + [b"\xff"])
    with pytest.raises(UserError, match=r"of row 11,"):
        extracted(path, of=PARQUET)


def test_a_limit(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a", ["x" * 10] * 1000)
    assert len(extracted(path, of=PARQUET | {"unpacked_limit": 10_000}).data) == 10_000
    with pytest.raises(UserError, match=r"a' holds more than 9,999 bytes"):
        extracted(path, of=PARQUET | {"unpacked_limit": 9999})
