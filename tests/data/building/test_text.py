"""Reading documents in chunks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data.building import text
from transformer_xl.data.building.text import Chunk, Stretch, anywhere
from transformer_xl.data.tokenizer import after_blank, character_border
from transformer_xl.errors import UserError


def stretch_of(path: Path, content: bytes, rows: list[tuple[int, int]], **flags: bool) -> Stretch:
    path.write_bytes(content)
    return Stretch(path=path, rows=np.array(rows, np.int64).reshape(-1, 2), source=path, **flags)


def documents_of(chunks: list[Chunk]) -> list[bytes]:
    """Put the parts of each document together again."""
    found: list[bytes] = []
    for chunk in chunks:
        parts = chunk.parts()
        if chunk.continues:
            found[-1] += parts.pop(0)
        found += parts
    return found


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_documents_come_whole_whatever_the_chunks(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = data.draw(st.binary(min_size=1, max_size=60))
    edges = sorted(data.draw(st.sets(st.integers(0, len(content)), min_size=2)))
    rows = [row for row in pairwise(edges) if data.draw(st.booleans())]
    path = tmp_path_factory.getbasetemp() / "documents"
    stretch = stretch_of(path, content, rows)
    chunk_bytes = data.draw(st.integers(1, 20))
    chunks = list(text.read_chunks(stretch, find_cut=anywhere, chunk_bytes=chunk_bytes))
    assert documents_of(chunks) == [content[start:stop] for start, stop in rows]
    assert all(len(chunk.data) <= chunk_bytes for chunk in chunks)
    assert sum(chunk.ends for chunk in chunks) <= len(rows)
    for chunk in chunks:
        for number, part in enumerate(chunk.parts()):
            place = chunk.place(number, 0)
            assert content[place : place + len(part)] == part


def test_a_document_that_is_cut_begins_and_ends_once(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "a", b"aaaa bbbb cccc dd", [(0, 14), (14, 17)])
    chunks = list(text.read_chunks(stretch, find_cut=after_blank, chunk_bytes=6))
    assert [chunk.data for chunk in chunks] == [b"aaaa ", b"bbbb ", b"cccc", b" dd"]
    assert [chunk.starts.tolist() for chunk in chunks] == [[0], [], [], [0]]
    assert [chunk.ends for chunk in chunks] == [False, False, True, True]


def test_a_stretch_may_begin_and_end_inside_documents(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "a", b"aabbcc", [(0, 2), (2, 4), (4, 6)], begins=False, ends=False)
    (chunk,) = text.read_chunks(stretch, find_cut=anywhere)
    assert (chunk.starts.tolist(), chunk.ends, chunk.continues) == ([2, 4], False, True)
    assert chunk.parts() == [b"aa", b"bb", b"cc"]


def test_a_chunk_without_a_place_to_cut_grows_and_is_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "LONGEST_CHUNK_BYTES", 7)
    stretch = stretch_of(tmp_path / "a", "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9".encode(), [(0, 12)])
    chunks = list(text.read_chunks(stretch, find_cut=lambda data: data.rfind(b"\n") + 1, chunk_bytes=5))
    assert "".join(chunk.data.decode() for chunk in chunks) == "\u00e9" * 6
    assert len(chunks) > 1


@pytest.mark.parametrize(
    ("data", "cut"),
    [
        (b"ab", 2),
        ("a\u00e9".encode(), 3),
        ("a\u00e9".encode()[:2], 1),
        ("a\u20ac".encode()[:3], 1),
        *(("x\U0001f600".encode()[:stop], 1) for stop in (2, 3, 4)),
        ("x\U0001f600".encode(), 5),
        (b"\x80\x80\x80\x80\x80", 5),  # no UTF-8 anyway
        (b"", 0),
    ],
)
def test_no_character_is_cut(data: bytes, cut: int) -> None:
    assert character_border(data) == cut


def test_a_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    stretch = stretch_of(tmp_path / "a", b"abc", [(0, 9)])
    with pytest.raises(UserError, match="became shorter"):
        list(text.read_chunks(stretch, find_cut=anywhere))
