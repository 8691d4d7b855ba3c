"""Words counted in bounded memory, against a `Counter` of all of them."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_xl.data.building import word_counts
from transformer_xl.data.building.word_counts import WordCounts

WORDS = st.one_of(
    st.sampled_from(["a", "b", "c", "B", "<eos>"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3).filter(
        lambda word: word.split() == [word]
    ),
)
TEXTS = st.lists(st.lists(WORDS, max_size=8), max_size=12)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "MOST_IN_MEMORY", 3)
    monkeypatch.setattr(word_counts, "_MOST_FILES", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts")


def expected(texts: list[list[str]], *, min_count: int = 1, max_size: int | None = None) -> list[str]:
    ranked = Counter(itertools.chain.from_iterable(texts)).most_common(max_size)
    return [word for word, count in ranked if count >= min_count]


def counted(folder: Path, texts: list[list[str]]) -> WordCounts:
    counts = WordCounts(folder)
    for text in texts:
        count(counts, text)
    return counts


def count(counts: WordCounts, words: list[str]) -> None:
    """Count words as they come from a chunk: each once, in the order of first occurrence."""
    times = Counter(words)
    counts.add(list(times), list(times.values()))


BY_COUNTER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@BY_COUNTER
@given(texts=TEXTS, min_count=st.integers(1, 3), max_size=st.none() | st.integers(1, 6))
def test_words_stand_by_frequency_then_by_first_occurrence(
    texts: list[list[str]], min_count: int, max_size: int | None, folder: Path
) -> None:
    found = counted(folder, texts).most_common(min_count=min_count, max_size=max_size)
    assert found == expected(texts, min_count=min_count, max_size=max_size)
    assert list(folder.iterdir()) == []


@BY_COUNTER
@given(parts=st.lists(TEXTS, max_size=6), more=TEXTS, max_size=st.none() | st.integers(1, 6))
def test_parts_count_as_the_whole(
    parts: list[list[list[str]]], more: list[list[str]], max_size: int | None, folder: Path
) -> None:
    given_back = [counted(folder, part).part(folder / f"part-{number}") for number, part in enumerate(parts)]
    assert sorted(folder.iterdir()) == [part for part in given_back if isinstance(part, Path)]
    merged = WordCounts.merged(folder, given_back)
    for text in more:
        count(merged, text)
    assert merged.most_common(min_count=1, max_size=max_size) == expected(
        [*itertools.chain(*parts), *more], max_size=max_size
    )
    assert list(folder.iterdir()) == []


def test_what_was_merged_can_be_a_part_again(tmp_path: Path) -> None:
    texts = [[f"w{number % 7}", f"x{number}"] for number in range(20)]
    parts = [counted(tmp_path, [text]).part(tmp_path / f"{number}") for number, text in enumerate(texts)]
    first = WordCounts.merged(tmp_path, parts[:10]).part(tmp_path / "first")
    second = WordCounts.merged(tmp_path, parts[10:]).part(tmp_path / "second")
    merged = WordCounts.merged(tmp_path, [first, second])
    assert merged.most_common(min_count=1, max_size=None) == expected(texts)
    assert list(tmp_path.iterdir()) == []


def test_no_words_are_no_words(tmp_path: Path) -> None:
    assert WordCounts(tmp_path).most_common(min_count=1, max_size=None) == []
    nothing = WordCounts(tmp_path).part(tmp_path / "none")
    assert WordCounts.merged(tmp_path, [nothing]).most_common(min_count=1, max_size=3) == []


def test_few_long_words_leave_the_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(word_counts, "_MOST_CHARACTERS", 100)
    words = [letter * 60 for letter in "abcab"]
    counts = WordCounts(tmp_path)
    count(counts, words[:1] * 3)
    assert list(tmp_path.iterdir()) == [], "the same word again takes no more"
    count(counts, words)
    assert len(list(tmp_path.iterdir())) == 1
    assert counts.most_common(min_count=1, max_size=None) == [letter * 60 for letter in "abc"]


def peak(folder: Path, words: int) -> int:
    """Count `words` words, one in ten of them again, and say how many bytes that took at most."""
    tracemalloc.start()
    try:
        counts = WordCounts(folder)
        for start in range(0, words, 200):
            count(counts, [f"word-{number}" for number in range(start, start + 200)] + [f"word-{start // 10}"])
        assert len(counts.most_common(min_count=1, max_size=100)) == 100
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_different_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_counts, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(word_counts, "_MOST_FILES", 4)
    peak(tmp_path, 2_000)
    once, four_times = peak(tmp_path, 10_000), peak(tmp_path, 40_000)
    assert four_times < once * 1.1 + 4096
    assert once < 1_000_000


def test_merging_takes_memory_for_the_words_that_are_kept(tmp_path: Path) -> None:
    peaks = []
    for size in (2_000, 8_000):
        path = tmp_path / "part"
        path.write_text(f"{size}\n" + "".join(f"w{place:06}\t1\t{place}\n" for place in range(size)))
        tracemalloc.start()
        assert WordCounts.merged(tmp_path, [path]).most_common(min_count=1, max_size=3) == [
            "w000000",
            "w000001",
            "w000002",
        ]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.1 + 4096
