"""Text of any encoding, and bytes that it forbids."""

import codecs
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.building.written import ODD_TEXTS, Content, extracted, write, zstd
from transformer_xl.data.building import decoding, unpacking
from transformer_xl.data.building.decoding import Tally, check_encoding, decode, lines_of, without_marked_lines
from transformer_xl.errors import UserError

Chunked = Callable[[int], None]
NOVEL = (
    "\u7b2c\u4e00\u56de\u3000\u8bdd\u8bf4\u5929\u4e0b\u5927\u52bf\uff0c\u5206\u4e45\u5fc5\u5408\u3002\r\n\U00020000\u20ac\u3400\n"
    * 40
)


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> Chunked:
    return lambda size: monkeypatch.setattr(unpacking, "CHUNK_BYTES", size)


def parts(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def decoded(data: bytes, size: int, encoding: str, errors: decoding.Errors) -> tuple[str, Tally]:
    tally = Tally()
    texts = decode(parts(data, size), encoding=encoding, errors=errors, place="it", remedy="", tally=tally)
    if errors == "skip_line":
        texts = without_marked_lines(texts, tally=tally)
    return "".join(texts), tally


@pytest.mark.parametrize("size", [1, 2, 3, 5, 4096])
@pytest.mark.parametrize("encoding", ["gb18030", "GB18030-2000"])
def test_a_novel_in_gb18030(encoding: str, size: int, tmp_path: Path, chunked: Chunked) -> None:
    chunked(size)
    path = write(tmp_path / "novel.txt", NOVEL.encode("gb18030"))
    assert extracted(path, encoding=encoding) == Content(NOVEL.encode(), None, 0, 0)


@pytest.mark.parametrize("errors", ["strict", "replace", "skip_line"])
@pytest.mark.parametrize("size", [1, 3, 4096])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-32", "utf-32-le", "gb18030", "utf-8-sig"])
def test_every_character_survives(encoding: str, size: int, errors: str, tmp_path: Path, chunked: Chunked) -> None:
    chunked(size)
    text = "".join(ODD_TEXTS)
    path = write(tmp_path / "a.zst", zstd(text.encode(encoding)))
    assert extracted(path, of={"compression": "zstd"}, encoding=encoding, errors=errors).data == text.encode()


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "caf\u00e9\x80\n"),
        ("cp1252", "\u201ccaf\u00e9\u201d\n"),
        ("shift_jis", "\u65e5\u672c\u8a9e\uff76\n"),
        ("iso2022_jp", "a\u65e5\u672c\nb\u8a9e\n"),
        ("big5", "\u4e2d\u6587\n"),
        ("euc_kr", "\ud55c\uad6d\uc5b4\n"),
        ("koi8-r", "\u0440\u0443\u0441\u0441\u043a\u0438\u0439\n"),
        ("hz", "a\u4e2d\u6587b\n"),
    ],
)
def test_older_encodings(encoding: str, text: str, tmp_path: Path, chunked: Chunked) -> None:
    chunked(1)
    assert extracted(write(tmp_path / "a", text.encode(encoding)), encoding=encoding).data == text.encode()


@pytest.mark.parametrize("size", [1, 3, 4096])
@pytest.mark.parametrize("width", [16, 32])
def test_a_byte_order_mark_says_the_order_and_little_endian_is_assumed(width: int, size: int) -> None:
    mark = {"le": getattr(codecs, f"BOM_UTF{width}_LE"), "be": getattr(codecs, f"BOM_UTF{width}_BE")}
    for order in ("le", "be"):
        data = mark[order] + "a\u4e2d\U0001f600\n".encode(f"utf-{width}-{order}")
        assert decoded(data, size, f"utf-{width}", "strict")[0] == "a\u4e2d\U0001f600\n"
    data = "a\u4e2d\U0001f600\n".encode(f"utf-{width}-le")
    assert decoded(data, size, f"utf-{width}", "strict")[0] == "a\u4e2d\U0001f600\n"
    assert decoded(b"", size, f"utf-{width}", "strict")[0] == ""


BAD = [  # encoding, what stands before, bad bytes, what stands behind, the byte's number in the bad ones, replacements
    ("utf-8", "ab\r\nc\rd\u00e9", b"\xff", "x\nnext\n", 0, 1),
    ("utf-8", "ab\n\nc\U0001f600", b"\xe4\xb8", "x\r\nnext", 0, 1),
    ("utf-8", "ab\r\n\r\nc", b"\xed\xa0\x80", "x\rnext", 0, 3),
    ("utf-8", "a\nb\nc", b"\xf0\x9f\x98", "", 0, 1),
    ("utf-8-sig", "a\nb\nc", b"\xff", "\nnext", 0, 1),
    ("gb18030", "a\n\u4e2d\n\u6587", b"\x81", "\nnext", 0, 1),
    ("gb18030", "a\n\u4e2d\n\u6587", b"\x81\x30\x81", "", 0, 1),
    ("utf-16-le", "a\nb\nc", b"\x00\xdc", "x\nnext", 0, 1),
    ("utf-16", "a\nb\nc", b"\x00\xd8", "", 0, 1),
    ("utf-16-be", "a\r\nb\r\nc", b"\x0a", "", 0, 1),
    ("shift_jis", "a\nb\nc", b"\xff", "x\nnext", 0, 1),
    ("cp1252", "a\nb\nc", b"\x81", "x\nnext", 0, 1),
    ("ascii", "a\nb\nc", b"\xc3\xa9", "\nnext", 0, 2),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096])
