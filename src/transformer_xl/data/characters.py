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
    ByteDecoder,
    Decoder,
    Encoded,
    EncodeError,
    LearnSettings,
    Part,
    Tokenizer,
    after_blank,
    character_border,
    flat_ids,
    json_value,
    may_lack_some,
    readable,
    utf8,
)
from transformer_xl.errors import UserError

_LACKING = -1
_END = 256
"""Stands among the bytes for the end of a document."""


class _Bytes(Tokenizer):
    """Bytes by id; the value 256 stands for the end of a document."""

    unit = "bpc"
    any_bytes = True
    strips_newlines = True

    def __init__(self, values: Sequence[int]) -> None:
        if set(values) <= {_END} or len(set(values)) != len(values) or not all(0 <= value <= _END for value in values):
            raise UserError(
                f"a vocabulary of ranked bytes must name at least one number below 256, or {_END} for the end of a "
                "document, and each once"
            )
        self.values = tuple(values)
        self.size = len(values)
        self.end_of_document = self.start = self.values.index(_END) if _END in values else None
        self.has_newlines = bool(set(values) & set(b"\r\n"))
        self._value_of_id = np.array(values, np.int64)
        self._id_of_value = np.full(_END + 1, _LACKING, np.int64)
        self._id_of_value[self._value_of_id] = np.arange(len(values))

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        return len(data)

    def encode(self, text: str) -> NDArray[np.int64]:
        return self.encode_part(Part(utf8(text, restores_bytes=True))).ids

    def encode_part(self, part: Part) -> Encoded:
        ids = self._id_of_value[np.frombuffer(part.data, np.uint8)]
        if (missing := np.flatnonzero(ids == _LACKING)).size:
            raise EncodeError(_lacks(f"the byte {part.data[missing[0]]:#04x}", self, "bytes"), int(missing[0]))
        return Encoded(ids, unknown=0, text_bytes=len(ids))

    def decode(self, ids: ArrayLike) -> str:
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        values = self._value_of_id[flat_ids(ids, size=self.size)]
        first, *others = np.split(values.astype(np.uint8), np.flatnonzero(values == _END))
        return EOD.encode().join([first.tobytes(), *(document[1:].tobytes() for document in others)])

    def decoder(self, after: Sequence[int] = ()) -> Decoder:
        return ByteDecoder(self, after=after)

    def symbol(self, number: int) -> str:
        value = self.values[number]
        if value == _END:
            return EOD
        return readable(chr(value)) if value < 128 else ascii(bytes([value]))


@registry.register("tokenizer", "byte")
class ByteTokenizer(_Bytes):
    """The 256 bytes, and perhaps the end of a document behind them."""

    kind = "byte"

    def __init__(self, *, end_of_document: bool = False) -> None:
        super().__init__(range(_END + end_of_document))

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> ByteTokenizer:
        return cls()

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> ByteTokenizer:
        return cls(end_of_document=json_value(data, "end_of_document", bool, False))

    def to_json(self) -> dict[str, object]:
        end = {} if self.end_of_document is None else {"end_of_document": True}
        return {"format": FORMAT, "kind": self.kind} | end

    def with_end_of_document(self) -> ByteTokenizer:
        return ByteTokenizer(end_of_document=True)


