"""Cutting one text into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data.building import splitting
from transformer_xl.data.building.splitting import between, into_jobs, split_text
from transformer_xl.data.building.text import Stretch
from transformer_xl.data.sources.files import Cut

Parts = dict[str, list[Stretch]]


def file_of(path: Path, *documents: bytes, begins: bool = True) -> Stretch:
    """Write documents one behind the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(documents))
    edges = np.cumsum([0, *map(len, documents)])
    return Stretch(path=path, rows=np.stack([edges[:-1], edges[1:]], axis=1), source=path, begins=begins)


def content(stretches: Sequence[Stretch]) -> bytes:
    return b"".join(
        stretch.path.read_bytes()[start:stop] for stretch in stretches for start, stop in stretch.rows.tolist()
    )


def fraction(
    stretches: Sequence[Stretch], valid: float, test: float, *, are_documents: bool = False, limit: int | None = None
) -> Parts:
    cut = Cut(by="fraction", valid=valid, test=test)
    return split_text(stretches, cut, are_documents=are_documents, max_eval_bytes=limit)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_one_file_is_cut_after_line_ends(tmp_path: Path) -> None:
    parts = fraction([file_of(tmp_path / "a", b"0123456\n" * 100)], 0.1, 0.2)
    assert [len(content(parts[split])) for split in ("train", "valid", "test")] == [560, 80, 160]


