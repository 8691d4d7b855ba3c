"""Tokenizers: a text's bytes, characters or words as ids and back, learnt from documents, written as plain JSON.

What differs from one tokenizer to another is a method or an attribute of its class: nothing else asks for the class.
Here are the interface, bytes, characters and plain numbers; words are in `words`, sub-words in `subwords`. A tokenizer
from elsewhere is registered as these are, and defines what is abstract here.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import registry
from transformer_xl.errors import UserError, atomic_write

FORMAT = 1
"""Of a vocabulary's JSON."""
EOD = "<eod>"
"""What decoding writes for the end of a document."""
UNK = "<unk>"
_LACKING = -1
_END = 256
"""Stands among the bytes for the end of a document."""
_SHOWN_CHARACTERS = 40
_UNREADABLE = "\ufffd"
_CONTEXT = 8
"""Ids before the first that is decoded: more than the bytes of a character, and than any decoder here looks back at."""
_MOST_HELD = 16
"""Ids that may wait for the rest of a character."""

Value = TypeVar("Value")


class Part(NamedTuple):
    """A document, or a part of it that ends where the tokenizer's `split_point` says.

    Attributes:
        data: UTF-8, or any bytes where the tokenizer takes them.
        ends: whether the document ends here.
    """

    data: bytes
    ends: bool = True


class Encoded(NamedTuple):
    """A part as ids.

    Attributes:
        ids: one dimension.
        unknown: how many stand for something that the vocabulary lacks.
        text_bytes: how many of the part's bytes decoding gives back: what bits per byte are divided by.
    """

    ids: NDArray[Any]
    unknown: int
    text_bytes: int


class EncodeError(UserError):
    """A text that cannot be encoded.

    Attributes:
        problem: what is at the place, as the end of a sentence.
        byte: the place in the text's bytes, counted from 0.
    """

    def __init__(self, problem: str, byte: int) -> None:
        super().__init__(problem, byte)
        self.problem, self.byte = problem, byte

    def __str__(self) -> str:
        return f"the text at byte {self.byte}, counted from 0, {self.problem}"


@dataclass(frozen=True, kw_only=True)
class LearnSettings:
    """How a vocabulary is learnt; a tokenizer looks at what concerns it.

    Attributes:
        newline: `drop`: line ends are no symbols.
        lower_case: texts are taken in lower case.
        min_count: rarer words or characters are unknown.
        max_size: so many words or characters at most are counted; None: all.
        bpe_size: sub-words that are learnt.
    """

    newline: Literal["keep", "drop"] = "keep"
    lower_case: bool = False
    min_count: int = 1
    max_size: int | None = None
    bpe_size: int | None = None


class Decoder(ABC):
    """Writes ids as text while they come one by one: whole characters that no further id can change."""

    @abstractmethod
    def feed(self, number: int) -> str:
        """Return the text that is settled by the next id, which may be none."""

    @abstractmethod
    def finish(self) -> str:
        """Return what waits for more where no more comes; a part of a character is U+FFFD."""


