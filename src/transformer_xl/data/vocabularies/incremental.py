"""Ids written as text while they come one by one: never a part of a character, and in the end what `decode` gives."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from transformer_xl.data.vocabularies.base import Vocabulary
from transformer_xl.data.vocabularies.characters import ByteVocabulary, RankedByteVocabulary
from transformer_xl.data.vocabularies.subwords import SubwordVocabulary
from transformer_xl.data.vocabularies.wikitext import WikitextVocabulary

_CONTEXT = 8
"""Ids before the first that is written: more than the bytes of a character, and than any decoder here looks back at."""
_MOST_HELD = 16
"""Ids that may wait for the rest of a character: a decoder writes a byte at least with each."""
_UNREADABLE = "\ufffd"


class IncrementalDecoder(ABC):
    """Writes ids as text as soon as it is whole characters that no further id can change."""

    @abstractmethod
    def feed(self, number: int) -> str:
        """Take the next id; give the text that is settled now, which may be none."""

    @abstractmethod
    def rest(self) -> str:
        """Give what waits for more, where no more comes; a part of a character is U+FFFD."""


def incremental_decoder(vocabulary: Vocabulary, *, after: Sequence[int]) -> IncrementalDecoder:
    """Begin to write the ids that follow others.

    Args:
        vocabulary: of the ids.
        after: the ids before, whose own text is not written; of many, the last ones are enough.

    Returns:
        A decoder; the texts that it gives are, joined, what `vocabulary.decode` of all ids has more than of `after`,
        wherever the bytes of both are UTF-8.
    """
    if isinstance(vocabulary, ByteVocabulary | RankedByteVocabulary):
        return _ByteDecoder(vocabulary.bytes_of, after=after)
    if isinstance(vocabulary, SubwordVocabulary) and vocabulary.is_of_bytes:
        return _ByteDecoder(vocabulary.bytes_of, after=after)
    if isinstance(vocabulary, WikitextVocabulary):
        return _LineDecoder(vocabulary, after=after)
    return _WindowDecoder(vocabulary, after=after)


class _ByteDecoder(IncrementalDecoder):
    """For ids that stand for bytes: a character waits until its last byte is there."""

    def __init__(self, bytes_of: Callable[[Sequence[int]], bytes], *, after: Sequence[int]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(bytes_of(after[-_CONTEXT:]))

    def feed(self, number: int) -> str:
        return self._decoder.decode(self._bytes_of([number]))

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowDecoder(IncrementalDecoder):
    """For ids whose text depends on a neighbour: each is decoded together with those that were written last."""

    def __init__(self, vocabulary: Vocabulary, *, after: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._ids = list(after[-_CONTEXT:])
        self._written = len(self._ids)

    def feed(self, number: int) -> str:
        self._ids.append(number)
        new = self._new()
        is_open = not new or new.endswith(_UNREADABLE)
        if is_open and len(self._ids) - self._written < _MOST_HELD:
            return ""
        del self._ids[: self._written]
        self._written = len(self._ids)
        return new

    def rest(self) -> str:
        return self._new()

    def _new(self) -> str:
        before = self._vocabulary.decode(self._ids[: self._written])
        return self._vocabulary.decode(self._ids)[len(before) :]


class _LineDecoder(IncrementalDecoder):
    """For words whose text depends on their line: a word is written when the next one has not changed it."""

    def __init__(self, vocabulary: WikitextVocabulary, *, after: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._end = vocabulary.symbols.index(vocabulary.end)
        ends = [place for place, number in enumerate(after) if number == self._end]
        self._line = list(after[ends[-1] + 1 if ends else 0 :])
        self._text = vocabulary.decode(self._line)
        self._written = len(self._text)

    def feed(self, number: int) -> str:
        if number == self._end:
            last = self.rest() + "\n"
            self._line, self._text, self._written = [], "", 0
            return last
        self._line.append(number)
        before, self._text = self._text, self._vocabulary.decode(self._line)
        return self._write(_common(before, self._text))

    def rest(self) -> str:
        return self._write(len(self._text))

    def _write(self, end: int) -> str:
        text = self._text[self._written : end]
        self._written = max(self._written, end)
        return text


def _common(one: str, other: str) -> int:
    """Count the characters with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
