"""Words counted in bounded memory, however many different ones there are."""

from __future__ import annotations

import heapq
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

MOST_IN_MEMORY = 2_000_000
"""Different words; more are written to files, and added up in the end."""
_MOST_CHARACTERS = 64_000_000  # of those words: what looks like a word can be of any length
_MOST_FILES = 64  # that are open at once

_Counted = tuple[str, int, int]
"""A word, how often it came, and its place in the order of first occurrence; there are too many for a named tuple."""


class _File(NamedTuple):
    """Counts on disk, sorted by word: a line with the number of places, then a line a word; places begin at `base`."""

    path: Path
    base: int


class Counted(NamedTuple):
    """Different words in the order of first occurrence, and how often each came."""

    words: list[str]
    counts: list[int]


class WordCounts:
    """Counts words that hold no white space; what it leaves in its folder until the end is its own.

    `most_common` and `part` are ends: they remove its files, and nothing may be counted afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[str] = Counter()
        self._characters = 0
        self._places = 0
        """Places that words in files have had; the same word takes one in each file, and its first one holds."""
        self._files: list[_File] = []

    @classmethod
    def merged(cls, folder: Path, parts: Iterable[Counted | Path]) -> WordCounts:
        """Give the counts of consecutive texts, which `part` gave, as if they had been counted in this order.

        Files become its own.
        """
        counts = cls(folder)
        for part in parts:
            if isinstance(part, Counted):
                counts.add(part.words, part.counts)
                continue
            if counts._counts:
                counts._spill()
            counts._files.append(_File(part, counts._places))
            with part.open("rb") as file:
                counts._places += int(file.readline())
        return counts

    def add(self, words: Sequence[str], counts: Sequence[int]) -> None:
        """Count words, each as often as `counts` says."""
        known = len(self._counts)
        of_word = self._counts
        for word, count in zip(words, counts, strict=True):
            of_word[word] = of_word.get(word, 0) + count
        fresh = len(self._counts) - known
        self._characters += sum(map(len, islice(reversed(self._counts), fresh)))
        if len(self._counts) > MOST_IN_MEMORY or self._characters > _MOST_CHARACTERS:
            self._spill()

    def most_common(self, *, min_count: int, max_size: int | None) -> list[str]:
        """Give words by frequency, equally frequent ones by first occurrence.

        Args:
            min_count: rarer words are left out.
            max_size: so many words at most; the memory taken is in proportion to it. None: all.
        """
        if not self._files:
            ranked = self._counts.most_common(max_size)
            return [word for word, count in ranked if count >= min_count]
        self._spill()
        by_rank = ((-times, place, word) for word, times, place in self._added_up() if times >= min_count)
        ranks = sorted(by_rank) if max_size is None else heapq.nsmallest(max_size, by_rank)
        self._remove_files()
        return [word for _, _, word in ranks]

    def part(self, path: Path) -> Counted | Path:
        """Give the counts for `merged`; where there are very many, in a file at `path`."""
        if not self._files:
            return Counted(list(self._counts), list(self._counts.values()))
        self._spill()
        _write(path, self._added_up(), places=self._places)
        self._remove_files()
        return path

    def _spill(self) -> None:
        self._files.append(_File(self._new_path(), self._places))
        _write(self._files[-1].path, self._sorted(), places=len(self._counts))
        self._places += len(self._counts)
        self._counts = Counter()
        self._characters = 0

    def _sorted(self) -> Iterator[_Counted]:
        words = list(self._counts)
        for place in sorted(range(len(words)), key=words.__getitem__):
            yield words[place], self._counts[words[place]], place

    def _added_up(self) -> Iterator[_Counted]:
        """Yield all words in files, sorted, each once."""
        while len(self._files) > _MOST_FILES:
            some, others = self._files[:_MOST_FILES], self._files[_MOST_FILES:]
            together = _File(self._new_path(), 0)
            _write(together.path, _merge(some), places=self._places)
            for file in some:
                file.path.unlink()
            self._files = [*others, together]
        return _merge(self._files)

    def _new_path(self) -> Path:
        return self._folder / f"words-{uuid.uuid4().hex}"

    def _remove_files(self) -> None:
        for file in self._files:
            file.path.unlink()
        self._files = []


def _write(path: Path, counted: Iterable[_Counted], *, places: int) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(f"{places}\n")
        file.writelines(f"{word}\t{times}\t{place}\n" for word, times, place in counted)


def _read(file: _File) -> Iterator[_Counted]:
    base = file.base
    with file.path.open(encoding="utf-8", newline="\n") as lines:
        next(lines)
        for line in lines:
            word, times, place = line.split("\t")
            yield word, int(times), base + int(place)


def _merge(files: Iterable[_File]) -> Iterator[_Counted]:
    counted = heapq.merge(*map(_read, files))
    first = next(counted, None)
    if first is None:
        return
    current, total, first_place = first
    for word, times, place in counted:
        if word == current:
            total += times
            first_place = min(first_place, place)
        else:
            yield current, total, first_place
            current, total, first_place = word, times, place
    yield current, total, first_place
