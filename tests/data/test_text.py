"""Files to documents: forms, packings, encodings, records, documents, paths."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from transformer_xl.data import files, text
from transformer_xl.data.files import Source, describe, list_files, read_bytes
from transformer_xl.data.text import read_text
from transformer_xl.errors import UserError

TEXT = "".join(f"line {number} \u4e2d\u6587\r\n" for number in range(2000)).encode()
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def written(path: Path, data: bytes, **how: str) -> Source:
    path.write_bytes(data)
    return describe(path, name=path.name)._replace(**how)  # type: ignore[arg-type]


def documents_of(source: Source, *, documents: str = "record", **options: Any) -> list[bytes]:
    """Return the whole documents of a source."""
    found: list[bytes] = []
    for data, _, begins, _ in read_text(source, documents=documents, **options):
        if begins:
            found.append(b"")
        found[-1] += data
    return found


@pytest.fixture(params=[3, 1 << 20])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Read files in tiny pieces, and as they are read."""
    monkeypatch.setattr(files, "CHUNK_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize("kind", PACKERS)
def test_each_packing_also_in_several_streams(kind: str, tmp_path: Path, chunks: int) -> None:
    pack, half = PACKERS[kind], TEXT[: len(TEXT) // 2]
    source = written(tmp_path / "a", pack(half) + pack(TEXT[len(half) :]), compression=kind)
    assert b"".join(read_bytes(source)) == TEXT


@pytest.mark.parametrize("kind", PACKERS)
def test_a_damaged_file_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    packed = PACKERS[kind](TEXT)
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0x55
    damaged = [packed[:-9], packed + b"no packed stream"]
    if kind != "zstd":  # its frames need not have a checksum
        damaged += [bytes(flipped), packed + bytes(flipped)]
    for data in damaged:
        with pytest.raises(UserError, match=rf"a' cannot be read as {kind}; it is damaged or cut off"):
            list(read_bytes(written(tmp_path / "a", data, compression=kind)))


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16", "utf-16-be", "shift_jis", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path, chunks: int) -> None:
    content = "abc \u00e9\r\n\n" if encoding == "latin-1" else "\u65e5\u672c a\r\n\n"
    source = written(tmp_path / "a", (content * 9).encode(encoding))
    assert documents_of(source, encoding=encoding) == [(content * 9).encode()]


def test_a_wrong_byte_is_refused_with_its_place_or_replaced(tmp_path: Path, chunks: int) -> None:
    source = written(tmp_path / "a.txt", b"one\ntw\xffo\nthree \xe6\x9d")
    with pytest.raises(UserError, match=r"a\.txt' at byte 6 has the byte 0xff, .* not UTF-8"):
        documents_of(source)
    assert documents_of(source, errors="replace") == ["one\ntw\ufffdo\nthree \ufffd".encode()]
    assert documents_of(source, any_bytes=True) == [b"one\ntw\xffo\nthree \xe6\x9d"]


@pytest.mark.parametrize("any_bytes", [True, False])
def test_a_byte_order_mark_is_left_out(any_bytes: bool, tmp_path: Path, chunks: int) -> None:
    plain = written(tmp_path / "a", codecs.BOM_UTF8 + b"ab\xef\xbb\xbf")
    assert documents_of(plain, any_bytes=any_bytes) == [b"ab\xef\xbb\xbf"]
    lines = written(tmp_path / "b", codecs.BOM_UTF8 + b'{"t": "x"}\n', format="jsonl", field="t")
    assert documents_of(lines) == [b"x"]


def test_json_lines(tmp_path: Path, chunks: int) -> None:
    texts = ["a\nb", "", "\u4e2d\u2028x", "\ud83d\ude00"]
    content = "\n\n".join(json.dumps({"id": 1, "t": one}) for one in texts)
    source = written(tmp_path / "a", content.encode(), format="jsonl", field="t")
    assert documents_of(source) == [one.encode("utf-16", "surrogatepass").decode("utf-16").encode() for one in texts]
    assert documents_of(source, documents="file") == [b"a\nb\n\n\xe4\xb8\xad\xe2\x80\xa8x\n\xf0\x9f\x98\x80\n"]


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_tables(delimiter: str, tmp_path: Path, chunks: int) -> None:
    texts = ["plain", 'with "quotes", a tab\t', "two\nlines\r\nhere", ""]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([["id", "t"], *([str(n), one] for n, one in enumerate(texts))])
    format = "csv" if delimiter == "," else "tsv"
    source = written(tmp_path / "a", file.getvalue().encode(), format=format, field="t")
    assert documents_of(source) == [one.encode() for one in texts]


@pytest.mark.parametrize(
    ("format", "content", "problem"),
    [
        ("jsonl", '{"t": "x"}\n{', r"line 2, is no JSON"),
        ("jsonl", "[" * 100_000, r"line 1, is no JSON"),
        ("jsonl", "[1]", r"line 1, has no field 't' but none"),
        ("jsonl", '{"a": 1, "b": 2}', r"line 1, has no field 't' but 'a', 'b': data.field names one"),
        ("jsonl", '{"t": "x"}\n{"t": 5}', r"record 2, has 5 under 't', and must have text there"),
        ("jsonl", '{"t": "x"}\n{"t": null}', r"record 2, has null under 't', and must have text there"),
        ("jsonl", '{"t": "\\ud800"}', r"record 1, holds half a character: .*surrogates not allowed"),
        ("jsonl", '{"t": "' + "y" * 200, r"has a line longer than 100 bytes"),
        ("csv", "a,b\n1,2\n", r"has no field 't' but 'a', 'b'"),
        ("csv", "t,t\n1,2\n", r"has more than one field 't'"),
        ("csv", "t,b\n1,2\n\n1,2,3\n", r"line 4, must have 2 columns"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(
    format: str, content: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "LONGEST_RECORD", 100 if "longer" in problem else 1 << 20)
    with pytest.raises(UserError, match=rf"a'.*{problem}"):
        documents_of(written(tmp_path / "a", content.encode(), format=format, field="t"))


def columns(path: Path, field: str = "t", **named: Any) -> Source:
    parquet.write_table(pyarrow.table(named), path, row_group_size=7)
    return describe(path, name=path.name)._replace(format="parquet", field=field)


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())])
def test_columns(kind: Any, tmp_path: Path) -> None:
    texts = [f"text {number}\u4e2d" for number in range(20)]
    source = columns(tmp_path / "a", n=range(20), t=pyarrow.array(texts).cast(kind))
    assert documents_of(source) == [one.encode() for one in texts]


def test_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    source = columns(tmp_path / "a", n=[1, 2], t=["x", None])
    for field, problem in {
        "n": r"record 1, has 1 under 'n', and must have text",
        "t": r"record 2, has null under 't', and must have text",
        "z": "has no field 'z' but 'n', 't'",
    }.items():
        with pytest.raises(UserError, match=problem):
            documents_of(source._replace(field=field))
    source.path.write_bytes(source.path.read_bytes()[:-9])
    with pytest.raises(UserError, match="a' cannot be read as Parquet"):
        documents_of(source)


@pytest.mark.parametrize(
    ("rule", "content", "expected"),
    [
        ("blank_line", b"a\nb\n\nc\n \t\n\r\nd", [b"a\nb\n\n", b"c\n \t\n\r\n", b"d"]),
        ("blank_line", b"\n\na\n\n", [b"\n\na\n\n"]),
        ("blank_line", b"", []),
        ("marker", b"a\n <end> \nb<end>\n<end>\n<end>\nc\n<end>", [b"a\n", b"b<end>\n", b"c\n"]),
        ("marker", b"<end>\r\na\n<end> x\n", [b"a\n<end> x\n"]),
        ("file", b"a\n\n<end>\n", [b"a\n\n<end>\n"]),
    ],
)
def test_where_documents_begin(rule: str, content: bytes, expected: list[bytes], tmp_path: Path, chunks: int) -> None:
    source = written(tmp_path / "a", content)
    found = documents_of(source, documents=rule, marker="<end>" if rule == "marker" else None)
    assert [one for one in found if one] == expected


@given(
    parts=st.lists(st.sampled_from([b"\n", b" ", b"\r\n", b"a", b"--", b"b\n", b"--\n"]), max_size=30),
    size=st.integers(1, 9),
)
@settings(deadline=None)
def test_documents_do_not_hang_on_how_a_file_is_read(
    parts: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = written(tmp_path_factory.getbasetemp() / "parts", b"".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        for rule, marker in (("blank_line", None), ("marker", "--")):
            whole = documents_of(source, documents=rule, marker=marker)
            patch.setattr(files, "CHUNK_BYTES", size)
            assert documents_of(source, documents=rule, marker=marker) == whole
            patch.undo()


def names(path: Path | str) -> list[str]:
    return [file.name for file in list_files(str(path), setting="data.path is x", wanted="a text file").files]


def fill(folder: Path, *listed: str) -> Path:
    for name in listed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.fsencode(name) + b"\n")
    return folder


def test_links_are_followed_once_and_broken_ones_said(tmp_path: Path) -> None:
    folder = fill(tmp_path / "in", "a.txt", "b/c.txt")
    fill(tmp_path / "elsewhere", "deep/d.txt")
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "link").symlink_to("a.txt")
    (folder / "again").symlink_to(folder)
    (folder / "b" / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "twice").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "loop").symlink_to(folder)
    found = list_files(str(folder), setting="data.path is x", wanted="a text file")
    listed = [file.name for file in found.files]
    assert [name for name in listed if not name.endswith("d.txt")] == ["a.txt", "b/c.txt", "link"]
    assert len(listed) == 4, "what several links lead to is read once"
    assert found.notes == ["links that lead nowhere: 'dangling'"]
    assert sorted(names(folder / "**" / "*.txt")) == sorted(name for name in listed if name != "link")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt", "b.txt"]),
        ("[ab].*", ["a.md", "a.txt", "b.txt"]),
        ("logs/**/*.txt", ["c.txt", "x/d.txt", "x/y/e.txt"]),
        ("logs/**", ["c.txt", "x/d.txt", "x/y/e.txt", "x/y/f.md"]),
        ("**/y/*", ["logs/x/y/e.txt", "logs/x/y/f.md"]),
        ("**/x/**/?.txt", ["logs/x/d.txt", "logs/x/y/e.txt"]),
        ("l*/x/d.txt", ["logs/x/d.txt"]),
        (".h*/*", [".hidden/g.txt"]),
        ("a[1].txt", ["a[1].txt"]),
    ],
)
def test_globs(pattern: str, expected: list[str], tmp_path: Path) -> None:
    listed = ["a.txt", "b.txt", "a.md", "logs/c.txt", "logs/x/d.txt", "logs/x/y/e.txt", "logs/x/y/f.md"]
    hidden = [".hidden/g.txt", "logs/.h.txt", "logs/cache/corpus.json", "logs/cache/vocabulary.json"]
    fill(tmp_path, *listed, *hidden, *(["a[1].txt"] if pattern == "a[1].txt" else []))
    assert names(tmp_path / pattern) == expected


