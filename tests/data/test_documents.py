"""Documents in a flat file: windows of them, splits, ids of other programs, work over several processes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data import documents as flat
from transformer_xl.data import files, token_ids
from transformer_xl.data.characters import ByteTokenizer
from transformer_xl.data.documents import Encoder, Flat, split_documents, windows
from transformer_xl.data.files import Cut, describe
from transformer_xl.data.token_ids import read_ids
from transformer_xl.data.tokenizer import Part, after_blank
from transformer_xl.errors import UserError

FRACTION = Cut("fraction", valid=0.1, test=0.2)
numbers = itertools.count()


def of(folder: Path, *documents: bytes) -> Flat:
    found = Flat(folder / f"flat-{next(numbers)}", None)
    found.write(map(Part, documents), place="'a.txt'")
    return found


def parts(whole: Flat, cut: Cut, folder: Path, *, are_documents: bool = False, limit: int | None = None) -> list[bytes]:
    found, ranges = split_documents(whole, cut, are_documents=are_documents, limit=limit, folder=folder)
    return [found.read(part.start, part.stop).tobytes() for part in ranges]


@given(documents=st.lists(st.binary(max_size=9), min_size=1, max_size=9), size=st.integers(1, 12), data=st.data())
@settings(deadline=None)
def test_windows_are_the_documents(
    documents: list[bytes], size: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = of(tmp_path_factory.getbasetemp(), *documents)
    begin = data.draw(st.integers(0, whole.size))
    end = data.draw(st.integers(begin, whole.size))
    borders = np.cumsum([0, *map(len, documents)]).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "WINDOW", size)
        found = list(windows(whole, range(begin, end), len))
    contents = [[part.data for part in one] for one in found]
    assert b"".join(itertools.chain.from_iterable(contents)) == b"".join(documents)[begin:end]
    for one, texts in zip(found, contents, strict=True):
        edges = np.cumsum([one[0].place, *map(len, texts)]).tolist()
        assert (one[0].begins, one[-1].ends) == (edges[0] in borders, edges[-1] in borders)
        assert all(part.ends for part in one[:-1])
        assert all(part.begins for part in one[1:])
        assert set(edges[1:-1]) <= set(borders)
        assert not set(borders) & set(range(edges[0] + 1, edges[-1])) - set(edges)


def test_a_long_document_is_cut_where_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "WINDOW", 8)
    monkeypatch.setattr(flat, "_LONGEST", 16)
    whole = of(tmp_path, b"one two three " + "\u6771".encode() * 20 + b" four")
    contents = [one[0].data for one in windows(whole, range(whole.size), after_blank)]
    assert contents[:3] == [b"one two ", b"three ", "\u6771".encode() * 5]


def test_a_share_is_cut_after_line_ends_and_characters(tmp_path: Path) -> None:
    assert list(map(len, parts(of(tmp_path, b"0123456\n" * 100), FRACTION, tmp_path))) == [560, 80, 160]
    train, valid, test = parts(of(tmp_path, b"aaaaaaa\r\nbb"), Cut("fraction", 0.0, 0.25), tmp_path)
    assert (train, valid, test) == (b"aaaaaaa\r\n", b"", b"bb")
    one_line = parts(of(tmp_path, ("\U0001f600" * 100).encode()), Cut("fraction", 0.13, 0.13), tmp_path)
    assert all(len(part) > 40 and len(part) % 4 == 0 for part in one_line)
    exact = parts(of(tmp_path, b"0123456789" * 20), Cut("bytes", 0.05, 0.05), tmp_path)
    assert list(map(len, exact)) == [180, 10, 10]


def test_a_share_is_cut_between_documents_that_are_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [b"a\n" * 30, b"b\n" * 30, b"c\n" * 30, b"d\n" * 10]
    cut = Cut("fraction", 0.0, 0.3)
    assert parts(of(tmp_path, *documents), cut, tmp_path, are_documents=True)[0] == b"".join(documents[:3])
    assert len(parts(of(tmp_path, *documents), cut, tmp_path)[0]) == 140
    monkeypatch.setattr(flat, "SEARCHED", 10)
    assert len(parts(of(tmp_path, *documents), cut, tmp_path, are_documents=True)[0]) == 140
    line = of(tmp_path, b"x" * 500 + b"\n" + b"y" * 499)
    for searched, expected in ((101, 501), (100, 400)):
        monkeypatch.setattr(flat, "SEARCHED", searched)
        assert len(parts(line, Cut("fraction", 0.0, 0.6), tmp_path)[0]) == expected


@given(
    texts=st.lists(st.text(alphabet="ab\u00e9\u4e2d\U0001f600\r\n", max_size=40), min_size=1, max_size=4),
    valid=st.sampled_from([0.0, 0.1, 0.3]),
    test=st.sampled_from([0.0, 0.1, 0.4]),
    are_documents=st.booleans(),
    limit=st.sampled_from([None, 3, 20]),
)
@settings(deadline=None, max_examples=200)
def test_a_cut_loses_nothing_breaks_no_character_and_keeps_the_limit(
    texts: list[str],
    valid: float,
    test: float,
    are_documents: bool,
    limit: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = of(folder, *(text.encode() for text in texts))
    found = parts(whole, Cut("fraction", valid, test), folder, are_documents=are_documents, limit=limit)
    assert b"".join(found) == "".join(texts).encode()
    for part, share in zip(found[1:], (valid, test), strict=True):
        part.decode()
        assert share or not part
        assert limit is None or len(part) <= limit


def test_a_document_stays_in_its_split_when_others_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut("hash", valid=0.25, test=0.25)
    some = [f"document {number}\n".encode() for number in range(200)]
    more = [f"another {number}\n".encode() for number in range(200)]
    before = parts(of(tmp_path, *some), cut, tmp_path / "1")
    monkeypatch.setattr(flat, "WINDOW", 7)
    after = parts(of(tmp_path, *more[:100], *some, *more[100:]), cut, tmp_path / "2")
    for one, other in zip(before, after, strict=True):
        assert set(one.splitlines()) <= set(other.splitlines())
        assert len(one.splitlines()) > 20
    assert sum(len(part.splitlines()) for part in after) == 400


def flattened(rows: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(rows))


FORMS: dict[str, Callable[[Path, list[list[int]]], object]] = {
    ".npy": lambda path, rows: np.save(path, np.array(flattened(rows), ">i4")),
    ".bin": lambda path, rows: np.array(flattened(rows), "<u2").tofile(path),
    ".jsonl": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    ".txt": lambda path, rows: path.write_text("\ufeff" + "\n".join(map(str, flattened(rows))), encoding="utf-8"),
}


def ids_of(path: Path, **options: Any) -> list[list[int]]:
    source = describe(path, name=path.name)._replace(format=path.suffix)
    found: list[list[int]] = []
    for ids, _, begins, _ in read_ids(
        source, **{"dtype": "uint16", "vocab_size": 300, "documents": "record", **options}
    ):
        if begins:
            found.append([])
        found[-1] += ids.tolist()
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at_once", [3, 1 << 20])
def test_ids_of_other_programs(form: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_ids, "_IDS_AT_ONCE", at_once)
    monkeypatch.setattr(files, "CHUNK_BYTES", at_once)
    rows = [[1, 2, 299], [], [4], [5, 6, 7, 0, 255]]
    FORMS[form](path := tmp_path / f"a{form}", rows)
    flat_rows = [flattened(rows)]
    assert ids_of(path) == ([row for row in rows if row] if form == ".jsonl" else flat_rows)
    assert ids_of(path, documents="file") == flat_rows
    with pytest.raises(UserError, match=rf"a\{form}' holds id 299 as token 2, counted from 0, .* below 299"):
        ids_of(path, vocab_size=299)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", b"\x80\x04cos\nsystem\n.", "cannot be read after token 0"),
        ("a.txt", b"1 2 x3 4", "cannot be read after token 0: .*'x3'"),
        ("a.txt", b"1 -2 3", "holds id -2 as token 1"),
        ("a.jsonl", b"[1]\n[1.5]\n", "after token 1: it must hold integers in one dimension"),
        ("a.jsonl", b"[1]\n[1, \n", "cannot be read after token 1: "),
        ("a.jsonl", b'[1]\n"x"\n', "after token 1: it must hold integers in one dimension"),
    ],
)
def test_what_is_no_id_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}'.*{said}"):
        ids_of(tmp_path / name)


def test_arrays_that_hold_no_ids_are_named(tmp_path: Path) -> None:
    for array in (np.zeros((2, 2), int), np.zeros(3), np.array([{}], object)):
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        with pytest.raises(UserError, match=r"a\.npy' cannot be read after token 0"):
            ids_of(tmp_path / "a.npy")


def test_work_over_several_processes_is_the_work_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [f"{number} ".encode() * (number % 50) for number in range(900)]
    whole = of(tmp_path, *documents, "\u6771".encode() * 5000)
    encoder = Encoder(flat=whole, tokenizer=ByteTokenizer(end_of_document=True), strips=False, end=256)
    monkeypatch.setattr(flat, "WINDOW", 1 << 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    results = []
    for worth in (1e9, 0.0):
        monkeypatch.setattr(flat, "_WORTH_PROCESSES_S", worth)
        folder = tmp_path / str(worth)
        folder.mkdir()
        written = encoder.write(range(whole.size), split="train", folder=folder, limit=None, announce=pytest.fail)
        results.append((written, [(folder / name).read_bytes() for name in ("train.bin", "train.documents.bin")]))
    assert results[0] == results[1]
    assert results[0][0]["documents"] == len([one for one in documents if one]) + 1


PROGRAM = """
import sys, time
from pathlib import Path
from transformer_xl.data import documents as flat
from transformer_xl.data.characters import ByteTokenizer
from transformer_xl.data.tokenizer import Part

class Slow(ByteTokenizer):
    def encode_part(self, part):
        time.sleep(0.0 if part.data == b"a" else 60)
        return super().encode_part(part)

flat.WINDOW, flat._WORTH_PROCESSES_S = 1, 0.0
flat.os.sched_getaffinity = lambda process: {0, 1}
documents = flat.Flat(Path(sys.argv[1]) / "flat", None)
documents.write([Part(b"a" + b"x" * 90)], place="x")
encoder = flat.Encoder(flat=documents, tokenizer=Slow(), strips=False, end=None)
print("begun", flush=True)
encoder.write(range(91), split="train", folder=Path(sys.argv[1]), limit=None, announce=print)
"""


def test_a_program_without_a_guard_works_and_takes_its_processes_along(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", tmp_path]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    waited = time.monotonic() + 60
    while len(workers := _children(program.pid)) < 2 and time.monotonic() < waited:
        time.sleep(0.1)
    program.kill()
    program.wait()
    while any(map(_lives, workers)) and time.monotonic() < waited:
        time.sleep(0.1)
    assert len(workers) == 2
    assert not any(map(_lives, workers))


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _lives(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
