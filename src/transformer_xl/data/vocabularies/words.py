"""Vocabularies of words that white space parts, as the published code has them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import repeat
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.base import UNK, ListedSymbols, Looked, flat_ids, require_symbols
from transformer_xl.errors import UserError

EOS = "<eos>"
SENTENCE = "<S>"
_UNDEFINED = -1


class ListedWords(ListedSymbols):
    """Words by number, with one that ends a line and one that stands for every word that is not listed."""

    unit = "ppl"
    by_frequency = True
    end: ClassVar[str] = EOS
    unknown: ClassVar[str] = UNK

    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__(symbols)
        self._id_of_word = {word: number for number, word in enumerate(symbols)}

    @abstractmethod
    def extended(self, symbols: Sequence[str]) -> ListedWords:
        """Append words, keeping the numbers of the old ones."""

    def look_up(self, words: Sequence[str]) -> Looked:
        """Turn words into ids, counting those that the vocabulary lacks."""
        ids, unknown = self.look_up_each(words)
        return Looked(ids=ids, unknown=int(unknown.sum()))

    def look_up_each(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Turn words into ids, and say of each whether the vocabulary lacks it."""
        found = map(self._id_of_word.get, words, repeat(_UNDEFINED))
        ids = np.fromiter(found, np.int64, count=len(words))
        unknown = ids == _UNDEFINED
        ids[unknown] = self._id_of_word[self.unknown]
        return ids, unknown

    def words(self, ids: ArrayLike) -> list[str]:
        """Give the words of ids."""
        return [self.symbols[number] for number in flat_ids(ids, size=self.size).tolist()]


class WordVocabulary(ListedWords):
    """Words as the published code splits them: by white space, `<eos>` (id 0) at every line's end.

    Case is kept, unless `lower_case`, as for the Penn Treebank: as `str.lower` has it, which depends on no letter
    beyond white space. Without `line_ends` a line end is a blank like any other; `<eos>` keeps its id all the same, so
    that both ways of reading have the same numbers.
    """

    kind = "word"

    def __init__(self, symbols: Sequence[str], *, lower_case: bool = False, line_ends: bool = True) -> None:
        require_eos_and_unk(symbols)
        super().__init__(symbols)
        self.lower_case = lower_case
        self.line_ends = line_ends

    def extended(self, symbols: Sequence[str]) -> WordVocabulary:
        """Append words, keeping the numbers of the old ones."""
        return WordVocabulary([*self.symbols, *symbols], lower_case=self.lower_case, line_ends=self.line_ends)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, `<eos>` for every line end in it; unknown words become `<unk>`.

        A last line without a line end gets no `<eos>`, so that a prompt can stop inside a line; a corpus closes it.
        """
        end = self.end if self.line_ends else None
        return self.look_up(split_words(plain_lines(text), lower_case=self.lower_case, end=end)).ids

    def decode(self, ids: ArrayLike) -> str:
        """Join the words of ids by blanks, `<eos>` as a line end."""
        return _joined(self.words(ids), end=self.end)

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        # Written only where they say something, so that the hash of every other vocabulary stays what it was.
        lower_case = {"lower_case": True} if self.lower_case else {}
        return super().to_json() | lower_case | ({} if self.line_ends else {"line_ends": False})


class SentenceVocabulary(ListedWords):
    """Words of the One Billion Words: every line is a sentence, with `<S>` on both sides.

    Neighbours share an `<S>`: it is the target that ends one and the input that begins the next. The published code
    writes two, but its batches never ask for the second, which the first foretells.
    """

    kind = "sentence"
    end = SENTENCE
    unknown = "<UNK>"

    def __init__(self, symbols: Sequence[str]) -> None:
        if self.end not in symbols or self.unknown not in symbols:
            raise UserError(f"a sentence vocabulary must hold {self.end} and {self.unknown}")
        super().__init__(symbols)

    def extended(self, symbols: Sequence[str]) -> SentenceVocabulary:
        """Append words, keeping the numbers of the old ones."""
        return SentenceVocabulary([*self.symbols, *symbols])

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, `<S>` at its beginning and for every line end in it; unknown words become `<UNK>`."""
        return self.look_up([self.end, *split_words(plain_lines(text), end=self.end)]).ids

    def decode(self, ids: ArrayLike) -> str:
        """Join the words of ids by blanks, `<S>` as a line end; one at the very beginning is nothing."""
        words = self.words(ids)
        return _joined(words[1:] if words[:1] == [self.end] else words, end=self.end)


def require_eos_and_unk(symbols: Sequence[str]) -> None:
    """Raise `UserError` for words that do not begin with `<eos>` or lack `<unk>`."""
    require_symbols(symbols)
    if symbols[0] != EOS or UNK not in symbols:
        raise UserError(f"a word vocabulary must begin with {EOS} and hold {UNK}")


def plain_lines(text: str) -> str:
    r"""Write every line end as `\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split_words(text: str, *, lower_case: bool = False, end: str | None = EOS) -> list[str]:
    r"""Split text whose lines end in `\n` into words by white space, with `end`, if any, for every line end."""
    cased = text.lower() if lower_case else text
    return cased.split() if end is None else cased.replace("\n", f" {end} ").split()


def _joined(words: Sequence[str], *, end: str) -> str:
    lines = " ".join("\n" if word == end else word for word in words)
    return lines.replace(" \n", "\n").replace("\n ", "\n")