@registry.register("tokenizer", "ranked_byte")
class RankedByteTokenizer(_Bytes):
    """The bytes that occur in a corpus, most frequent first, as the published code has them for enwik8."""

    kind = "ranked_byte"
    by_frequency = True
    learns_from_all = True

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> RankedByteTokenizer:
        counts: Counter[int] = Counter()  # breaks ties by first occurrence
        for part in parts:
            found = np.bincount(np.frombuffer(part.data, np.uint8), minlength=_END)
            for value in sorted(np.flatnonzero(found).tolist(), key=part.data.index):
                counts[value] += int(found[value])
        return cls([value for value, _ in counts.most_common()])

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> RankedByteTokenizer:
        values: list[Any] = json_value(data, "values", list)
        if not all(type(value) is int for value in values):
            raise UserError("a ranked_byte vocabulary needs a list of numbers under 'values'")
        return cls(values)

    def to_json(self) -> dict[str, object]:
        return {"format": FORMAT, "kind": self.kind, "values": list(self.values)}

    def with_end_of_document(self) -> RankedByteTokenizer:
        return self.extended([] if _END in self.values else [_END])

    def extended(self, values: Sequence[int]) -> RankedByteTokenizer:
        """Return the tokenizer with more values behind the others."""
        return RankedByteTokenizer([*self.values, *values])

    def extend(self, parts: Iterable[Part], settings: LearnSettings) -> RankedByteTokenizer:
        found = self.learn(parts, settings).values
        return self.extended([value for value in found if value not in self.values])


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
        if not symbols:
            raise UserError("a vocabulary has no symbols, and must have at least 1")
        if len(set(symbols)) != len(symbols):
            raise UserError("a vocabulary names a symbol twice, and each must be named once")
        utf8("".join(symbols), restores_bytes=False)
        assert options.keys() <= self.defaults.keys(), options
        self.symbols = tuple(symbols)
        self.options = {**self.defaults, **options}
        self.size = len(symbols)
        self.id_of_symbol = {symbol: number for number, symbol in enumerate(symbols)}
        self.end_of_document = self.start = self.id_of_symbol.get(EOD)
        self.unknown = self.id_of_symbol.get(self.unk)

    @classmethod
    def options_of(cls, settings: LearnSettings) -> dict[str, bool]:
        """Return the options that settings name."""
        chosen = {"lower_case": settings.lower_case, "line_ends": settings.newline == "keep"}
        return {name: chosen[name] for name in cls.defaults}

    @classmethod
    @abstractmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings, **options: bool) -> Self:
        """Return the tokenizer of some documents; options in place of what the settings name."""

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        return after_blank(data)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Self:
        symbols: list[Any] = json_value(data, "symbols", list)
        if not all(isinstance(symbol, str) for symbol in symbols):
            raise UserError(f"a {cls.kind} vocabulary needs a list of strings under 'symbols'")
        return cls(symbols, **{name: json_value(data, name, bool, value) for name, value in cls.defaults.items()})

    def to_json(self) -> dict[str, object]:
        options = {name: value for name, value in self.options.items() if value != self.defaults[name]}
        return {"format": FORMAT, "kind": self.kind, "symbols": list(self.symbols)} | options

    def with_end_of_document(self) -> Self:
        return self.extended([] if EOD in self.id_of_symbol else [EOD])

    def extended(self, symbols: Sequence[str]) -> Self:
        """Return the tokenizer with more symbols behind the others."""
        return type(self)([*self.symbols, *symbols], **self.options)

    def extend(self, parts: Iterable[Part], settings: LearnSettings) -> Self:
        found = self.learn(parts, settings, **self.options).symbols
        return self.extended([symbol for symbol in found if symbol not in {*self.symbols, self.unk}])

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
        if any(len(symbol) != 1 and symbol not in (UNK, EOD) for symbol in symbols):
            raise UserError(f"a character vocabulary holds a symbol that is neither one character nor {UNK} nor {EOD}")
        self.has_newlines = "\n" in self.symbols or "\r" in self.symbols
        characters = [number for number, symbol in enumerate(symbols) if len(symbol) == 1]
        codes = np.array([ord(symbols[number]) for number in characters], np.int64)
        # One slot more than the highest code: where everything beyond the vocabulary is clipped to.
        self._id_of_code = np.full(int(codes.max(initial=0)) + 2, _LACKING, np.int64)
        self._id_of_code[codes] = characters

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings, **options: bool) -> Self:
        options = options or cls.options_of(settings)
        counts = np.zeros(0x110000, np.int64)
        for part in parts:
            text = part.data.decode()
            found = np.bincount(_codes(text.lower() if options["lower_case"] else text))
            counts[: len(found)] += found
        codes = np.flatnonzero(counts >= settings.min_count)
        ranked = codes[np.argsort(-counts[codes], kind="stable")]
        characters = list(map(chr, ranked[: settings.max_size].tolist()))
        return cls([*([UNK] if may_lack_some(characters, settings) else []), *characters], **options)

    def split_point(self, data: bytes) -> int:
        # what a capital sigma becomes in lower case depends on the letters beside it
        return after_blank(data) if self.options["lower_case"] else character_border(data)

    def encode(self, text: str) -> NDArray[np.int64]:
        return self.encode_part(Part(utf8(text, restores_bytes=False))).ids

    def encode_part(self, part: Part) -> Encoded:
        text = self.text_of_bytes(part.data)
        codes = _codes(text.lower() if self.options["lower_case"] else text)
        ids = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        missing = ids == _LACKING
        if not missing.any() and not self.options["lower_case"]:
            return Encoded(ids, unknown=0, text_bytes=len(part.data))
        if missing.any():
            if self.unknown is None:
                raise self._missing(text)
            ids[missing] = self.unknown
        known = codes[~missing]
        widths = len(known) + sum(int((known > last).sum()) for last in (0x7F, 0x7FF, 0xFFFF))
        return Encoded(ids, unknown=int(missing.sum()), text_bytes=min(widths, len(part.data)))

    def _missing(self, text: str) -> EncodeError:
        lowers = self.options["lower_case"]
        lacking = (
            place
            for place, character in enumerate(text)
            if any(one not in self.id_of_symbol for one in (character.lower() if lowers else character))
        )
        place = next(lacking)
        symbol = f"{text[place]!a} (U+{ord(text[place]):04X})"
        return EncodeError(_lacks(symbol, self, "characters"), len(text[:place].encode()))

    def decode(self, ids: ArrayLike) -> str:
        return "".join(map(self.symbols.__getitem__, flat_ids(ids, size=self.size).tolist()))