class Tokenizer(ABC):
    """Texts as ids from 0 to `size` - 1.

    Attributes of a class:
        kind: the registered name.
        unit: of the score that belongs to the ids: `ppl` (words), `bpc` (characters, bytes) or `bpb` (sub-words).
        by_frequency: frequent symbols have small ids, as an adaptive softmax needs.
        any_bytes: texts may be any bytes, and need not be UTF-8.
        is_text: ids stand for text, and not for themselves.
        whole_characters: each id stands for whole characters.
        strips_newlines: with `newline=drop`, line ends are taken out of a text before it is encoded.
        learns_from_all: the vocabulary is that of all splits, not of the training split alone.
        sample_bytes: as much text as is learnt from, at most; None: all.
        uses_all_cores: encoding several parts uses all cores by itself.

    Attributes of a tokenizer:
        size: the number of ids.
        end_of_document: the id that ends a document, decoded to `<eod>`; None: there is none.
        start: the id that precedes a text in a corpus, the end of the document or line before; None: there is none.
        opening: the ids that stand before the first text of a split.
        unknown: the id of all that the vocabulary lacks; None: it lacks nothing, or refuses it.
        ends_lines: a symbol of its own ends every line, the last one of a document too.
        has_newlines: line ends are part of what ids stand for; text8 has none.
    """

    kind: ClassVar[str]
    unit: ClassVar[Literal["ppl", "bpc", "bpb"]]
    by_frequency: ClassVar[bool] = False
    any_bytes: ClassVar[bool] = False
    is_text: ClassVar[bool] = True
    whole_characters: ClassVar[bool] = False
    strips_newlines: ClassVar[bool] = False
    learns_from_all: ClassVar[bool] = False
    sample_bytes: ClassVar[int | None] = None
    uses_all_cores: ClassVar[bool] = False

    size: int
    end_of_document: int | None = None
    start: int | None = None
    opening: tuple[int, ...] = ()
    unknown: int | None = None
    ends_lines: bool = False
    has_newlines: bool = True

    @classmethod
    @abstractmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> Tokenizer:
        """Return the tokenizer of some documents, long ones in several parts cut at `learning_split_point`."""

    @classmethod
    @abstractmethod
    def from_json(cls, data: Mapping[str, object]) -> Tokenizer:
        """Return the tokenizer that `to_json` described; `UserError` saying what is wrong."""

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return what `from_json` needs as plain JSON values, `format` and `kind` among them."""

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the ids of a text that may go on, such as a prompt; `EncodeError` where the vocabulary lacks some."""

    @abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids: one dimension, each in [0, size)."""

    def with_end_of_document(self) -> Tokenizer:
        """Return the tokenizer with an id that ends documents behind the others; itself where it has one."""
        return self

    def extend(self, parts: Iterable[Part], settings: LearnSettings) -> Tokenizer:
        """Return the tokenizer with what it lacks of these documents behind its ids, which stay."""
        return self

    def for_split_text(self) -> Tokenizer:
        """Return what reads text whose words are split by blanks already, as in the paper's corpora, to these ids."""
        return self

    @classmethod
    def unfit(cls, text: str) -> str | None:
        """Return why a text, of which this is the beginning, is none for such a tokenizer; None: it will do."""
        return None

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        """Return the last place where a document may be cut for `learn`; 0: there is none.

        Args:
            data: may end inside a character.
        """
        return after_blank(data)

    def split_point(self, data: bytes) -> int:
        """Return the last place where a document may be cut so that the parts' ids are those of the whole; 0: none."""
        return self.learning_split_point(data)

    def text_of_bytes(self, data: bytes) -> str:
        """Return bytes as a text for `encode`; `EncodeError` where they are not UTF-8 and have to be."""
        return data.decode("utf-8", errors="surrogateescape") if self.any_bytes else utf8_text(data)

    def encode_part(self, part: Part) -> Encoded:
        """Return a part of a document as ids, without `end_of_document`; `EncodeError` as `encode`."""
        ids = self.encode(self.text_of_bytes(part.data))
        known = ids if self.unknown is None else ids[ids != self.unknown]
        text_bytes = min(len(self.decode_bytes(known)), len(part.data)) if self.is_text else 0
        return Encoded(ids, unknown=len(ids) - len(known), text_bytes=text_bytes)

    def encode_parts(self, parts: Sequence[Part]) -> list[Encoded]:
        """Return several parts as ids, at once where that is faster."""
        return [self.encode_part(part) for part in parts]

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """Return the bytes of ids, which need not be UTF-8."""
        return self.decode(ids).encode()

    def decoder(self, after: Sequence[int] = ()) -> Decoder:
        """Return a decoder of the ids that follow `after`, whose texts together are what decoding all of them adds."""
        return _WindowDecoder(self, after=after)

    def symbol(self, number: int) -> str:
        """Return one id's symbol for people: short, on one line."""
        return readable(self.decode([number]))

    def text_of(self, number: int) -> str:
        """Return one id's text as it stands; its symbol where that is none, or a part of a character."""
        text = self.decode([number])
        return self.symbol(number) if not text or _UNREADABLE in text else text

    def hash(self) -> str:
        """Return the sha256, in hex, of the canonical JSON."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file."""
        with atomic_write(Path(path)) as file:
            file.write(json.dumps(self.to_json(), ensure_ascii=False) + "\n")


