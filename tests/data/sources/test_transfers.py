"""Lines about a download, and the record of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from transformer_xl.data.sources.transfers import Downloaded, Progress, readable_size, record


def lines_at(moments: Iterable[tuple[float, int]], *, total: int | None) -> list[str]:
    now = 0.0
    lines: list[str] = []
    progress = Progress("a.zip", total=total, announce=lines.append, clock=lambda: now)
    for now, done in moments:  # noqa: B007 - the clock reads it
        progress.update(done)
    return lines


def test_a_line_after_a_tenth_but_not_within_ten_seconds() -> None:
    assert lines_at(((second, second * 10**6) for second in range(9)), total=10**7) == []
    slow = lines_at(((second, second * 10**6) for second in range(0, 201)), total=200 * 10**6)
    assert slow == [f"data: a.zip: {done}.0 MB of 200.0 MB" for done in range(20, 201, 20)]
    assert len(lines_at(((second, second * 10**6) for second in range(31)), total=10**7)) == 3


def test_a_line_a_minute_where_it_is_slow_or_its_size_not_known() -> None:
    assert len(lines_at(((second, second) for second in range(181)), total=10**9)) == 3
    assert lines_at([(60, 1500)], total=None) == ["data: a.zip: 1.5 kB"]


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 bytes"), (1_000, "1.0 kB"), (31_344_016, "31.3 MB"), (1_792_209_805, "1.8 GB")]
)
def test_sizes_as_people_read_them(size: int, text: str) -> None:
    assert readable_size(size) == text


def test_the_record_keeps_what_it_says_of_other_files(tmp_path: Path) -> None:
    record(tmp_path, [Downloaded("a", "http://a", 1, "00")])
    record(tmp_path, [Downloaded("b", "http://b", 2, "11")])
    written = json.loads((tmp_path / "downloads.json").read_text())
    assert written == {
        "a": {"url": "http://a", "size": 1, "sha256": "00"},
        "b": {"url": "http://b", "size": 2, "sha256": "11"},
    }
    (tmp_path / "downloads.json").write_text("[")
    record(tmp_path, [Downloaded("c", "http://c", 3, "22")])
    assert list(json.loads((tmp_path / "downloads.json").read_text())) == ["c"]
