"""Vocabularies: the symbols that a model reads and predicts, and text to ids and back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabulary import Vocabulary as Vocabulary
from transformer_xl.data.vocabulary import flat_ids, require_symbols
from transformer_xl.errors import UserError

EOS = "<eos>"
UNK = "<unk>"
_FORMAT = 1
_UNDEFINED = -1


class Looked(NamedTuple):
    """Ids of words, and how many of the words became `<unk>` because the vocabulary lacks them."""

    ids: NDArray[np.int64]
    unknown: int


class ByteVocabulary(Vocabulary):
    """The 256 bytes."""

    kind = "byte"
    unit = "bpc"

    @property
    def size(self) -> int:
        """Count the symbols."""
        return 256

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into the bytes of its UTF-8."""
        try:
            # Undecodable bytes of a command line arrive as surrogates and leave as the bytes that they were.
            encoded = text.encode("utf-8", errors="surrogateescape")
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text holds U+{ord(text[error.start]):04X} at place {error.start}, which is half a character, "
                "and UTF-8 can write only whole ones"
            ) from None
        return np.frombuffer(encoded, np.uint8).astype(np.int64)

    def decode(self, ids: ArrayLike) -> str:
        """Read ids as UTF-8; a byte that is none becomes U+FFFD."""
        return flat_ids(ids, size=self.size).astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": _FORMAT, "kind": self.kind}


class CharVocabulary(Vocabulary):
    """Unicode characters, most frequent first; no end of line, no unknown."""

    kind = "char"
    unit = "bpc"

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

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, one a character; `UserError` naming a character that is missing, and its place."""
        codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
        ids: NDArray[np.int64] = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
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
        return {"format": _FORMAT, "kind": self.kind, "symbols": list(self.symbols)}


class WordVocabulary(Vocabulary):
    """Words as the published code splits them: by white space, `<eos>` (id 0) at every line's end, case kept."""

    kind = "word"
    unit = "ppl"

    def __init__(self, symbols: Sequence[str]) -> None:
        require_symbols(symbols)
        if symbols[0] != EOS or UNK not in symbols:
            raise UserError(f"a word vocabulary must begin with {EOS} and hold {UNK}")
        self.symbols = tuple(symbols)
        self._id_of_word = {word: number for number, word in enumerate(symbols)}

    @property
    def size(self) -> int:
        """Count the symbols."""
        return len(self.symbols)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, `<eos>` for every line end in it; unknown words become `<unk>`.

        A last line without a line end gets no `<eos>`, so that a prompt can stop inside a line; a corpus closes it.
        """
        return self.look_up(split_words(text.replace("\r\n", "\n").replace("\r", "\n"))).ids

    def look_up(self, words: Sequence[str]) -> Looked:
        """Turn words into ids, counting those that the vocabulary lacks."""
        found = map(self._id_of_word.get, words, repeat(_UNDEFINED))
        ids = np.fromiter(found, np.int64, count=len(words))
        unknown = ids == _UNDEFINED
        ids[unknown] = self._id_of_word[UNK]
        return Looked(ids=ids, unknown=int(unknown.sum()))

    def decode(self, ids: ArrayLike) -> str:
        """Join the words of ids by blanks, `<eos>` as a line end."""
        words = [self.symbols[number] for number in flat_ids(ids, size=self.size).tolist()]
        lines = " ".join("\n" if word == EOS else word for word in words)
        return lines.replace(" \n", "\n").replace("\n ", "\n")

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {"format": _FORMAT, "kind": self.kind, "symbols": list(self.symbols)}


class SymbolVocabulary(Vocabulary):
    """Numbers without a meaning, written as decimals with blanks between them."""

    kind = "symbol"
    unit = "bpc"

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
        return {"format": _FORMAT, "kind": self.kind, "size": self.size}


def split_words(text: str) -> list[str]:
    r"""Split text whose lines end in `\n` into words by white space, with `<eos>` for every line end."""
    return text.replace("\n", f" {EOS} ").split()


def vocabulary_from_json(data: Mapping[str, object]) -> Vocabulary:
    """Build the vocabulary that `to_json` described; `UserError` saying what is wrong with it."""
    kind, symbols, size = data.get("kind"), data.get("symbols"), data.get("size")
    if data.get("format") != _FORMAT:
        raise UserError(f"a vocabulary has format {data.get('format')!a}, and this version reads format {_FORMAT}")
    if kind == ByteVocabulary.kind:
        return ByteVocabulary()
    if kind == SymbolVocabulary.kind:
        if not isinstance(size, int) or isinstance(size, bool):
            raise UserError(f"a symbol vocabulary has size {size!a}, and must have a whole number")
        return SymbolVocabulary(size)
    if kind == CharVocabulary.kind or kind == WordVocabulary.kind:
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise UserError(f"a {kind} vocabulary needs a list of strings under 'symbols'")
        return CharVocabulary(symbols) if kind == CharVocabulary.kind else WordVocabulary(symbols)
    raise UserError(f"a vocabulary has kind {kind!a}, and must have byte, char, word or symbol")


def load_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """Read a vocabulary that `Vocabulary.save` wrote; `UserError` naming the file where it is missing or malformed."""
    try:
        data = json.loads(Path(path).read_bytes())
        if not isinstance(data, dict):
            raise UserError("it must be a JSON object")
        return vocabulary_from_json(data)
    except OSError as error:
        raise UserError(f"the vocabulary {os.fspath(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{os.fspath(path)!r} is not a vocabulary that this program wrote: {error}") from error
