"""Tokenizers: a text's bytes, characters or words as ids and back, learnt from documents, written as plain JSON.

What differs from one tokenizer to another is a method or an attribute of its class: nothing else asks for the class.
This is the interface; bytes and characters are in `characters`, words in `words`, sub-words in `subwords`. A tokenizer
from elsewhere is registered as these are, and defines what is abstract here.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import registry
from transformer_xl.errors import UserError, atomic_write, first_line

FORMAT = 1
"""Of a vocabulary's JSON."""
EOD = "<eod>"
"""What decoding writes for the end of a document."""
UNK = "<unk>"
_SHOWN_CHARACTERS = 40
_UNREADABLE = "\ufffd"
_CONTEXT = 8
"""Ids before the first that is decoded: more than the bytes of a character, and than any decoder here looks back at."""


class Part(NamedTuple):
    """A document, or a part of it that ends where the tokenizer's `split_point` says.

    Attributes:
        data: UTF-8, or any bytes where the tokenizer takes them; of a corpus of ids an array of them.
        ends: whether the document ends here.
        begins: whether it begins here.
        place: among all documents of a corpus, in bytes or ids.
    """

    data: Any
    ends: bool = True
    begins: bool = True
    place: int = 0


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
        super().__init__(f"the text {problem} (at byte {byte}, counted from 0)")
        self.problem, self.byte = problem, byte


@dataclass(frozen=True, kw_only=True)
class LearnSettings:
    """How a vocabulary is learnt, by the names of the group `data`; a tokenizer looks at what concerns it."""

    newline: Literal["keep", "drop"] = "keep"
    lower_case: bool = False
    min_count: int = 1
    max_size: int | None = None
    bpe_size: int | None = None


class Tokenizer(ABC):
    """Texts as ids from 0 to `size` - 1.

    Attributes of a class:
        kind: the registered name.
        unit: of the score that belongs to the ids: `ppl` (words), `bpc` (characters, bytes) or `bpb` (sub-words).
        by_frequency: frequent symbols have small ids, as an adaptive softmax needs.
        any_bytes: texts may be any bytes, and need not be UTF-8.
        is_text: ids stand for text, and not for themselves.
        strips_newlines: with `newline=drop`, line ends are taken out of a text before it is encoded.
        learns_from_all: the vocabulary is that of all splits, not of the training split alone.
        sample_bytes: as much text as is learnt from, at most; None: all.

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
    strips_newlines: ClassVar[bool] = False
    learns_from_all: ClassVar[bool] = False
    sample_bytes: ClassVar[int | None] = None

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
    def from_json(cls, data: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer that `to_json` described."""

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
    def learning_split_point(cls, data: bytes) -> int:
        """Return the last place where a document may be cut for `learn`; 0: none. It may end in a character."""
        return 0

    def split_point(self, data: bytes) -> int:
        """Return the last place where a document may be cut so that the parts' ids are those of the whole; 0: none."""
        return self.learning_split_point(data)

    def text_of_bytes(self, data: bytes) -> str:
        """Return bytes as a text for `encode`; `EncodeError` where they are not UTF-8 and have to be."""
        try:
            return data.decode("utf-8", errors="surrogateescape" if self.any_bytes else "strict")
        except UnicodeDecodeError as error:
            raise EncodeError(f"has the byte {data[error.start]:#04x}, which is not UTF-8 there", error.start) from None

    def encode_part(self, part: Part) -> Encoded:
        """Return a part of a document as ids, without `end_of_document`; `EncodeError` as `encode`."""
        ids = self.encode(self.text_of_bytes(part.data))
        known = ids if self.unknown is None else ids[ids != self.unknown]
        text_bytes = min(self.text_bytes(known), len(part.data)) if self.is_text else 0
        return Encoded(ids, unknown=len(ids) - len(known), text_bytes=text_bytes)

    def text_bytes(self, ids: NDArray[np.int64]) -> int:
        """Return how many bytes decoding ids gives."""
        return len(self.decode_bytes(ids))

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """Return the bytes of ids, which need not be UTF-8."""
        return self.decode(ids).encode()

    def decoder(self, after: Sequence[int] = ()) -> Decoder:
        """Return a decoder of the ids that follow `after`, whose texts together are what decoding all of them adds."""
        return Decoder(self, after[-_CONTEXT:])

    def symbol(self, number: int) -> str:
        """Return one id's symbol for people: short, on one line."""
        text = self.decode([number])
        return ascii(self.decode_bytes([number])) if _UNREADABLE in text else readable(text)

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


class Decoder:
    """Writes ids as text while they come one by one: whole characters that no further id can change."""

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int]) -> None:
        self._decode = tokenizer.decode
        self._ids = list(after)
        self._written = len(self._ids)

    def feed(self, number: int) -> str:
        """Return the text that is settled by the next id, which may be none."""
        self._ids.append(number)
        new = self.finish()
        if not new or new.endswith(_UNREADABLE):  # perhaps a part of a character
            return ""
        # an id is decoded together with those that were written last, on which its text may depend
        del self._ids[: self._written]
        self._written = len(self._ids)
        return new

    def finish(self) -> str:
        """Return what waits for more where no more comes; a part of a character is U+FFFD."""
        before = self._decode(self._ids[: self._written])
        return self._decode(self._ids)[len(before) :]


def tokenizer_from_json(data: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.to_json` described; `UserError` saying what is wrong with it."""
    if data.get("format") != FORMAT:
        raise UserError(f"a vocabulary has format {data.get('format')!a}, and this version reads format {FORMAT}")
    try:
        cls: Any = registry.lookup("tokenizer", str(data["kind"])).factory
        tokenizer: Tokenizer = cls.from_json(data)
        return tokenizer
    except Exception as error:  # what a constructor or a library makes of a wrong value
        raise UserError(f"a vocabulary of kind {data.get('kind')!a} is malformed: {first_line(error)}") from error


def load_vocabulary(path: str | os.PathLike[str]) -> Tokenizer:
    """Read a file that `Tokenizer.save` wrote; `UserError` naming the file where it is missing or malformed."""
    try:
        data = json.loads(Path(path).read_bytes())
        return tokenizer_from_json(data if isinstance(data, dict) else {})
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{os.fspath(path)!r} is not a vocabulary that this program wrote: {error}") from error


def character_border(data: bytes) -> int:
    """Return the place behind the last UTF-8 character that is whole, or whose bytes are none of UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data[-4:])
    return len(data) - len(decoder.getstate()[0])


def after_blank(data: bytes) -> int:
    r"""Return the place after the last `\n`, or else after the last blank or tab; 0: there is none."""
    return (data.rfind(b"\n") + 1) or max(data.rfind(b" "), data.rfind(b"\t")) + 1


def readable(symbol: str) -> str:
    """Return a symbol as it is, or as a Python literal where it has blanks or no glyphs; of a long one a part."""
    written = symbol if symbol.isprintable() and symbol.strip() == symbol != "" else ascii(symbol)
    return written if len(written) <= _SHOWN_CHARACTERS else f"{written[: _SHOWN_CHARACTERS - 3]}..."
