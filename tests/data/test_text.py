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
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from transformer_xl.data import files, text
from transformer_xl.data.files import Source, SourceFile, describe, list_files, read_bytes, source_of
from transformer_xl.data.text import TextReader
from transformer_xl.errors import UserError

TEXT = "".join(f"line {number} \u4e2d\u6587\r\n" for number in range(2000)).encode()
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def written(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(data)
    return describe(path, name=path.name)


def documents_of(source: Source, *, documents: str = "record", **options: Any) -> list[bytes]:
    """Return the whole documents of a source."""
    found: list[bytes] = []
    for data, begins in TextReader(documents=documents, **options).read(source):
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
    file = written(tmp_path / "a", pack(half) + pack(TEXT[len(half) :]))
    assert b"".join(read_bytes(Source(file=file, compression=kind))) == TEXT
    limited = Source(file=file, compression=kind, limit=len(TEXT) - 1)
    with pytest.raises(UserError, match=rf"a' holds more than {len(TEXT) - 1:,} bytes when unpacked"):
        list(read_bytes(limited))


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "trailing", "flipped", "second", "empty"])
def test_a_damaged_file_is_refused_by_name(kind: str, damage: str, tmp_path: Path) -> None:
    packed = PACKERS[kind](TEXT)
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0x55
    if kind == "zstd" and damage in ("flipped", "second"):
        pytest.skip("its frames need not have a checksum")
    data = {
        "cut": packed[:-9],
        "trailing": packed + b"no packed stream",
        "flipped": bytes(flipped),
        "second": packed + bytes(flipped),
        "empty": b"",
    }[damage]
    with pytest.raises(UserError, match=rf"a' (cannot be read as {kind}; it is damaged or cut off|is empty)"):
        list(read_bytes(Source(file=written(tmp_path / "a", data), compression=kind)))


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return file.getvalue()


def test_a_member_of_a_zip(tmp_path: Path) -> None:
    file = written(tmp_path / "a.zip", zipped({"x/it": TEXT, "../up": b"evil"}))
    assert documents_of(Source(file=file, member="x/it", limit=len(TEXT))) == [TEXT]
    with pytest.raises(UserError, match=r"'x/it' in .*a\.zip' holds more than 10 bytes"):
        documents_of(Source(file=file, member="x/it", limit=10))
    with pytest.raises(UserError, match=r"'none' in .*a\.zip' cannot be read as zip"):
        documents_of(Source(file=file, member="none"))
    damaged = bytearray(file.path.read_bytes())
    damaged[60] ^= 0xFF
    with pytest.raises(UserError, match=r"'x/it' in .*cannot be read as zip; it is damaged"):
        documents_of(Source(file=written(tmp_path / "b.zip", bytes(damaged)), member="x/it"))


def test_members_of_a_tar_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    packed = tarred({"./a": b"a\n" * 9, "other": b"1", "b": b"b\n" * 9})
    file = written(tmp_path / "a.tgz", packed)
    (tmp_path / "out").mkdir()
    sources = [Source(file=file, member=name, limit=100) for name in ("b", "a")]
    found = files.unpack_tar(sources, folder=tmp_path / "out")
    assert [b"".join(read_bytes(source)) for source in found] == [b"b\n" * 9, b"a\n" * 9]
    with pytest.raises(UserError, match=r"a\.tgz' does not hold none, which it should, or is cut off"):
        files.unpack_tar([Source(file=file, member="none")], folder=tmp_path / "out")
    with pytest.raises(UserError, match="holds more than 3 bytes"):
        files.unpack_tar([Source(file=file, member="a", limit=3)], folder=tmp_path / "out")
    for damaged in (packed[:-20], packed[:-6] + b"xx" + packed[-4:]):
        broken = Source(file=written(tmp_path / "b.tgz", damaged), member="a")
        with pytest.raises(UserError, match=r"b\.tgz' cannot be read as tar; it is damaged or cut off"):
            files.unpack_tar([broken], folder=tmp_path / "out")


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16", "utf-16-be", "shift_jis", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path, chunks: int) -> None:
    content = "abc \u00e9\r\n\n" if encoding == "latin-1" else "\u65e5\u672c a\r\n\n"
    file = written(tmp_path / "a", (content * 9).encode(encoding))
    assert documents_of(Source(file=file), encoding=encoding) == [(content * 9).encode()]


def test_a_wrong_byte_is_refused_with_its_place_or_replaced(tmp_path: Path, chunks: int) -> None:
    source = Source(file=written(tmp_path / "a.txt", b"one\ntw\xffo\nthree \xe6\x9d"))
    with pytest.raises(
        UserError, match=r"a\.txt' at byte 6, counted from 0, in line 2, has the byte 0xff, .* not UTF-8"
    ):
        documents_of(source)
    reader = TextReader(documents="none", errors="replace")
    assert b"".join(piece.data for piece in reader.read(source)) == "one\ntw\ufffdo\nthree \ufffd".encode()
    assert reader.replaced == 2
    assert documents_of(source, any_bytes=True) == [b"one\ntw\xffo\nthree \xe6\x9d"]