@pytest.mark.parametrize("path", ["absent.txt", "absent/*", "empty.txt", "nothing", "nothing/*", "loop", "nul\x00byte"])
def test_a_path_that_holds_no_text_is_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=r"^data\.path is x.* must name a text file"):
        names(path)


def test_odd_names_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a=b,c.txt", "[x]{y}.txt", "what?*.txt", "\u4e2d\u6587 ' \".txt", os.fsdecode(b"\xff.txt")):
        fill(tmp_path, name)
        assert names(tmp_path / name) == names(f"~/{name}") == [name]


@pytest.mark.parametrize(
    ("name", "asked", "format", "compression"),
    [
        ("README", "auto", "text", None),
        ("A.NDJSON", "auto", "jsonl", None),
        ("a.b.csv.xz", "auto", "csv", "xz"),
        ("a.jsonl.zst", "auto", "jsonl", "zstd"),
        ("a.parquet", "text", "text", None),
        ("a.tsv", "csv", "tsv", None),
        ("part-0", "parquet", "parquet", None),
    ],
)
def test_a_files_name_says_how_it_is_written(name: str, asked: str, format: str, compression: str | None) -> None:
    source = text._as_named(Source(Path(name), name, 1, 1), format=asked, field="t", setting="data.path is x")
    assert (source.format, source.compression) == (format, compression)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.TGZ", "a.parquet.gz"])
def test_what_is_packed_otherwise_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"data\.path is x, where '{name}' is packed: unpack it"):
        text._as_named(Source(Path(name), name, 1, 1), format="auto", field="t", setting="data.path is x")