@given(
    texts=st.lists(st.text(alphabet="ab\u00e9\u4e2d\U0001f600\r\n", max_size=40), min_size=1, max_size=4),
    valid=st.sampled_from([0.0, 0.1, 0.3]),
    test=st.sampled_from([0.0, 0.1, 0.4]),
    are_documents=st.booleans(),
    limit=st.sampled_from([None, 3, 20]),
)
@settings(deadline=None, max_examples=200)
def test_a_cut_loses_nothing_and_breaks_no_character(
    texts: list[str],
    valid: float,
    test: float,
    are_documents: bool,
    limit: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    stretches = [file_of(folder / str(number), text.encode()) for number, text in enumerate(texts)]
    parts = fraction(stretches, valid, test, are_documents=are_documents, limit=limit)
    assert b"".join(content(parts[split]) for split in ("train", "valid", "test")) == "".join(texts).encode()
    for split, share in (("valid", valid), ("test", test)):
        assert is_utf8(content(parts[split]))
        assert share > 0 or parts[split] == []


def test_a_cut_keeps_a_carriage_return_with_its_newline(tmp_path: Path) -> None:
    # Byte 8, where the test part would begin, is the \n of the last \r\n.
    parts = fraction([file_of(tmp_path / "a", b"aaaaaaa\r\nbb")], 0.0, 0.25)
    assert (content(parts["train"]), parts["valid"], content(parts["test"])) == (b"aaaaaaa\r\n", [], b"bb")


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_text_of_one_line_is_cut_between_characters(ending: bytes, tmp_path: Path) -> None:
    parts = fraction([file_of(tmp_path / "a", ("\U0001f600" * 100).encode() + ending)], 0.13, 0.13)
    for split in ("train", "valid", "test"):
        part = content(parts[split])
        assert len(part) > 40
        assert len(part.rstrip(b"\n")) % 4 == 0


def test_the_search_for_a_line_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stretch = file_of(tmp_path / "a", b"x" * 500 + b"\n" + b"y" * 499)
    for searched, expected in ((101, 501), (100, 400)):
        monkeypatch.setattr(splitting, "_SEARCHED_BYTES", searched)
        monkeypatch.setattr(splitting, "_BLOCK_BYTES", 7)
        assert len(content(fraction([stretch], 0.0, 0.6)["train"])) == expected


def test_a_cut_moves_to_the_next_document_where_there_are_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [b"a\n" * 30, b"b\n" * 30, b"c\n" * 30, b"d\n" * 10]
    stretch = file_of(tmp_path / "a", *documents)
    parts = fraction([stretch], 0.0, 0.3, are_documents=True)
    assert content(parts["train"]) == b"".join(documents[:3])
    assert content(fraction([stretch], 0.0, 0.3)["train"]) == b"".join(documents)[:140]
    monkeypatch.setattr(splitting, "_SEARCHED_BYTES", 10)
    parts = fraction([stretch], 0.0, 0.3, are_documents=True)
    assert len(content(parts["train"])) == 140
    assert (parts["train"][-1].ends, parts["test"][0].begins) == (False, False)
    assert [row for part in parts["test"] for row in part.rows.tolist()] == [[140, 180], [180, 200]]


def test_what_validation_and_test_do_not_need_is_trained(tmp_path: Path) -> None:
    parts = fraction([file_of(tmp_path / "a", b"0123456\n" * 100)], 0.2, 0.2, limit=80)
    assert [len(content(parts[split])) for split in ("train", "valid", "test")] == [640, 80, 80]


def test_exact_shares_of_bytes_cut_anywhere(tmp_path: Path) -> None:
    stretch = file_of(tmp_path / "a", b"0123456789" * 20)
    parts = split_text([stretch], Cut(by="bytes", valid=0.05, test=0.05), are_documents=False, max_eval_bytes=None)
    assert [len(content(parts[split])) for split in ("train", "valid", "test")] == [180, 10, 10]


def test_a_document_stays_in_its_split_when_others_come(tmp_path: Path) -> None:
    cut = Cut(by="hash", valid=0.25, test=0.25)

    def documents(parts: Parts, split: str) -> list[bytes]:
        return [
            stretch.path.read_bytes()[start:stop] for stretch in parts[split] for start, stop in stretch.rows.tolist()
        ]

    some = [f"document {number}\n".encode() for number in range(200)]
    more = [f"another {number}\n".encode() for number in range(200)]
    before = split_text([file_of(tmp_path / "a", *some)], cut, are_documents=True, max_eval_bytes=None)
    together = [file_of(tmp_path / "b", *more[:100]), file_of(tmp_path / "c", *some, *more[100:])]
    after = split_text(together, cut, are_documents=True, max_eval_bytes=None)
    for split in ("train", "valid", "test"):
        assert set(documents(before, split)) <= set(documents(after, split))
        assert len(documents(before, split)) > 20
    assert sum(len(documents(after, split)) for split in after) == 400


def test_a_long_document_has_one_hash_however_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut(by="hash", valid=0.3, test=0.3)
    stretch = file_of(tmp_path / "a", *(bytes([65 + number]) * 50 for number in range(20)))
    whole = split_text([stretch], cut, are_documents=True, max_eval_bytes=None)
    monkeypatch.setattr("transformer_xl.data.building.text.CHUNK_BYTES", 7)
    in_parts = split_text([stretch], cut, are_documents=True, max_eval_bytes=None)
    assert {split: content(parts) for split, parts in whole.items()} == {
        split: content(parts) for split, parts in in_parts.items()
    }


def test_jobs_are_the_text_cut_after_lines_or_between_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "_SEARCHED_BYTES", 14)
    stretches = [
        file_of(tmp_path / "a", b"0123\n" * 41),
        file_of(tmp_path / "b", b"x\n"),
        file_of(tmp_path / "c", *[b"y" * 13] * 9),
    ]
    jobs = into_jobs(stretches, job_bytes=40)
    assert b"".join(map(content, jobs)) == content(stretches)
    assert len(jobs) > 5
    assert all(len(content(job)) < 100 for job in jobs)
    edges = [(job[-1], after[0]) for job, after in pairwise(jobs)]
    assert all(content([last]).endswith((b"\n", b"y")) for last, _ in edges)
    assert all(last.ends == first.begins for last, first in edges)
    assert into_jobs([], job_bytes=40) == [[]]


def test_rows_that_lie_in_a_file_are_not_copied(tmp_path: Path) -> None:
    stretch = file_of(tmp_path / "a", *[b"xy"] * 1000)
    stretch.rows.astype("<i8").tofile(tmp_path / "rows")
    mapped = stretch._replace(rows=np.memmap(tmp_path / "rows", "<i8", mode="r").reshape(-1, 2))
    parts = fraction([mapped], 0.1, 0.1, are_documents=True)
    jobs = into_jobs([mapped], job_bytes=300)
    for part in [*parts["train"], *parts["valid"], *parts["test"], *(part for job in jobs for part in job)]:
        assert np.shares_memory(part.rows, mapped.rows)


@given(data=st.data())
@settings(deadline=None)
def test_any_part_is_the_text_between(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    stretches = [
        file_of(folder / f"part-{number}", *data.draw(st.lists(st.binary(min_size=1, max_size=5), min_size=1)))
        for number in range(data.draw(st.integers(1, 3)))
    ]
    whole = content(stretches)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    parts = between(stretches, start, stop)
    assert content(parts) == whole[start:stop]
    borders = np.cumsum([0, *(stop - start for part in stretches for start, stop in part.rows.tolist())])
    if parts:
        assert (parts[0].begins, parts[-1].ends) == (start in borders, stop in borders)