@pytest.mark.parametrize("any_bytes", [True, False])
def test_a_byte_order_mark_is_left_out(any_bytes: bool, tmp_path: Path, chunks: int) -> None:
    plain = Source(file=written(tmp_path / "a", codecs.BOM_UTF8 + b"ab\xef\xbb\xbf"))
    assert documents_of(plain, any_bytes=any_bytes) == [b"ab\xef\xbb\xbf"]
    lines = Source(file=written(tmp_path / "b", codecs.BOM_UTF8 + b'{"t": "x"}\n'), format="jsonl", field="t")
    assert documents_of(lines) == [b"x"]


def test_json_lines(tmp_path: Path, chunks: int) -> None:
    texts = ["a\nb", "", "\u4e2d\u2028x", "\ud83d\ude00"]
    content = "\n\n".join(json.dumps({"id": 1, "t": one}) for one in texts)
    source = Source(file=written(tmp_path / "a", content.encode()), format="jsonl", field="t")
    assert documents_of(source) == [one.encode("utf-16", "surrogatepass").decode("utf-16").encode() for one in texts]
    assert documents_of(source, documents="file") == [b"a\nb\n\n\xe4\xb8\xad\xe2\x80\xa8x\n\xf0\x9f\x98\x80\n"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2, is no JSON"),
        ('{"t": "a"} {"t": "b"}', "line 2, is no JSON"),
        ("[1]", "line 2, has no key 't' but none"),
        ('{"a": 1, "b": 2}', "line 2, has no key 't' but 'a', 'b'; data.field must name one of them"),
        ('{"t": 5}', "line 2, has 5 under 't', and must have a text there"),
        ('{"t": "\\ud800"}', "line 2, holds what is not UTF-8: .*surrogates not allowed"),
        ("[" * 100_000, "line 2, is no JSON"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, problem: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", f'{{"t": "x"}}\n{line}\n'.encode())
    with pytest.raises(UserError, match=rf"a\.jsonl', {problem}"):
        documents_of(Source(file=file, format="jsonl", field="t"))


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_tables(delimiter: str, tmp_path: Path, chunks: int) -> None:
    texts = ["plain", 'with "quotes", a tab\t', "two\nlines\r\nhere", ""]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([["id", "t"], *([str(n), one] for n, one in enumerate(texts))])
    format = "csv" if delimiter == "," else "tsv"
    source = Source(file=written(tmp_path / "a", file.getvalue().encode()), format=format, field="t")
    assert documents_of(source) == [one.encode() for one in texts]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b\n1,2\n", r"line 1, has no column 't' but 'a', 'b'"),
        ("t,t\n1,2\n", r"line 1, has more than one column 't'"),
        ("t,b\n1,2\n\n1,2,3\n", r"has a record of 3 columns at line 4, and must have 2"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(content: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        documents_of(Source(file=written(tmp_path / "a", content.encode()), format="csv", field="t"))


def columns(path: Path, **named: Any) -> SourceFile:
    parquet.write_table(pyarrow.table(named), path, row_group_size=7)
    return describe(path, name=path.name)


KINDS = [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]


@pytest.mark.parametrize("kind", KINDS)
def test_columns(kind: Any, tmp_path: Path) -> None:
    texts = [f"text {number}\u4e2d" for number in range(20)]
    file = columns(tmp_path / "a", n=range(20), t=pyarrow.array(texts).cast(kind))
    source = Source(file=file, format="parquet", field="t")
    assert documents_of(source) == [one.encode() for one in texts]
    with pytest.raises(UserError, match="holds more than 50 bytes"):
        documents_of(Source(file=source.file, format="parquet", field="t", limit=50))


def test_columns_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = columns(tmp_path / "a", n=[1, 2], t=["x", "y"])
    with pytest.raises(UserError, match=r"has int64 in its column 'n'; data\.field must name a column of text"):
        documents_of(Source(file=file, format="parquet", field="n"))
    with pytest.raises(UserError, match="has no column 'z' but 'n', 't'"):
        documents_of(Source(file=file, format="parquet", field="z"))
    cut = written(tmp_path / "b", file.path.read_bytes()[:-9])
    with pytest.raises(UserError, match="b' cannot be read as Parquet; it is damaged or cut off"):
        documents_of(Source(file=cut, format="parquet", field="t"))
    buffers = pyarrow.array(["ab", "c?"]).buffers()
    wrong = pyarrow.Array.from_buffers(pyarrow.string(), 2, [*buffers[:2], pyarrow.py_buffer(b"abc\xff")])
    source = Source(file=columns(tmp_path / "c", t=wrong), format="parquet", field="t")
    with pytest.raises(UserError, match=r"c', row 2, holds what is not UTF-8: .* byte 0xff in position 1"):
        documents_of(source)
    assert documents_of(source, errors="replace") == [b"ab", "c\ufffd".encode()]
    assert documents_of(source, any_bytes=True) == [b"ab", b"c\xff"]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_nulls_are_refused_with_their_number(format: str, tmp_path: Path) -> None:
    texts = ["a", None, "b", None]
    if format == "jsonl":
        lines = "".join(json.dumps({"t": one}) + "\n" for one in texts)
        file = written(tmp_path / "a", lines.encode())
    else:
        file = columns(tmp_path / "a", t=texts)
    with pytest.raises(UserError, match=r"a' has null under 't' in 2 of its 4 records, first in record 2"):
        documents_of(Source(file=file, format=format, field="t"))


def test_a_record_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LONGEST_RECORD", 100)
    monkeypatch.setattr(files, "CHUNK_BYTES", 30)
    file = written(tmp_path / "a", b'{"t": "x"}\n{"t": "' + b"y" * 200)
    with pytest.raises(UserError, match=r"line 2, is longer than 100 characters"):
        documents_of(Source(file=file, format="jsonl", field="t"))


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
    source = Source(file=written(tmp_path / "a", content))
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
    source = Source(file=written(tmp_path_factory.getbasetemp() / "parts", b"".join(parts)))
    with pytest.MonkeyPatch.context() as patch:
        for rule, marker in (("blank_line", None), ("marker", "--")):
            whole = documents_of(source, documents=rule, marker=marker)
            patch.setattr(files, "CHUNK_BYTES", size)
            assert documents_of(source, documents=rule, marker=marker) == whole
            patch.undo()


def names(path: Path | str) -> list[str]:
    return [file.name for file in list_files(str(path), setting="data.path is x", wanted="a text file")[1]]


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
    _, found, notes = list_files(str(folder), setting="data.path is x", wanted="a text file")
    listed = [file.name for file in found]
    assert [name for name in listed if not name.endswith("d.txt")] == ["a.txt", "b/c.txt", "link"]
    assert len(listed) == 4, "what several links lead to is read once"
    assert notes == ["links that lead nowhere: 'dangling'"]
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


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("absent.txt", "No such file"),
        ("absent/*", "No such file"),
        ("empty.txt", "is empty"),
        ("nothing", "without files"),
        ("nothing/*", "matches no file"),
        ("loop", "loop|levels of symbolic"),
        ("/dev/null", "not a regular file"),
        ("nul\x00byte", "null"),
    ],
)
def test_a_path_that_holds_no_text_is_named(
    path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=rf"^data\.path is x.*({reason}).*a text file"):
        names(path)


def test_odd_names_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a=b,c.txt", "[x]{y}.txt", "what?*.txt", "\u4e2d\u6587 ' \".txt", os.fsdecode(b"\xff.txt")):
        fill(tmp_path, name)
        assert names(tmp_path / name) == names(f"~/{name}") == [name]


@pytest.mark.parametrize(
    ("name", "asked", "format", "compression"),
    [
        ("a.txt", "auto", "text", None),
        ("README", "auto", "text", None),
        ("A.NDJSON", "auto", "jsonl", None),
        ("a.tsv.gz", "auto", "tsv", "gzip"),
        ("a.b.csv.xz", "auto", "csv", "xz"),
        ("a.jsonl.zst", "auto", "jsonl", "zstd"),
        ("a.txt.bz2", "auto", "text", "bz2"),
        ("a.parquet", "auto", "parquet", None),
        ("a.parquet", "text", "text", None),
        ("a.tsv", "csv", "tsv", None),
        ("part-0", "parquet", "parquet", None),
    ],
)
def test_a_files_name_says_how_it_is_written(name: str, asked: str, format: str, compression: str | None) -> None:
    source = source_of(SourceFile(Path(name), name, 1, 1), format=asked, field="t", setting="data.path is x")
    assert (source.format, source.compression) == (format, compression)
    assert source.field == (None if format == "text" else "t")


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.TGZ", "a.7z", "a.parquet.gz"])
def test_what_is_packed_otherwise_is_refused(name: str) -> None:
    with pytest.raises(
        UserError, match=rf"data\.path is x, where '{name}' is (an archive: unpack it|packed with gzip)"
    ):
        source_of(SourceFile(Path(name), name, 1, 1), format="auto", field="t", setting="data.path is x")