def tokenizer_from_json(data: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.to_json` described; `UserError` saying what is wrong with it."""
    if data.get("format") != FORMAT:
        raise UserError(f"a vocabulary has format {data.get('format')!a}, and this version reads format {FORMAT}")
    cls: Any = registry.lookup("tokenizer", json_value(data, "kind", str)).factory
    tokenizer: Tokenizer = cls.from_json(data)
    return tokenizer


def load_vocabulary(path: str | os.PathLike[str]) -> Tokenizer:
    """Read a file that `Tokenizer.save` wrote; `UserError` naming the file where it is missing or malformed."""
    try:
        data = json.loads(Path(path).read_bytes())
        if not isinstance(data, dict):
            raise UserError("it must be a JSON object")
        return tokenizer_from_json(data)
    except OSError as error:
        raise UserError(f"the vocabulary {os.fspath(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{os.fspath(path)!r} is not a vocabulary that this program wrote: {error}") from error


def json_value(data: Mapping[str, object], name: str, kind: type[Value], default: Value | None = None) -> Value:
    """Return a value of a vocabulary's JSON; `UserError` where it is not of this type."""
    value = data.get(name, default)
    if type(value) is not kind:
        raise UserError(f"a vocabulary has {value!a:.40} under {name!r}, and must have a {kind.__name__} there")
    return value


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
    whole_characters = True
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
        widths = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
        if missing.any():
            if self.unknown is None:
                raise self._missing(text)
            ids[missing] = self.unknown
        text_bytes = min(int(widths[~missing].sum()), len(part.data))
        return Encoded(ids, unknown=int(missing.sum()), text_bytes=text_bytes)

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
    whole_characters = True

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


class ByteDecoder(Decoder):
    """For ids that stand for bytes: a character waits until its last byte is there."""

    def __init__(self, tokenizer: Tokenizer, *, after: Sequence[int]) -> None:
        self._bytes_of = tokenizer.decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(self._bytes_of(after[-_CONTEXT:]))

    def feed(self, number: int) -> str:
        return self._decoder.decode(self._bytes_of([number]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowDecoder(Decoder):
    """For ids whose text depends on a neighbour: each is decoded together with those that were written last."""

    def __init__(self, tokenizer: Tokenizer, *, after: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._ids = list(after[-_CONTEXT:])
        self._written = len(self._ids)

    def feed(self, number: int) -> str:
        self._ids.append(number)
        new = self.finish()
        is_open = not new or new.endswith(_UNREADABLE)
        if is_open and len(self._ids) - self._written < _MOST_HELD:
            return ""
        del self._ids[: self._written]
        self._written = len(self._ids)
        return new

    def finish(self) -> str:
        before = self._decode(self._ids[: self._written])
        return self._decode(self._ids)[len(before) :]


def character_border(data: bytes) -> int:
    """Return the last border of a UTF-8 character; where there is none within four bytes, the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 != 0x80:
            width = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return len(data) - back if width > back else len(data)
    return len(data)


def after_blank(data: bytes) -> int:
    r"""Return the place after the last `\n`, or else after the last blank or tab; 0: there is none."""
    return (data.rfind(b"\n") + 1) or max(data.rfind(b" "), data.rfind(b"\t")) + 1


def may_lack_some(symbols: Sequence[str], settings: LearnSettings) -> bool:
    """Whether symbols of the text may have been left out, so that there will be many unknown ones."""
    return settings.min_count > 1 or len(symbols) == settings.max_size


def readable(symbol: str) -> str:
    """Return a symbol as it is, or as a Python literal where it has blanks, marks without a letter, or no glyphs.

    Of a long one only the beginning is written.
    """
    bare = not symbol or symbol != symbol.strip() or unicodedata.category(symbol[0]).startswith("M")
    written = ascii(symbol) if bare or not symbol.isprintable() else symbol
    return written if len(written) <= _SHOWN_CHARACTERS else f"{written[: _SHOWN_CHARACTERS - 3]}..."


def flat_ids(ids: ArrayLike, *, size: int) -> NDArray[np.int64]:
    """Return ids as one flat array, each in [0, size)."""
    numbers = np.asarray(ids, np.int64).reshape(-1)
    assert not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < size), "ids lie in [0, size)"
    return numbers


def utf8_text(data: bytes) -> str:
    """Return the text that UTF-8 is; `EncodeError` naming the first byte that is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EncodeError(f"has the byte {data[error.start]:#04x}, which is not UTF-8 there", error.start) from None


def utf8(text: str, *, restores_bytes: bool) -> bytes:
    """Return the UTF-8 of a text; `EncodeError` naming half a character in it.

    Args:
        text: undecodable bytes of a command line arrive in it as surrogates.
        restores_bytes: whether those leave as the bytes that they were, or are refused too.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape" if restores_bytes else "strict")
    except UnicodeEncodeError as error:
        before = text[: error.start].encode("utf-8", errors="surrogateescape")
        code = f"U+{ord(text[error.start]):04X}"
        raise EncodeError(f"holds {code}, which is half a character", len(before)) from None


def _lacks(symbol: str, tokenizer: Tokenizer, what: str) -> str:
    listed = tokenizer.size - (tokenizer.end_of_document is not None)
    return f"holds {symbol}, which the vocabulary of {listed:,} {what} lacks"


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