@pytest.mark.parametrize(("encoding", "before", "bad", "behind", "place", "replaced"), BAD)
def test_a_bad_byte_in_each_mode(
    encoding: str,
    before: str,
    bad: bytes,
    behind: str,
    place: int,
    replaced: int,
    size: int,
    tmp_path: Path,
    chunked: Chunked,
) -> None:
    chunked(size)
    tail = behind.encode("utf-16-le" if encoding == "utf-16" else "utf-8" if encoding == "utf-8-sig" else encoding)
    path = write(tmp_path / "bad.txt", before.encode(encoding) + bad + tail)
    # Compressed, since plain UTF-8 is not read here with errors=strict.
    packed = write(tmp_path / "bad.txt.zst", zstd(path.read_bytes()))
    offset = len(before.encode(encoding)) + place
    for file, compression in ((packed, "zstd"), *([(path, None)] if encoding != "utf-8" else [])):
        with pytest.raises(UserError) as refused:
            extracted(file, of={"compression": compression}, encoding=encoding)
        message = str(refused.value)
        assert repr(str(file)) in message
        assert f"the byte 0x{bad[place]:02x} at offset {offset:,} (counted from 0), on line 3," in message
        assert "data.errors be replace or skip_line" in message
        assert "data.tokenizer be byte" in message
    mended = before + "\ufffd" * replaced + behind
    assert extracted(path, encoding=encoding, errors="replace") == Content(mended.encode(), None, replaced, 0)
    left = "".join(before.splitlines(keepends=True)[:2]) + ("next" + behind.partition("next")[2] if behind else "")
    assert extracted(path, encoding=encoding, errors="skip_line") == Content(left.encode(), None, 0, 1)


def test_replacements_that_the_text_had_already_are_not_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "\ufffd\ufffd".encode() + b"\xff\xff" + "\ufffd".encode())
    assert extracted(path, errors="replace") == Content("\ufffd".encode() * 5, None, 2, 0)


def test_stateful_encodings_are_refused_where_they_lose_the_thread(tmp_path: Path, chunked: Chunked) -> None:
    chunked(1)
    path = write(tmp_path / "a", b"a\x1b$((((((((((((((((\n")
    with pytest.raises(UserError, match=r"a'.*iso2022_jp.*data\.encoding must name"):
        extracted(path, encoding="iso2022_jp")


@given(data=st.binary(max_size=40), size=st.integers(1, 9), encoding=st.sampled_from(["utf-8", "utf-16-le", "gb18030"]))
def test_chunks_change_nothing(data: bytes, size: int, encoding: str) -> None:
    text, tally = decoded(data, size, encoding, "replace")
    assert text == data.decode(encoding, "replace")
    assert tally.replaced == text.count("\ufffd") - data.decode(encoding, "ignore").count("\ufffd")
    try:
        expected = data.decode(encoding)
    except UnicodeDecodeError as error:
        with pytest.raises(UserError, match=rf"offset {error.start:,} \(counted"):
            decoded(data, size, encoding, "strict")
    else:
        assert decoded(data, size, encoding, "strict") == (expected, Tally())
        assert decoded(data, size, encoding, "skip_line") == (expected, Tally())


@given(text=st.text("a\r\n\x0b\u2028\U0001f600", max_size=30), size=st.integers(1, 5))
def test_lines_end_at_line_feeds_and_carriage_returns_alone(text: str, size: int) -> None:
    lines = list(lines_of([text[start : start + size] for start in range(0, len(text), size)]))
    assert lines == re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


def test_of_an_endless_line_a_piece_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LONGEST_LINE", 10)
    data = b"a\n" + b"b" * 24 + b"\xff" + b"c" * 24 + b"\nd\n"
    text, tally = decoded(data, 5, "utf-8", "skip_line")
    assert tally.skipped == 1
    assert text.startswith("a\nbbbb")
    assert text.endswith("cccc\nd\n")
    assert len(data) - 16 <= len(text) < len(data)


@pytest.mark.parametrize(
    "name", ["utf-8", "UTF8", "u8", "gb18030", "utf-16", "latin-1", "cp1252", "shift_jis", "ascii"]
)
def test_names_of_encodings(name: str) -> None:
    assert check_encoding(name) is None


@pytest.mark.parametrize(
    "name",
    ["nosuch", "base64", "rot13", "zip", "hex", "bz2", "idna", "punycode", "undefined", "unicode_escape", "utf-7"],
)
def test_names_that_are_no_encodings_of_files(name: str) -> None:
    problem = check_encoding(name)
    assert problem is not None
    assert f"data.encoding is {name!r}, and must be" in problem
