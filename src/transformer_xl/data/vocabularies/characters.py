"""Vocabularies of bytes and of characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.base import (
    EOD,
    FORMAT,
    UNK,
    ListedSymbols,
    Looked,
    Vocabulary,
    flat_ids,
    readable,
    utf8,
)
from transformer_xl.errors import UserError

_UNDEFINED = -1
_END = 256
"""Stands among the bytes for the end of a document."""


class ByteVocabulary(Vocabulary):
    """The 256 bytes, and perhaps the end of a document behind them."""

    kind = "byte"
    unit = "bpc"
    by_frequency = False

    def __init__(self, *, end_of_document: bool = False) -> None:
        self._ends = end_of_document

    @property
    def size(self) -> int:
        """Count the symbols."""
        return _END + self._ends

    @property
    def end_of_document(self) -> int | None:
        """Give the id that ends a document, None where there is none."""
        return _END if self._ends else None

    def with_end_of_document(self) -> ByteVocabulary:
        """Give the bytes with the end of a document as number 256; itself where it has one."""
        return self if self._ends else ByteVocabulary(end_of_document=True)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into the bytes of its UTF-8."""
        return np.frombuffer(utf8(text, restores_bytes=True), np.uint8).astype(np.int64)

    def bytes_of(self, ids: ArrayLike) -> bytes:
        """Give the bytes that ids stand for, with `<eod>` for the end of a document."""
        return _joined(flat_ids(ids, size=self.size))

    def decode(self, ids: ArrayLike) -> str:
        """Read ids as UTF-8; a byte that is none becomes U+FFFD."""
        return self.bytes_of(ids).decode("utf-8", errors="replace")

    def symbol(self, number: int) -> str:
        """Write a byte as its ASCII character, or as a Python literal."""
        return _byte_symbol(number)

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind} | ({"end_of_document": True} if self._ends else {})


