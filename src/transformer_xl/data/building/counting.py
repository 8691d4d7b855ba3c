"""Vocabularies counted in the text of a corpus, and read from a published list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from transformer_xl.data.building.reading import Reading
from transformer_xl.data.sources.files import Piece
from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SentenceVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
)
from transformer_xl.errors import UserError

Symbol = TypeVar("Symbol")


def build_vocabulary(reading: Reading, splits: Mapping[str, Sequence[Piece]]) -> Vocabulary:
    """Count the symbols, most frequent first: bytes and characters of all splits, words of the training split.

    Equally frequent characters stand by code point; words and bytes by first occurrence as in the published
    vocabularies.
    """
    pieces = [piece for split in splits.values() for piece in split]
    if reading.kind == ByteVocabulary.kind:
        return ByteVocabulary()
    if reading.kind == RankedByteVocabulary.kind:
        return RankedByteVocabulary(_bytes_by_frequency(reading, pieces))
    if reading.kind == CharVocabulary.kind:
        return CharVocabulary(_characters_by_frequency(reading, pieces))
    words = _words_by_frequency(reading, pieces if reading.count_all else splits["train"])
    if reading.kind == SentenceVocabulary.kind:
        return SentenceVocabulary(_with(words, SentenceVocabulary.end, SentenceVocabulary.unknown))
    listed = [ListedWords.end, *_with([word for word in words if word != ListedWords.end], ListedWords.unknown)]
    if reading.kind == WikitextVocabulary.kind:
        return WikitextVocabulary(listed)
    assert reading.kind == WordVocabulary.kind
    return WordVocabulary(listed, lower_case=reading.lower_case)


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


def extend_vocabulary(
    vocabulary: Vocabulary, reading: Reading, splits: Mapping[str, Sequence[Piece]]
) -> tuple[Vocabulary, int]:
    """Append the symbols that a vocabulary lacks, keeping the numbers of the old ones; count the new ones too."""
    pieces = [piece for split in splits.values() for piece in split]
    if isinstance(vocabulary, RankedByteVocabulary):
        values = _lacking(vocabulary.values, _bytes_by_frequency(reading, pieces))
        return RankedByteVocabulary([*vocabulary.values, *values]), len(values)
    if isinstance(vocabulary, CharVocabulary):
        characters = _lacking(vocabulary.symbols, _characters_by_frequency(reading, pieces))
        return CharVocabulary([*vocabulary.symbols, *characters]), len(characters)
    if isinstance(vocabulary, ListedWords):
        words = _lacking(vocabulary.symbols, _words_by_frequency(reading, splits["train"]))
        return vocabulary.extended(words), len(words)
    return vocabulary, 0


def _bytes_by_frequency(reading: Reading, pieces: Iterable[Piece]) -> list[int]:
    counts: Counter[int] = Counter()
    for piece in pieces:
        for chunk in reading.bytes(piece):
            found = np.bincount(np.frombuffer(chunk, np.uint8), minlength=256)
            # Counter keeps the order of first occurrence, and breaks ties by it.
            for value in sorted(np.flatnonzero(found).tolist(), key=chunk.index):
                counts[value] += int(found[value])
    return [value for value, _ in counts.most_common()]


def _characters_by_frequency(reading: Reading, pieces: Iterable[Piece]) -> list[str]:
    counts = np.zeros(0x110000, np.int64)
    for piece in pieces:
        for text in reading.text(piece):
            found = np.bincount(np.frombuffer(text.encode("utf-32-le"), "<u4"))
            counts[: len(found)] += found
    codes = np.flatnonzero(counts)
    return [chr(code) for code in codes[np.argsort(-counts[codes], kind="stable")]]


def _words_by_frequency(reading: Reading, pieces: Iterable[Piece]) -> list[str]:
    counts: Counter[str] = Counter()
    for piece in pieces:
        for words in reading.words(piece):
            counts.update(words)
    return [word for word, _ in counts.most_common()]


def _lacking(old: Iterable[Symbol], found: Iterable[Symbol]) -> list[Symbol]:
    known = set(old)
    return [symbol for symbol in found if symbol not in known]


def _with(words: list[str], *needed: str) -> list[str]:
    return [*words, *(word for word in needed if word not in words)]