@registry.register("tokenizer", "symbol")
class SymbolTokenizer(Tokenizer):
    """Numbers without a meaning, written as decimals with blanks between them: token ids, and made-up tasks."""

    kind = "symbol"
    unit = "bpc"
    is_text = False

    def __init__(self, size: int, *, end_of_document: bool = False) -> None:
        if size - end_of_document < 1:
            raise UserError(f"a symbol vocabulary has size {size}, and must have at least 1 symbol that is no end")
        self.size = size
        self.end_of_document = self.start = size - 1 if end_of_document else None

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> SymbolTokenizer:
        raise UserError("data.tokenizer is 'symbol', whose numbers mean nothing: text needs another tokenizer")

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> SymbolTokenizer:
        ends = json_value(data, "end_of_document", bool, False)
        return cls(json_value(data, "size", int), end_of_document=ends)

    def to_json(self) -> dict[str, object]:
        end = {} if self.end_of_document is None else {"end_of_document": True}
        return {"format": FORMAT, "kind": self.kind, "size": self.size} | end

    def with_end_of_document(self) -> SymbolTokenizer:
        return SymbolTokenizer(self.size + 1, end_of_document=True) if self.end_of_document is None else self

    def encode(self, text: str) -> NDArray[np.int64]:
        words = text.split()
        numbers = self.size - (self.end_of_document is not None)
        for word in words:
            # The length bounds what int() is given; a longer number is no symbol anyway.
            if not (word.isascii() and word.isdigit() and len(word) <= 18 and int(word) < numbers):
                raise UserError(f"the text holds {word!a}, and symbols are the numbers 0 to {numbers - 1}")
        return np.array([int(word) for word in words], np.int64)

    def decode(self, ids: ArrayLike) -> str:
        return " ".join(map(self.symbol, flat_ids(ids, size=self.size).tolist()))

    def symbol(self, number: int) -> str:
        return EOD if number == self.end_of_document else str(number)


def _lacks(symbol: str, tokenizer: Tokenizer, what: str) -> str:
    listed = tokenizer.size - (tokenizer.end_of_document is not None)
    return f"holds {symbol}, which the vocabulary of {listed:,} {what} lacks"


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
