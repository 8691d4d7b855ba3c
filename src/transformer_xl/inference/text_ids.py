"""Texts as ids: what precedes a text, what ends it, and what of it the vocabulary can say.

A text's tokens are those that it has in a corpus of the vocabulary's kind, so that the ids of texts that read on from
each other are, one behind the other, those of the text that they make together.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.reading import LINE_ENDS, Reading
from transformer_xl.data.building.text import FindCut, after_blank
from transformer_xl.data.tokenizer import (
    UNK,
    ByteVocabulary,
    CharVocabulary,
    ListedWords,
    RankedByteVocabulary,
    SentenceVocabulary,
    SubwordVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WordVocabulary,
)
from transformer_xl.errors import UserError
from transformer_xl.inference.texts import Part, Unit

_LAST_LINE_END = re.compile(rb"\r?\n\Z")


class Encoded(NamedTuple):
    """A part of a text.

    Attributes:
        ids: its tokens.
        text_bytes: of UTF-8 that they stand for; 0 where they stand for no text.
        unknown: how many are `<unk>`.
    """

    ids: NDArray[np.int64]
    text_bytes: int
    unknown: int


class TextEncoder:
    r"""Turns texts into ids, part by part.

    A vocabulary of words writes its symbol for every line end, the last one too: a text that lacks it is closed, as a
    corpus is. A document ends with `<eod>`, where the vocabulary has it. Beyond that, the line end that parts a text
    from the next one belongs to it only where they read on from each other; alone, a text of nothing but blanks has no
    symbols of words. Line ends are left out where the corpus has none, as text8.

    Attributes:
        start: the id that precedes a text which begins anew; None: there is none.
        is_of_text: whether ids stand for text, and not for themselves.
    """

    def __init__(self, vocabulary: Vocabulary, *, unit: Unit, reads_on: bool, has_line_ends: bool) -> None:
        """Take what decides.

        Args:
            vocabulary: of the model.
            unit: what one text is.
            reads_on: whether each text but the first goes on from the one before.
            has_line_ends: whether line ends are symbols of the corpus, where its vocabulary has them.
        """
        self.start = start_of_texts(vocabulary)
        self.is_of_text = not isinstance(vocabulary, SymbolVocabulary)
        self._vocabulary = vocabulary
        self._unknown = _unknown(vocabulary)
        self._reads_on = reads_on
        self._closes_lines = _ends_lines(vocabulary)
        end = vocabulary.end_of_document if unit == "document" else None
        self._end = np.array([] if end is None else [end], np.int64)
        self._reading = Reading(
            kind=vocabulary.kind,
            drop_newlines=_is_of_characters(vocabulary) and (not has_line_ends or _lacks_line_ends(vocabulary)),
            lower_case=isinstance(vocabulary, CharVocabulary | WordVocabulary) and vocabulary.lower_case,
        )

    @property
    def find_cut(self) -> FindCut:
        """Give the function that finds where a long text may be cut."""
        return self._reading.find_cut(self._vocabulary) if self.is_of_text else after_blank

    def encode(self, part: Part) -> Encoded:
        """Turn a part of a text into ids.

        Raises:
            UserError: it is no UTF-8, where bytes are no symbols, or the vocabulary lacks something; naming the line.
        """
        data = part.data
        if part.ends and not self._reads_on:
            data = _LAST_LINE_END.sub(b"", data)
        has_symbols = self._reads_on or not part.begins or bool(data.strip())
        if part.ends and self._closes_lines and has_symbols and not data.endswith(b"\n"):
            data += b"\n"
        data = self._reading.bytes(data)
        ids = self._encoded(data, line=part.line)
        if part.ends and (len(ids) or not part.begins):
            ids = np.concatenate([ids, self._end])
        unknown = 0 if self._unknown is None else int((ids == self._unknown).sum())
        return Encoded(ids, text_bytes=len(data) if self.is_of_text else 0, unknown=unknown)

    def _encoded(self, data: bytes, *, line: int) -> NDArray[np.int64]:
        try:
            text = data.decode(errors="surrogateescape" if self._reading.is_of_bytes else "strict")
        except UnicodeDecodeError as error:
            line += data.count(b"\n", 0, error.start)
            raise UserError(
                f"line {line} holds the byte {data[error.start]:#04x} where UTF-8 has none like it, and must be UTF-8 "
                f"for a {self._vocabulary.kind} vocabulary"
            ) from error
        try:
            ids = self._vocabulary.encode(text)
        except UserError as error:
            raise UserError(f"line {line}: {error}") from error
        # a sentence's first symbol is the one that ends the sentence before it
        return ids[1:] if isinstance(self._vocabulary, SentenceVocabulary) else ids


def start_of_texts(vocabulary: Vocabulary) -> int | None:
    """Give the id that precedes a text in a corpus of this vocabulary.

    It is the end of the document before, or where there are none, of the line before: `<eod>`, `<eos>`, in the One
    Billion Words `<S>`. None: bytes, characters, sub-words and numbers without `<eod>`, and words whose line ends are
    blanks, have no such symbol.
    """
    if vocabulary.end_of_document is not None and not isinstance(vocabulary, SentenceVocabulary):
        return vocabulary.end_of_document
    if isinstance(vocabulary, ListedWords) and _ends_lines(vocabulary):
        return vocabulary.symbols.index(vocabulary.end)
    return None


def _ends_lines(vocabulary: Vocabulary) -> bool:
    """Say whether a symbol of words stands for every line end."""
    return isinstance(vocabulary, ListedWords) and not (
        isinstance(vocabulary, WordVocabulary) and not vocabulary.line_ends
    )


def _unknown(vocabulary: Vocabulary) -> int | None:
    """Give the id of all that the vocabulary lacks; None where it lacks nothing, or refuses it."""
    if isinstance(vocabulary, SubwordVocabulary):
        return vocabulary.unknown
    if isinstance(vocabulary, ListedWords):
        return vocabulary.symbols.index(vocabulary.unknown)
    if isinstance(vocabulary, CharVocabulary) and UNK in vocabulary.symbols:
        return vocabulary.symbols.index(UNK)
    return None


def _is_of_characters(vocabulary: Vocabulary) -> bool:
    return isinstance(vocabulary, ByteVocabulary | RankedByteVocabulary | CharVocabulary)


def _lacks_line_ends(vocabulary: Vocabulary) -> bool:
    """Say whether line ends were left out of the corpus that a vocabulary is made from, as text8 has none."""
    if isinstance(vocabulary, CharVocabulary):
        return not set(vocabulary.symbols) & set(LINE_ENDS)
    return isinstance(vocabulary, RankedByteVocabulary) and not set(vocabulary.values) & set(LINE_ENDS.encode())
