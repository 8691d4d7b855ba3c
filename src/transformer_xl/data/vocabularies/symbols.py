"""A vocabulary of numbers without a meaning, for made-up tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.base import EOD, FORMAT, Vocabulary, flat_ids
from transformer_xl.errors import UserError


class SymbolVocabulary(Vocabulary):
    """Numbers without a meaning, written as decimals with blanks between them."""

    kind = "symbol"
    unit = "bpc"
    by_frequency = False

    def __init__(self, size: int, *, end_of_document: bool = False) -> None:
        """Take the number of symbols, the end of a document, which stands last, among them."""
        self._numbers = size - end_of_document
        if self._numbers < 1:
            raise UserError(
                f"a symbol vocabulary has size {size}, and must have at least 1 symbol"
                f"{' beside the end of a document' if end_of_document else ''}"
            )
        self._ends = end_of_document

    @property
    def size(self) -> int:
        """Count the symbols."""
        return self._numbers + self._ends

    @property
    def end_of_document(self) -> int | None:
        """Give the id that ends a document, None where there is none."""
        return self._numbers if self._ends else None

    def with_end_of_document(self) -> SymbolVocabulary:
        """Give the same vocabulary with the end of a document as its last id; itself where it has one."""
        return self if self._ends else SymbolVocabulary(self.size + 1, end_of_document=True)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Read numbers between white space; `UserError` naming one that is not a symbol."""
        words = text.split()
        for word in words:
            # The length bounds what int() is given; a longer number is no symbol anyway.
            if not (word.isascii() and word.isdigit() and len(word) <= 18 and int(word) < self._numbers):
                raise UserError(f"the text holds {word!a}, and symbols are the numbers 0 to {self._numbers - 1}")
        return np.array([int(word) for word in words], np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """Write ids as numbers with blanks between them."""
        return " ".join(map(self.symbol, flat_ids(ids, size=self.size).tolist()))

    def symbol(self, number: int) -> str:
        """Write an id as a number."""
        return EOD if number == self.end_of_document else str(number)

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        end = {"end_of_document": True} if self._ends else {}
        return {"format": FORMAT, "kind": self.kind, "size": self.size} | end
