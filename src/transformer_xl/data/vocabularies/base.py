"""What every vocabulary can do, whatever its symbols are."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.errors import UserError, naming_file

FORMAT = 1
"""Of a vocabulary's JSON."""
EOD = "<eod>"
"""The symbol that ends a document."""
UNK = "<unk>"
_SHOWN_CHARACTERS = 40


class Looked(NamedTuple):
    """Ids of symbols, and how many of the symbols the vocabulary lacks."""

    ids: NDArray[np.int64]
    unknown: int


class Vocabulary(ABC):
    """The symbols of a corpus, numbered from 0."""

    kind: ClassVar[str]
    unit: ClassVar[str]
    """Name of the score that belongs to these symbols: `bpc`, `bpb` or `ppl`."""
    by_frequency: ClassVar[bool]
    """Whether frequent symbols have small numbers, as an adaptive softmax needs; appended ones stand at the end."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Count the symbols."""

    @property
    @abstractmethod
    def end_of_document(self) -> int | None:
        """Give the id of the symbol that ends a document, None where there is none.

        No text is encoded to it, but for the word `<eod>` itself with a vocabulary of words; it is decoded to `<eod>`.
        """

    @abstractmethod
    def with_end_of_document(self) -> Vocabulary:
        """Give the same vocabulary with that symbol as its last id; itself where it has one."""

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids; `UserError` where the vocabulary cannot say it."""

    @abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Turn ids (one dimension, each in [0, size)) into text."""

    @abstractmethod
    def symbol(self, number: int) -> str:
        """Write the symbol of one id, in [0, size), for people: short, on one line."""

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values, which `vocabulary_from_json` reads."""

    def hash(self) -> str:
        """Return the sha256, in hex, of the vocabulary's canonical JSON."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as JSON to a temporary name beside `path`, then rename it."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with naming_file(target):
                temporary.write_text(json.dumps(self.to_json(), ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


class ListedSymbols(Vocabulary):
    """Symbols that are texts, by number; `<eod>` among them ends documents."""

    def __init__(self, symbols: Sequence[str]) -> None:
        require_symbols(symbols)
        self.symbols = tuple(symbols)
        self._end_of_document = self.symbols.index(EOD) if EOD in self.symbols else None

    @property
    def size(self) -> int:
        """Count the symbols."""
        return len(self.symbols)

    @property
    def end_of_document(self) -> int | None:
        """Give the id of `<eod>`, None where it is not listed."""
        return self._end_of_document

    @abstractmethod
    def extended(self, symbols: Sequence[str]) -> ListedSymbols:
        """Append symbols, keeping the numbers of the old ones."""

    def with_end_of_document(self) -> ListedSymbols:
        """Give the same vocabulary with `<eod>` as its last symbol; itself where it has it."""
        return self if self.end_of_document is not None else self.extended([EOD])

    def symbol(self, number: int) -> str:
        """Write a symbol as it is, or as a Python literal where that could not be read."""
        return readable(self.symbols[number])

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": FORMAT, "kind": self.kind, "symbols": list(self.symbols)}


def readable(symbol: str) -> str:
    """Write a symbol as it is, or as a Python literal where it has blanks, marks without a letter, or no glyphs.

    Of a long one only the beginning is written.
    """
    bare = not symbol or symbol != symbol.strip() or unicodedata.category(symbol[0]).startswith("M")
    written = ascii(symbol) if bare or not symbol.isprintable() else symbol
    return written if len(written) <= _SHOWN_CHARACTERS else f"{written[: _SHOWN_CHARACTERS - 3]}..."


def require_symbols(symbols: Sequence[str]) -> None:
    """Raise `UserError` for a list of symbols that is empty, names one twice, or has one that UTF-8 cannot write."""
    if not symbols:
        raise UserError("a vocabulary has no symbols, and must have at least 1")
    if len(set(symbols)) != len(symbols):
        raise UserError("a vocabulary names a symbol twice, and each must be named once")
    try:
        "".join(symbols).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"a vocabulary has a symbol with U+{ord(error.object[error.start]):04X}, which is half a character"
        ) from None


def flat_ids(ids: ArrayLike, *, size: int) -> NDArray[np.int64]:
    """Return ids as one flat array, each in [0, size)."""
    numbers = np.asarray(ids, np.int64).reshape(-1)
    assert not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < size), "ids lie in [0, size)"
    return numbers


def utf8(text: str, *, restores_bytes: bool) -> bytes:
    """Write a text as UTF-8; `UserError` naming half a character in it.

    Args:
        text: undecodable bytes of a command line arrive in it as surrogates.
        restores_bytes: whether those leave as the bytes that they were, or are refused too.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape" if restores_bytes else "strict")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds U+{ord(text[error.start]):04X} at place {error.start}, which is half a character, "
            "and UTF-8 can write only whole ones"
        ) from None