class RankedByteVocabulary(Vocabulary):
    """The bytes that occur in a corpus, most frequent first, as the published code has them for enwik8.

    The value 256 stands for the end of a document.
    """

    kind = "ranked_byte"
    unit = "bpc"
    by_frequency = True

    def __init__(self, values: Sequence[int]) -> None:
        if set(values) <= {_END} or len(set(values)) != len(values) or not all(0 <= value <= _END for value in values):
            raise UserError(
                f"a vocabulary of ranked bytes must name at least one number below 256, or {_END} for the end of a "
                "document, and each once"
            )
        self.values = tuple(values)
        self._value_of_id = np.array(values, np.int64)
        self._id_of_value = np.full(_END + 1, _UNDEFINED, np.int64)
        self._id_of_value[self._value_of_id] = np.arange(len(values))

    @property
    def size(self) -> int:
        """Count the symbols."""
        return len(self.values)

    @property
    def end_of_document(self) -> int | None:
        """Give the id that ends a document, None where there is none."""
        number = int(self._id_of_value[_END])
        return None if number == _UNDEFINED else number

    def with_end_of_document(self) -> RankedByteVocabulary:
        """Give the same vocabulary with the end of a document as its last id; itself where it has one."""
        return self if self.end_of_document is not None else self.extended([_END])

    def extended(self, values: Sequence[int]) -> RankedByteVocabulary:
        """Append bytes, keeping the numbers of the old ones."""
        return RankedByteVocabulary([*self.values, *values])

    def look_up(self, data: bytes) -> NDArray[np.int64]:
        """Turn bytes into ids, -1 for those that the vocabulary lacks."""
        return self._id_of_value[np.frombuffer(data, np.uint8)]

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, one a byte of its UTF-8; `UserError` naming a byte that is missing, and its place."""
        encoded = utf8(text, restores_bytes=True)
        ids = self.look_up(encoded)
        missing = np.flatnonzero(ids == _UNDEFINED)
        if len(missing):
            place = int(missing[0])
            listed = self.size - (self.end_of_document is not None)
            raise UserError(
                f"the text's UTF-8 holds the byte {encoded[place]:#04x} at place {place}, counted from 0, and the "
                f"vocabulary lacks it: it has only the {listed} bytes of its corpus"
            )
        return ids

    def bytes_of(self, ids: ArrayLike) -> bytes:
        """Give the bytes that ids stand for, with `<eod>` for the end of a document."""
        return _joined(self._value_of_id[flat_ids(ids, size=self.size)])

    def decode(self, ids: ArrayLike) -> str:
        """Read the bytes of ids as UTF-8; a byte that is none becomes U+FFFD."""
        return self.bytes_of(ids).decode("utf-8", errors="replace")

    def symbol(self, number: int) -> str:
        """Write a byte as its ASCII character, or as a Python literal."""
        return _byte_symbol(self.values[number])

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind, "values": list(self.values)}


class CharVocabulary(ListedSymbols):
    """Unicode characters, most frequent first; no end of line.

    `<unk>` may stand for every character that is not listed, and `<eod>` for the end of a document: the only symbols
    that are not one character.

    With `lower_case`, texts become lower case as `str.lower` has it for the whole text: what a capital sigma becomes
    depends on the letters beside it, so a text must be lowered before it is cut, or cut at white space.
    """

    kind = "char"
    unit = "bpc"
    by_frequency = True

    def __init__(self, symbols: Sequence[str], *, lower_case: bool = False) -> None:
        super().__init__(symbols)
        if any(len(symbol) != 1 and symbol not in (UNK, EOD) for symbol in symbols):
            raise UserError(f"a character vocabulary holds a symbol that is neither one character nor {UNK} nor {EOD}")
        self.lower_case = lower_case
        self._of_unlisted = self.symbols.index(UNK) if UNK in self.symbols else _UNDEFINED
        characters = [number for number, symbol in enumerate(symbols) if len(symbol) == 1]
        codes = np.array([ord(symbols[number]) for number in characters], np.int64)
        # One slot more than the highest code: where everything beyond the vocabulary is clipped to.
        self._id_of_code = np.full(int(codes.max(initial=0)) + 2, self._of_unlisted, np.int64)
        self._id_of_code[codes] = characters

    def extended(self, symbols: Sequence[str]) -> CharVocabulary:
        """Append characters, keeping the numbers of the old ones."""
        return CharVocabulary([*self.symbols, *symbols], lower_case=self.lower_case)

    def look_up(self, text: str) -> Looked:
        """Turn characters, lowered already if need be, into ids, counting those that the vocabulary lacks.

        Such a character gets the id of `<unk>`, or -1 where the vocabulary has none.
        """
        codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
        ids: NDArray[np.int64] = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        return Looked(ids=ids, unknown=int(np.count_nonzero(ids == self._of_unlisted)))

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, one a character; `UserError` naming one that is missing without `<unk>`, and its place.

        A few characters become two in lower case.
        """
        lowered = text.lower() if self.lower_case else text
        ids = self.look_up(lowered).ids
        missing = np.flatnonzero(ids == _UNDEFINED)
        if len(missing):
            character = lowered[int(missing[0])]
            place = int(missing[0])
            if len(lowered) != len(text):
                ends = accumulate(len(one.lower()) for one in text)
                place = next(number for number, end in enumerate(ends) if end > missing[0])
            listed = self.size - (self.end_of_document is not None)
            raise UserError(
                f"the text holds {character!a} (U+{ord(character):04X}) at place {place}, counted from 0, and the "
                f"character vocabulary lacks it: it has only the {listed} characters of its corpus"
            )
        return ids

    def decode(self, ids: ArrayLike) -> str:
        """Join the characters of ids."""
        return "".join(map(self.symbols.__getitem__, flat_ids(ids, size=self.size).tolist()))

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return super().to_json() | ({"lower_case": True} if self.lower_case else {})


def _joined(values: NDArray[np.int64]) -> bytes:
    ends = np.flatnonzero(values == _END)
    documents = np.split(values.astype(np.uint8), ends)
    return EOD.encode().join([documents[0].tobytes(), *(document[1:].tobytes() for document in documents[1:])])


def _byte_symbol(value: int) -> str:
    if value == _END:
        return EOD
    return readable(chr(value)) if value < 128 else ascii(bytes([value]))
