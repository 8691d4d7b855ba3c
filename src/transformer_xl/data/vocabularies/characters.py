"""Vocabularies of bytes and of characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.base import FORMAT, Vocabulary, flat_ids, require_symbols
from transformer_xl.errors import UserError

_UNDEFINED = -1


class ByteVocabulary(Vocabulary):
    """The 256 bytes."""

    kind = "byte"
    unit = "bpc"
    by_frequency = False

    @property
    def size(self) -> int:
        """Count the symbols."""
        return 256

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into the bytes of its UTF-8."""
        return np.frombuffer(_utf8(text), np.uint8).astype(np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """Read ids as UTF-8; a byte that is none becomes U+FFFD."""
        return flat_ids(ids, size=self.size).astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind}


class RankedByteVocabulary(Vocabulary):
    """The bytes that occur in a corpus, most frequent first, as the published code has them for enwik8."""

    kind = "ranked_byte"
    unit = "bpc"
    by_frequency = True

    def __init__(self, values: Sequence[int]) -> None:
        if not values or len(set(values)) != len(values) or not all(0 <= value < 256 for value in values):
            raise UserError("a vocabulary of ranked bytes must name at least one number below 256, and each once")
        self.values = tuple(values)
        self._value_of_id = np.array(values, np.uint8)
        self._id_of_value = np.full(256, _UNDEFINED, np.int64)
        self._id_of_value[self._value_of_id] = np.arange(len(values))

    @property
    def size(self) -> int:
        """Count the symbols."""
        return len(self.values)

    def look_up(self, data: bytes) -> NDArray[np.int64]:
        """Turn bytes into ids, -1 for those that the vocabulary lacks."""
        return self._id_of_value[np.frombuffer(data, np.uint8)]

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, one a byte of its UTF-8; `UserError` naming a byte that is missing, and its place."""
        encoded = _utf8(text)
        ids = self.look_up(encoded)
        missing = np.flatnonzero(ids == _UNDEFINED)
        if len(missing):
            place = int(missing[0])
            raise UserError(
                f"the text's UTF-8 holds the byte {encoded[place]:#04x} at place {place}, counted from 0, and the "
                f"vocabulary lacks it: it has only the {self.size} bytes of its corpus"
            )
        return ids

    def decode(self, ids: ArrayLike) -> str:
        """Read the bytes of ids as UTF-8; a byte that is none becomes U+FFFD."""
        return self._value_of_id[flat_ids(ids, size=self.size)].tobytes().decode("utf-8", errors="replace")

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind, "values": list(self.values)}


class CharVocabulary(Vocabulary):
    """Unicode characters, most frequent first; no end of line, no unknown."""

    kind = "char"
    unit = "bpc"
    by_frequency = True

    def __init__(self, symbols: Sequence[str]) -> None:
        require_symbols(symbols)
        if any(len(symbol) != 1 for symbol in symbols):
            raise UserError("a character vocabulary holds a symbol that is not one character")
        self.symbols = tuple(symbols)
        codes = np.array([ord(symbol) for symbol in symbols], np.int64)
        # One slot more than the highest code: where everything beyond the vocabulary is clipped to.
        self._id_of_code = np.full(int(codes.max()) + 2, _UNDEFINED, np.int64)
        self._id_of_code[codes] = np.arange(len(codes))

    @property
    def size(self) -> int:
        """Count the symbols."""
        return len(self.symbols)

    def look_up(self, text: str) -> NDArray[np.int64]:
        """Turn characters into ids, -1 for those that the vocabulary lacks."""
        codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
        ids: NDArray[np.int64] = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        return ids

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, one a character; `UserError` naming a character that is missing, and its place."""
        ids = self.look_up(text)
        missing = np.flatnonzero(ids == _UNDEFINED)
        if len(missing):
            place = int(missing[0])
            raise UserError(
                f"the text holds {text[place]!a} (U+{ord(text[place]):04X}) at place {place}, counted from 0, and the "
                f"character vocabulary lacks it: it has only the {self.size} characters of its corpus"
            )
        return ids

    def decode(self, ids: ArrayLike) -> str:
        """Join the characters of ids."""
        return "".join(map(self.symbols.__getitem__, flat_ids(ids, size=self.size).tolist()))

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind, "symbols": list(self.symbols)}


def _utf8(text: str) -> bytes:
    try:
        # Undecodable bytes of a command line arrive as surrogates and leave as the bytes that they were.
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds U+{ord(text[error.start]):04X} at place {error.start}, which is half a character, "
            "and UTF-8 can write only whole ones"
        ) from None
