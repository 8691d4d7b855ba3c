"""JSON lines and CSV."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.data.building.written import ODD_TEXTS, PACKERS, Content, extracted, write
from transformer_xl.data.building import formats, unpacking
from transformer_xl.errors import UserError

JSON = {"format": "jsonl", "field": "text"}
CSV = {"format": "csv", "field": "text"}


def ended(text: str) -> bytes:
    return (text if text.endswith("\n") else text + "\n").encode()


def json_lines(texts: tuple[str, ...], *, ascii_only: bool = False, end: str = "\n") -> str:
    return "".join(
        json.dumps({"id": number, "text": text, "meta": {"text": "no"}}, ensure_ascii=ascii_only) + end
        for number, text in enumerate(texts)
    )


def csv_text(texts: tuple[str, ...], *, delimiter: str = ",", end: str = "\r\n") -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerow(["id", "text", "more"])
    writer.writerows((number, text, "m") for number, text in enumerate(texts))
    return file.getvalue()


@pytest.mark.parametrize("errors", ["strict", "replace", "skip_line"])
@pytest.mark.parametrize("size", [1, 5, 1 << 20])
@pytest.mark.parametrize("ends_records", [False, True])
@pytest.mark.parametrize("form", ["jsonl", "ascii", "crlf", "csv", "csv-lf", "tsv"])
def test_records_survive(
    form: str, ends_records: bool, size: int, errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "CHUNK_BYTES", size)
    monkeypatch.setattr(formats, "_BATCH_RECORDS", 4)
    written = {
        "jsonl": lambda: json_lines(ODD_TEXTS),
        "ascii": lambda: json_lines(ODD_TEXTS, ascii_only=True),
        "crlf": lambda: json_lines(ODD_TEXTS, end="\r\n"),
        "csv": lambda: csv_text(ODD_TEXTS),
        "csv-lf": lambda: csv_text(ODD_TEXTS, end="\n"),
        "tsv": lambda: csv_text(ODD_TEXTS, delimiter="\t"),
    }[form]()
    path = write(tmp_path / "a.zst", PACKERS["zstd"](written.encode()))
    of = {"format": form if form in ("csv", "tsv") else form.split("-")[0] if "csv" in form else "jsonl"}
    of |= {"field": "text", "compression": "zstd"}
    records = [ended(text) if ends_records else text.encode() for text in ODD_TEXTS]
    expected = Content(b"".join(records), records, 0, 0)
    assert extracted(path, of=of, ends_records=ends_records, errors=errors) == expected


@pytest.mark.parametrize("of", [JSON, CSV])
@pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "utf-8-sig"])
def test_records_in_other_encodings(encoding: str, of: dict[str, str], tmp_path: Path) -> None:
    texts = ("\u4e2d\u6587\n", "\U0001f600", "")
    written = json_lines(texts) if of is JSON else csv_text(texts)
    found = extracted(write(tmp_path / "a", written.encode(encoding)), of=of, encoding=encoding)
    assert found.records == [text.encode() for text in texts]


@pytest.mark.parametrize("of", [JSON, CSV])
@pytest.mark.parametrize("blank", ["\n", "\r\n"])
def test_blank_lines_and_a_byte_order_mark_are_no_records(blank: str, of: dict[str, str], tmp_path: Path) -> None:
    written = json_lines(("a", "b")) if of is JSON else csv_text(("a", "b"))
    lines = written.splitlines(keepends=True)
    data = "\ufeff" + blank * 2 + blank.join(lines) + blank
    if of is JSON:
        data += "  \t \n" + '  {"text": "c"}  '
    else:
        data += "2,c,m"
    assert extracted(write(tmp_path / "a", data.encode()), of=of).records == [b"a", b"b", b"c"]


@pytest.mark.parametrize("of", [JSON, CSV])
def test_a_file_without_records(of: dict[str, str], tmp_path: Path) -> None:
    for data in (b"", b"\n\n", *([b"id,text\n"] if of is CSV else [])):
        assert extracted(write(tmp_path / "a", data), of=of, ends_records=True) == Content(b"", [], 0, 0)


@pytest.mark.parametrize("of", [JSON, CSV])
def test_a_record_of_five_megabytes(of: dict[str, str], tmp_path: Path) -> None:
    texts = ("a", "long \u4e2d\n" * 500_000, "b")
    written = json_lines(texts) if of is JSON else csv_text(texts)
    path = write(tmp_path / "a", written.encode())
    assert extracted(path, of=of).records == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no json", "is no JSON: Expecting value at character 1; each line must be an object"),
        ('{"text": "a"', "is no JSON: Expecting"),
        ('{"text": "a"} {"text": "b"}', "is no JSON: Extra data at character 15"),
        ('["a"]', "is JSON but no object, and must be one that holds its text under 'text'"),
        ('"text"', "is JSON but no object"),
        ("7", "is JSON but no object"),
        ("null", "is JSON but no object"),
        ('{"body": "a", "id": 1}', "has no key 'text' but 'body', 'id'; data.field must name one of them"),
        ("{}", "has no key 'text' but none"),
        ('{"text": null}', "has null under 'text'; data.field must name a key whose values are strings"),
        ('{"text": ["a"]}', 'has ["a"] under'),
        ('{"text": 3}', "has 3 under"),
        ('{"text": ' + "1" * 5000 + "}", "is no JSON that can be read"),
        ("[" * 100_000, "is no JSON that can be read"),
        ('{"text": "\\ud83d"}', "has an escape \\ud83d, half of a character"),
        ('{"text": "\x01"}', "is no JSON: Invalid control character"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(line: str, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a"}}\n\n{line}\n'.encode())
    with pytest.raises(UserError) as refused:
        extracted(path, of=JSON)
    assert f"{str(path)!r}, line 3, {problem}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_half_a_character_in_json_in_each_mode(tmp_path: Path) -> None:
    lines = ['"a"', '"\\ud83d\\ude00"', '"x\\ude00y\\ud83d"', '"b"']
    path = write(tmp_path / "a", "".join(f'{{"text": {line}}}\n' for line in lines).encode())
    smile = "\U0001f600".encode()
    replaced = [b"a", smile, "x\ufffdy\ufffd".encode(), b"b"]
    assert extracted(path, of=JSON, errors="replace") == Content(b"".join(replaced), replaced, 2, 0)
    kept = [b"a", smile, b"b"]
    assert extracted(path, of=JSON, errors="skip_line") == Content(b"".join(kept), kept, 0, 1)


def test_a_bad_byte_in_json_in_each_mode(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b'{"text": "a"}\n{"text": "b\xff"}\n{"text": "c", "x": "\xff"}\n{"text": "d"}\n')
    with pytest.raises(UserError, match=r"0xff at offset 25 \(counted from 0\), on line 2,") as refused:
        extracted(path, of=JSON)
    assert "tokenizer" not in str(refused.value)
    replaced = [b"a", "b\ufffd".encode(), b"c", b"d"]
    assert extracted(path, of=JSON, errors="replace") == Content(b"".join(replaced), replaced, 2, 0)
    assert extracted(path, of=JSON, errors="skip_line") == Content(b"ad", [b"a", b"d"], 0, 2)


def test_numbers_of_lines_count_those_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b'{"text": "a"}\n{"text": "b\xff"}\nwrong\n')
    with pytest.raises(UserError, match="line 3, is no JSON"):
        extracted(path, of=JSON, errors="skip_line")


def test_a_bad_byte_in_csv_in_each_mode(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b'id,text\n1,a\n2,"b\nb\xff\nb"\n3,c\n\xff,d\n')
    with pytest.raises(UserError, match=r"0xff at offset 18 \(counted from 0\), on line 4,"):
        extracted(path, of=CSV)
    replaced = [b"a", "b\nb\ufffd\nb".encode(), b"c", b"d"]
    assert extracted(path, of=CSV, errors="replace") == Content(b"".join(replaced), replaced, 2, 0)
    assert extracted(path, of=CSV, errors="skip_line") == Content(b"ac", [b"a", b"c"], 0, 2)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("id,body\n1,a\n", ", line 1, has no column 'text' but 'id', 'body'; data.field must name one of them"),
        ("\n\nid;text\n1;a\n", ", line 3, has no column 'text' but 'id;text'"),
        ("id,text\n1,a\n2\n", " has a record of 1 columns at line 3, and must have 2"),
        ('id,text\n1,"a\na"\n2,b, and c\n', " has a record of 3 columns at line 4, and must have 2"),
        (",".join(f"c{number}" for number in range(20)) + "\n", "'c8', 'c9', 10 more; data.field"),
    ],
)
def test_a_table_that_is_wrong_is_refused(data: str, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", data.encode())
    with pytest.raises(UserError) as refused:
        extracted(path, of=CSV)
    assert repr(str(path)) in str(refused.value)
    assert problem in str(refused.value)


@pytest.mark.parametrize("of", [JSON, CSV])
def test_a_record_that_does_not_fit_into_memory_is_refused(
    of: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "CHUNK_BYTES", 100)
    for module in ("decoding", "formats"):
        monkeypatch.setattr(f"transformer_xl.data.building.{module}.LONGEST_LINE", 1000)
    path = write(tmp_path / "a", b'"' + b"x" * 5000)
    with pytest.raises(UserError, match=r"a', line 1, is longer than 1,000 characters"):
        extracted(path, of=of)
