"""Which parts of a file are documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transformer_xl.data.building import documents
from transformer_xl.data.building.documents import Rule, document_rows
from transformer_xl.errors import UserError


def found(
    tmp_path: Path, text: str, rule: Rule, *, marker: str | None = None, starts: list[int] | None = None
) -> list[str]:
    path, records = tmp_path / "text", None
    path.write_bytes(text.encode())
    if starts is not None:
        records = tmp_path / "records"
        np.array(starts, "<i8").tofile(records)
    size = path.stat().st_size
    rows = document_rows(path, size=size, rule=rule, marker=marker, records=records, table=tmp_path / "rows")
    assert rows.dtype == np.int64
    return [text.encode()[start:stop].decode() for start, stop in rows.tolist()]


@pytest.fixture(autouse=True, params=[1, 2, 7, 300, 1 << 20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK_BYTES", request.param)


@pytest.mark.parametrize("rule", ["none", "file", "record"])
def test_a_plain_file_is_one(rule: Rule, tmp_path: Path) -> None:
    assert found(tmp_path, "a\n\nb\n", rule) == ["a\n\nb\n"]
    assert found(tmp_path, "", rule) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n\nc\n", ["a\nb\n\n", "c\n"]),
        ("a\r\n\r\nb\r\n", ["a\r\n\r\n", "b\r\n"]),
        ("a\n \t\n\n\nb", ["a\n \t\n\n\n", "b"]),
        ("a\n\n", ["a\n\n"]),
        ("a", ["a"]),
        ("\n\na\n", ["\n\na\n"]),
        ("a\n\n  \n\n b\n\n", ["a\n\n  \n\n", " b\n\n"]),
    ],
)
def test_blank_lines_end_documents_and_belong_to_them(text: str, expected: list[str], tmp_path: Path) -> None:
    assert found(tmp_path, text, "blank_line") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n<|end|>\nb\n<|end|>\n", ["a\n", "b\n"]),
        ("a\n <|end|> \r\nb", ["a\n", "b"]),
        ("<|end|>\na\n<|end|>\n<|end|>\nb", ["a\n", "b"]),
        ("a <|end|>\nb\n", ["a <|end|>\nb\n"]),
        ("a\n<|end|>b\n", ["a\n<|end|>b\n"]),
        ("a\n<|end|>" + " " * 300 + "\nb\n", ["a\n<|end|>" + " " * 300 + "\nb\n"]),
        ("x" * 600 + "<|end|>\nb\n<|end|>", ["x" * 600 + "<|end|>\nb\n"]),
    ],
)
def test_marker_lines_stand_between_documents_and_belong_to_none(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    assert found(tmp_path, text, "marker", marker="<|end|>") == expected


def test_records_begin_where_they_are_listed_and_empty_ones_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_WRITTEN_AT_ONCE", 2)
    assert found(tmp_path, "aabbbc", "record", starts=[0, 2, 2, 5, 6]) == ["aa", "bbb", "c"]
    assert found(tmp_path, "x", "record", starts=[]) == []
    assert found(tmp_path, "x", "blank_line", starts=[0]) == ["x"]


@pytest.mark.parametrize("rule", ["blank_line", "marker"])
def test_a_file_that_shrinks_meanwhile_is_refused(rule: Rule, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\n\nb\n")
    with pytest.raises(UserError, match="changed while it was read"):
        document_rows(tmp_path / "text", size=100, rule=rule, marker="-", records=None, table=tmp_path / "rows")
