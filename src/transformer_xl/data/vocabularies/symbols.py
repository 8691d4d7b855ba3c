"""A vocabulary of numbers without a meaning, for made-up tasks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.base import FORMAT, Vocabulary, flat_ids
from transformer_xl.errors import UserError


class SymbolVocabulary(Vocabulary):
    """Numbers without a meaning, written as decimals with blanks between them."""

    kind = "symbol"
    unit = "bpc"
    by_frequency = False

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"a symbol vocabulary has size {size}, and must have at least 1 symbol")
        self._size = size

    @property
    def size(self) -> int:
        """Count the symbols."""
        return self._size

    def encode(self, text: str) -> NDArray[np.int64]:
        """Read numbers between white space; `UserError` naming one that is not a symbol."""
        words = text.split()
        for word in words:
            # The length bounds what int() is given; a longer number is no symbol anyway.
            if not (word.isascii() and word.isdigit() and len(word) <= 18 and int(word) < self.size):
                raise UserError(f"the text holds {word!a}, and symbols are the numbers 0 to {self.size - 1}")
        return np.array([int(word) for word in words], np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """Write ids as numbers with blanks between them."""
        return " ".join(map(str, flat_ids(ids, size=self.size).tolist()))

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind, "size": self.size}
