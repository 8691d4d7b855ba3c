"""Vocabularies counted in the text of a corpus, and read from a published list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.parallel import in_order
from transformer_xl.data.building.reading import Reading, decoded
from transformer_xl.data.building.splitting import between, into_jobs
from transformer_xl.data.building.text import Stretch, character_border, read_chunks, total_size
from transformer_xl.data.building.word_splitting import split_texts
from transformer_xl.data.tokenizer import (
    UNK,
    ByteVocabulary,
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SentenceVocabulary,
    SubwordVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
    train_bpe,
)
from transformer_xl.errors import UserError

Symbol = TypeVar("Symbol")

JOB_BYTES = 32 << 20
"""Text that one process works on at a time."""
_BPE_SAMPLE_BYTES = 200_000_000
_BPE_WINDOW_BYTES = 1 << 20
_BPE_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Counts symbols; `announce` gets a line now and then."""

    reading: Reading
    announce: Callable[[str], None]

    def build_vocabulary(self, splits: Mapping[str, Sequence[Stretch]]) -> Vocabulary:
        """Count the symbols, most frequent first: bytes and characters of all splits, words of the training split.

        Equally frequent characters stand by code point; words and bytes by first occurrence as in the published
        vocabularies. Sub-words are learnt from the training split, from a sample of 200 MB of a larger one.
        """
        reading = self.reading
        everything = [stretch for split in splits.values() for stretch in split]
        if reading.kind == ByteVocabulary.kind:
            return ByteVocabulary()
        if reading.kind == RankedByteVocabulary.kind:
            return RankedByteVocabulary(self._bytes(everything))
        if reading.kind == CharVocabulary.kind:
            characters = self._characters(everything)
            unknown = [UNK] if self._may_lack_some(characters) else []
            return CharVocabulary([*unknown, *characters], lower_case=reading.lower_case)
        if reading.kind == SubwordVocabulary.kind:
            assert reading.bpe_size is not None
            megabytes = min(total_size(splits["train"]), _BPE_SAMPLE_BYTES) / 1e6
            self.announce(f"data: learning {reading.bpe_size:,} sub-words from {megabytes:,.1f} MB of text")
            return train_bpe(_sample(splits["train"]), size=reading.bpe_size)
        words = self._words(everything if reading.count_all else splits["train"])
        if reading.kind == SentenceVocabulary.kind:
            return SentenceVocabulary(_with(words, SentenceVocabulary.end, SentenceVocabulary.unknown))
        unknown = [ListedWords.unknown] if self._may_lack_some(words) and ListedWords.unknown not in words else []
        words = [*unknown, *(word for word in words if word != ListedWords.end)]
        listed = [ListedWords.end, *_with(words, ListedWords.unknown)]
        if reading.kind == WikitextVocabulary.kind:
            return WikitextVocabulary(listed)
        assert reading.kind == WordVocabulary.kind
        return WordVocabulary(listed, lower_case=reading.lower_case, line_ends=not reading.drop_newlines)

    def _may_lack_some(self, symbols: Sequence[str]) -> bool:
        """Say whether some of the text's symbols may have been left out: there will be many unknown ones."""
        return self.reading.min_count > 1 or len(symbols) == self.reading.max_size

    def extend_vocabulary(
        self, vocabulary: Vocabulary, splits: Mapping[str, Sequence[Stretch]]
    ) -> tuple[Vocabulary, int]:
        """Append the symbols that a vocabulary lacks, keeping the numbers of the old ones; count the new ones too."""
        everything = [stretch for split in splits.values() for stretch in split]
        if isinstance(vocabulary, RankedByteVocabulary):
            values = _lacking(vocabulary.values, self._bytes(everything))
            return RankedByteVocabulary([*vocabulary.values, *values]), len(values)
        if isinstance(vocabulary, CharVocabulary):
            characters = _lacking(vocabulary.symbols, self._characters(everything))
            extended = CharVocabulary([*vocabulary.symbols, *characters], lower_case=vocabulary.lower_case)
            return extended, len(characters)
        if isinstance(vocabulary, ListedWords):
            words = _lacking(vocabulary.symbols, self._words(splits["train"]))
            return vocabulary.extended(words), len(words)
        return vocabulary, 0

    def _bytes(self, stretches: Iterable[Stretch]) -> list[int]:
        counts: Counter[int] = Counter()
        for found in self._counted(_count_bytes, stretches):
            for value, count in found.items():
                counts[value] += count
        return [value for value, _ in counts.most_common()]

    def _characters(self, stretches: Iterable[Stretch]) -> list[str]:
        counts = np.zeros(0x110000, np.int64)
        for found in self._counted(_count_characters, stretches):
            counts[: len(found)] += found
        codes = np.flatnonzero(counts >= self.reading.min_count)
        ranked = codes[np.argsort(-counts[codes], kind="stable")]
        return list(map(chr, ranked[: self.reading.max_size].tolist()))

    def _words(self, stretches: Iterable[Stretch]) -> list[str]:
        counts: Counter[str] = Counter()
        for found in self._counted(_count_words, stretches):
            for word, count in found.items():
                counts[word] += count
        # equally frequent words stand in the order in which they were first met
        common = counts.most_common(self.reading.max_size)
        return [word for word, count in common if count >= self.reading.min_count]

    def _counted(self, count: Callable[[_Part], Symbol], stretches: Iterable[Stretch]) -> Iterator[Symbol]:
        parts = [_Part(self.reading, job) for job in into_jobs(stretches, job_bytes=JOB_BYTES)]
        return in_order(count, parts, doing="counting the vocabulary", announce=self.announce)


