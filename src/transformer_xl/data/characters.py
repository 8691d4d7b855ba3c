"""Tokenizers of bytes, of characters, and of plain numbers; and what those have in common whose symbols are listed."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import registry
from transformer_xl.data.tokenizer import (
    EOD,
    FORMAT,
    UNK,
    Encoded,
    EncodeError,
    LearnSettings,
    Part,
    Tokenizer,
    after_blank,
    character_border,
    readable,
)
from transformer_xl.errors import UserError

_LACKING = -1
_END = 256
"""Stands among the bytes for the end of a document."""


@registry.register("tokenizer", "byte")
class ByteTokenizer(Tokenizer):
    """The 256 bytes, or some of them; the value 256 stands for the end of a document."""

    kind = "byte"
    unit = "bpc"
    any_bytes = True
    strips_newlines = True

    def __init__(self, values: Iterable[int] = range(_END), *, end_of_document: bool = False) -> None:
        self.values = (*values, *([_END] if end_of_document else []))
        if set(self.values) <= {_END} or len(set(self.values)) != len(self.values) or not 0 <= max(self.values) <= _END:
            raise UserError(f"a {self.kind} vocabulary must have numbers from 0 to {_END}, each once")
        self.size = len(self.values)
        self.end_of_document = self.start = self.values.index(_END) if _END in self.values else None
        self.has_newlines = bool(set(self.values) & set(b"\r\n"))
        self._value_of_id = np.array(self.values, np.int64)
        self._id_of_value = np.full(_END + 1, _LACKING, np.int64)
        self._id_of_value[self._value_of_id] = np.arange(self.size)

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> Self:
        return cls()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(end_of_document=bool(data.get("end_of_document")))

    def to_json(self) -> dict[str, object]:
        end = {} if self.end_of_document is None else {"end_of_document": True}
        return {"format": FORMAT, "kind": self.kind} | end

    def with_end_of_document(self) -> Self:
        return type(self)(self.values, end_of_document=_END not in self.values)

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        return len(data)

    def encode(self, text: str) -> NDArray[np.int64]:
        # undecodable bytes of a command line arrive as surrogates
        return self.encode_part(Part(text.encode("utf-8", errors="surrogateescape"))).ids

    def encode_part(self, part: Part) -> Encoded:
        ids = self._id_of_value[np.frombuffer(part.data, np.uint8)]
        if len(ids) and ids.min() == _LACKING:
            place = int(np.argmin(ids))
            raise EncodeError(_lacks(f"the byte {part.data[place]:#04x}", self, "bytes"), place)
        return Encoded(ids, unknown=0, text_bytes=len(ids))

    def decode(self, ids: ArrayLike) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        values = self._value_of_id[np.asarray(ids, np.int64)]
        first, *others = np.split(values.astype(np.uint8), np.flatnonzero(values == _END))
        return EOD.encode().join([first.tobytes(), *(document[1:].tobytes() for document in others)])


@registry.register("tokenizer", "ranked_byte")
class RankedByteTokenizer(ByteTokenizer):
    """The bytes that occur in a corpus, most frequent first, as the published code has them for enwik8."""

    kind = "ranked_byte"
    by_frequency = True
    learns_from_all = True

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> Self:
        counts: Counter[int] = Counter()  # breaks ties by first occurrence
        for part in parts:
            found = np.bincount(np.frombuffer(part.data, np.uint8), minlength=_END)
            for value in sorted(np.flatnonzero(found).tolist(), key=part.data.index):
                counts[value] += int(found[value])
        return cls([value for value, _ in counts.most_common()])

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["values"])

    def to_json(self) -> dict[str, object]:
        return {"format": FORMAT, "kind": self.kind, "values": list(self.values)}

    def extend(self, parts: Iterable[Part], settings: LearnSettings) -> Self:
        return type(self)(dict.fromkeys([*self.values, *self.learn(parts, settings).values]))


class ListedTokenizer(Tokenizer):
    """Symbols that are texts, by id, most frequent first; `<eod>` among them ends documents.

    Attributes:
        defaults: what may be chosen beside the symbols; it stands in the JSON where it differs from this, so that the
            hash of every other vocabulary stays what it was.
        unk: the symbol of all that is not listed.
    """

    by_frequency = True
    defaults: ClassVar[Mapping[str, bool]] = {}
    unk: ClassVar[str] = UNK

    def __init__(self, symbols: Sequence[str], **options: bool) -> None:
        if not symbols or len(set(symbols)) != len(symbols) or not all(isinstance(symbol, str) for symbol in symbols):
            raise UserError(f"a {self.kind} vocabulary must have symbols, which are texts, each once")
        self.symbols = tuple(symbols)
        self.options = {**self.defaults, **options}
        self.size = len(symbols)
        self.id_of_symbol = {symbol: number for number, symbol in enumerate(symbols)}
        self.end_of_document = self.start = self.id_of_symbol.get(EOD)
        self.unknown = self.id_of_symbol.get(self.unk)
        self._bytes_of_id = np.array([len(symbol.encode("utf-8", "replace")) for symbol in symbols], np.int64)

    @classmethod
    @abstractmethod
    def count(cls, parts: Iterable[Part], settings: LearnSettings, options: Mapping[str, bool]) -> list[str]:
        """Return the symbols of some documents that `settings` keep, in the order of their ids."""

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> Self:
        chosen = {"lower_case": settings.lower_case, "line_ends": settings.newline == "keep"}
        options = {name: chosen[name] for name in cls.defaults}
        return cls(cls.count(parts, settings, options), **options)

    def extend(self, parts: Iterable[Part], settings: LearnSettings) -> Self:
        found = [symbol for symbol in self.count(parts, settings, self.options) if symbol != self.unk]
        return type(self)(list(dict.fromkeys([*self.symbols, *found])), **self.options)

    def with_end_of_document(self) -> Self:
        return type(self)(list(dict.fromkeys([*self.symbols, EOD])), **self.options)

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        return after_blank(data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["symbols"], **{name: bool(data[name]) for name in cls.defaults if name in data})

    def to_json(self) -> dict[str, object]:
        options = {name: value for name, value in self.options.items() if value != self.defaults[name]}
        return {"format": FORMAT, "kind": self.kind, "symbols": list(self.symbols)} | options

    def text_bytes(self, ids: NDArray[np.int64]) -> int:
        return int(self._bytes_of_id[ids].sum())

    def symbol(self, number: int) -> str:
        return readable(self.symbols[number])

    def text_of(self, number: int) -> str:
        return self.symbols[number]


@registry.register("tokenizer", "char")
class CharTokenizer(ListedTokenizer):
    """Unicode characters, most frequent first, equally frequent ones by code point; no end of line.

    `<unk>` may stand for every character that is not listed, and `<eod>` for the end of a document: the only symbols
    that are not one character. With `lower_case`, texts become lower case as `str.lower` has it.
    """

    kind = "char"
    unit = "bpc"
    strips_newlines = True
    learns_from_all = True
    defaults: ClassVar[Mapping[str, bool]] = {"lower_case": False}

    def __init__(self, symbols: Sequence[str], **options: bool) -> None:
        super().__init__(symbols, **options)
        self.has_newlines = "\n" in self.symbols or "\r" in self.symbols
        characters = [number for number, symbol in enumerate(symbols) if symbol not in (UNK, EOD)]
        codes = np.array([ord(symbols[number]) for number in characters], np.int64)
        # one slot more than the highest code: where everything beyond the vocabulary is clipped to
        self._id_of_code = np.full(int(codes.max(initial=0)) + 2, _LACKING, np.int64)
        self._id_of_code[codes] = characters

    @classmethod
    def count(cls, parts: Iterable[Part], settings: LearnSettings, options: Mapping[str, bool]) -> list[str]:
        counts = np.zeros(0x110000, np.int64)
        for part in parts:
            text = part.data.decode()
            found = np.bincount(_codes(text.lower() if options["lower_case"] else text))
            counts[: len(found)] += found
        codes = np.flatnonzero(counts >= settings.min_count)
        ranked = codes[np.argsort(-counts[codes], kind="stable")][: settings.max_size].tolist()
        return [*([UNK] if may_lack_some(ranked, settings) else []), *map(chr, ranked)]

    def split_point(self, data: bytes) -> int:
        # what a capital sigma becomes in lower case depends on the letters beside it
        return after_blank(data) if self.options["lower_case"] else character_border(data)

    def encode(self, text: str) -> NDArray[np.int64]:
        codes = _codes(text.lower() if self.options["lower_case"] else text)
        ids = self._id_of_code.take(codes, mode="clip")
        missing = ids == _LACKING
        if missing.any():
            if self.unknown is None:
                place = int(np.argmax(missing))
                symbol = f"{chr(codes[place])!a} (U+{codes[place]:04X})"
                before = codes[:place].tobytes().decode("utf-32-le", errors="replace")
                raise EncodeError(_lacks(symbol, self, "characters"), len(before.encode()))
            ids[missing] = self.unknown
        return ids

    def decode(self, ids: ArrayLike) -> str:
        return "".join(map(self.symbols.__getitem__, np.asarray(ids).tolist()))


@registry.register("tokenizer", "symbol")
class SymbolTokenizer(Tokenizer):
    """Numbers without a meaning, written as decimals with blanks between them: token ids, and made-up tasks."""

    kind = "symbol"
    unit = "bpc"
    is_text = False

    def __init__(self, size: int, *, end_of_document: bool = False) -> None:
        self.size = int(size)
        self.end_of_document = self.start = self.size - 1 if end_of_document else None

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> SymbolTokenizer:
        raise UserError("data.tokenizer is 'symbol', whose numbers mean nothing: text needs another tokenizer")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SymbolTokenizer:
        return cls(data["size"], end_of_document=bool(data.get("end_of_document")))

    def to_json(self) -> dict[str, object]:
        end = {} if self.end_of_document is None else {"end_of_document": True}
        return {"format": FORMAT, "kind": self.kind, "size": self.size} | end

    def with_end_of_document(self) -> SymbolTokenizer:
        return SymbolTokenizer(self.size + 1, end_of_document=True) if self.end_of_document is None else self

    def encode(self, text: str) -> NDArray[np.int64]:
        words = text.split()
        numbers = self.size - (self.end_of_document is not None)
        for word in words:
            # the length bounds what int() is given; a longer number is no symbol anyway
            if not (word.isascii() and word.isdigit() and len(word) <= 18 and int(word) < numbers):
                raise UserError(f"the text holds {word!a}, and symbols are the numbers 0 to {numbers - 1}")
        return np.array([int(word) for word in words], np.int64)

    def decode(self, ids: ArrayLike) -> str:
        return " ".join(map(self.symbol, np.asarray(ids).tolist()))

    def symbol(self, number: int) -> str:
        return EOD if number == self.end_of_document else str(number)


def may_lack_some(symbols: Sequence[object], settings: LearnSettings) -> bool:
    """Whether symbols of the text may have been left out, so that there will be many unknown ones."""
    return settings.min_count > 1 or len(symbols) == settings.max_size


def _lacks(symbol: str, tokenizer: Tokenizer, what: str) -> str:
    listed = tokenizer.size - (tokenizer.end_of_document is not None)
    return f"holds {symbol}, which the vocabulary of {listed:,} {what} lacks"


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