class _Part(NamedTuple):
    """Text to count."""

    reading: Reading
    stretches: list[Stretch]


def _count_bytes(part: _Part) -> Counter[int]:
    counts: Counter[int] = Counter()
    for stretch in part.stretches:
        for chunk in read_chunks(stretch, find_cut=part.reading.find_cut(None)):
            data = part.reading.bytes(chunk.data)
            found = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
            # Counter keeps the order of first occurrence, and breaks ties by it.
            for value in sorted(np.flatnonzero(found).tolist(), key=data.index):
                counts[value] += int(found[value])
    return counts


def _count_characters(part: _Part) -> NDArray[np.int64]:
    counts = np.zeros(0x110000, np.int64)
    for stretch in part.stretches:
        for chunk in read_chunks(stretch, find_cut=part.reading.find_cut(None)):
            text = "".join(map(part.reading.text, decoded(chunk, stretch)))
            found = np.bincount(np.frombuffer(text.encode("utf-32-le"), "<u4"))
            counts[: len(found)] += found
    return counts


def _count_words(part: _Part) -> Counter[str]:
    counts: Counter[str] = Counter()
    for stretch in part.stretches:
        for chunk in read_chunks(stretch, find_cut=part.reading.find_cut(None)):
            words = split_texts(part.reading, decoded(chunk, stretch), ends=chunk.ends)
            for word, count in zip(words.different, words.counts, strict=True):
                counts[word] += count
    return counts


def _sample(stretches: Sequence[Stretch]) -> Iterator[str]:
    """Yield the texts that sub-words are learnt from: all, or windows that a fixed seed draws."""
    total = total_size(stretches)
    is_whole = total <= _BPE_SAMPLE_BYTES
    if not is_whole:
        windows = -(-total // _BPE_WINDOW_BYTES)
        drawn = np.random.Generator(np.random.PCG64(_BPE_SEED)).permutation(windows)
        taken = np.sort(drawn[: _BPE_SAMPLE_BYTES // _BPE_WINDOW_BYTES]).tolist()
        starts = (window * _BPE_WINDOW_BYTES for window in taken)
        stretches = [part for start in starts for part in between(stretches, start, start + _BPE_WINDOW_BYTES)]
    for stretch in stretches:
        for chunk in read_chunks(stretch, find_cut=character_border):
            if is_whole:
                yield from decoded(chunk, stretch)
            else:  # a window may begin or end inside a character
                yield from (part.decode(errors="ignore") for part in chunk.parts())


def read_vocabulary_file(path: Path) -> Vocabulary:
    """Read the published vocabulary of the One Billion Words: the first word of every line, in the order of the file.

    Raises:
        UserError: it is not such a file.
    """
    try:
        with path.open(encoding="utf-8") as file:
            words = [line.split()[0] for line in file if line.strip()]
        return SentenceVocabulary(list(dict.fromkeys(words)))
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{str(path)!r} is not a list of words: {error}") from error


def _lacking(old: Iterable[Symbol], found: Iterable[Symbol]) -> list[Symbol]:
    known = set(old)
    return [symbol for symbol in found if symbol not in known]


def _with(words: list[str], *needed: str) -> list[str]:
    return [*words, *(word for word in needed if word not in words)]
