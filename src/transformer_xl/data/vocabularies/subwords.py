"""Sub-words, as a tokenizer of the library `tokenizers` finds them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.base import EOD, FORMAT, Vocabulary, flat_ids, readable, utf8
from transformer_xl.data.vocabularies.borders import PROBES, in_parts, last_border
from transformer_xl.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = 256
"""Symbols that byte-level BPE begins with."""
PART_BYTES = 1 << 16
"""Of a long text: so much of it at least is one piece of work."""
_UNSETTLED = ("truncation", "padding", "post_processor")


class SubwordVocabulary(Vocabulary):
    """Sub-words of a `tokenizers` tokenizer, whose `tokenizer.json` is part of the vocabulary's own JSON.

    It neither adds nor cuts off anything: no special tokens around a text, no padding, no dropout. Special tokens that
    stand in a text are text like any other.
    """

    kind = "bpe"
    unit = "bpb"
    by_frequency = False

    def __init__(self, tokenizer: Mapping[str, object], *, end_of_document: int | None) -> None:
        """Load a tokenizer.

        Args:
            tokenizer: the contents of a `tokenizer.json`.
            end_of_document: an id of the tokenizer's, or the one after its last, or None.

        Raises:
            UserError: it is damaged.
        """
        self._description = _settled(tokenizer)
        self._tokenizer = _loaded(self._description)
        self._ids = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self._ids:
            raise UserError("the tokenizer has no sub-words, and must have at least 1")
        if end_of_document is not None and not 0 <= end_of_document <= self._ids:
            raise UserError(f"a document's end has the id {end_of_document}, and must have one from 0 to {self._ids}")
        self._end_of_document = end_of_document
        model = self._description["model"]
        assert isinstance(model, dict), "the library has read it"
        number = model.get("unk_id")
        name = model.get("unk_token")
        self.unknown = number if isinstance(number, int) else self._tokenizer.token_to_id(name) if name else None
        """The id of what the tokenizer cannot say; None where it says everything."""

    @property
    def size(self) -> int:
        """Count the ids, those that the tokenizer leaves out among its own too."""
        return self._ids + (self._end_of_document == self._ids)

    @property
    def end_of_document(self) -> int | None:
        """Give the id that ends a document, None where there is none."""
        return self._end_of_document

    def with_end_of_document(self) -> SubwordVocabulary:
        """Give the same vocabulary with one more id that ends a document; itself where it has one."""
        return self if self._end_of_document is not None else self._ending_with(self._ids)

    def with_special(self, names: Iterable[str]) -> SubwordVocabulary:
        """Let the first of these that is a special token of the tokenizer's end a document.

        One that the tokenizer also finds in a text as text is none.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        for name in names:
            if name in special and not any(special[name] in self.encode(text) for text in (name, f"a {name} a{name}a")):
                return self._ending_with(special[name])
        return self

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids; `UserError` where it holds half a character."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Turn several texts into ids, on all cores; a long one is cut where that changes nothing."""
        parts: list[str] = []
        counts = []
        for text in texts:
            data = utf8(text, restores_bytes=False)
            before = len(parts)
            if len(data) > PART_BYTES:
                parts += [part.decode() for part in in_parts(data, self.cut, size=PART_BYTES)]
            else:
                parts.append(text)
            counts.append(len(parts) - before)
        with _refusing("the tokenizer cannot say the text"):
            encodings = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        found = iter([np.array(encoding.ids, np.int64) for encoding in encodings])
        return [np.concatenate([next(found) for _ in range(count)]) for count in counts]

    def decode(self, ids: ArrayLike) -> str:
        """Turn ids into text; bytes that are no UTF-8 become U+FFFD."""
        numbers = flat_ids(ids, size=self.size)
        if self._end_of_document is None:
            return self._decode(numbers)
        first, *others = np.split(numbers, np.flatnonzero(numbers == self._end_of_document))
        return EOD.join([self._decode(first), *(self._decode(document[1:]) for document in others)])

    def bytes_of(self, ids: ArrayLike) -> bytes:
        """Give the bytes that ids stand for where `is_of_bytes`, with `<eod>` for the end of a document."""
        assert self.is_of_bytes, "the ids of other tokenizers stand for characters"
        return b"".join(map(self._bytes_of_one, flat_ids(ids, size=self.size).tolist()))

    def is_lossless(self, text: str) -> bool:
        """Say whether a text comes back as it was when it is encoded and decoded."""
        return self.decode(self.encode(text)) == text

    def cut(self, data: bytes) -> int:
        """Find the last place where UTF-8 may be cut so that the ids of the parts are those of the whole; 0: nowhere.

        Args:
            data: may end inside a character.
        """
        return last_border(data) if self._can_be_cut else 0

    def symbol(self, number: int) -> str:
        """Write a sub-word, as a Python literal where it has blanks or is part of a character."""
        if number == self._end_of_document:
            return EOD
        name = self._tokenizer.id_to_token(number)
        if name is None:
            return f"#{number}"  # an id that the tokenizer leaves out
        byte_of = _bytes_by_letter()
        if not self.is_of_bytes or not byte_of.keys() >= set(name):
            return readable(name)
        data = bytes(map(byte_of.__getitem__, name))
        text = data.decode(errors="replace")
        return readable(ascii(data) if "\ufffd" in text else text)

    def to_json(self) -> dict[str, object]:
        """Describe the vocabulary as plain JSON values."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "tokenizer": self._description,
            "end_of_document": self._end_of_document,
        }

    def _ending_with(self, number: int) -> SubwordVocabulary:
        ending = copy.copy(self)
        ending._end_of_document = number
        return ending

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take the state of a copy; the library's own copies take special tokens in a text for what they name."""
        self.__dict__.update(state)
        self._tokenizer.encode_special_tokens = True

    def _decode(self, ids: NDArray[np.int64]) -> str:
        with _refusing("the tokenizer cannot write its ids as text"):
            return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def _bytes_of_one(self, number: int) -> bytes:
        if number == self._end_of_document:
            return EOD.encode()
        name = self._tokenizer.id_to_token(number)
        if name is None:
            return b""  # an id that the tokenizer leaves out, in decoding too
        byte_of = _bytes_by_letter()
        return bytes(map(byte_of.__getitem__, name)) if byte_of.keys() >= set(name) else name.encode()

    @cached_property
    def is_of_bytes(self) -> bool:
        """Whether the ids stand for bytes, as those of byte-level BPE do."""
        from tokenizers.decoders import ByteLevel

        return isinstance(self._tokenizer.decoder, ByteLevel)

    @cached_property
    def _can_be_cut(self) -> bool:
        """Whether the tokenizer splits the parts of a cut text as it splits the whole, before it looks for sub-words.

        Those that take a text as one word, or put something before its first one, do not.
        """
        if self._tokenizer.pre_tokenizer is None:
            return False
        for token in self._tokenizer.get_added_tokens_decoder().values():
            if not token.special and (token.lstrip or token.rstrip or last_border(token.content.encode())):
                return False
        return all(self._words(left) + self._words(right) == self._words(left + right) for left, right in PROBES)

    def _words(self, text: str) -> list[str]:
        normalizer = self._tokenizer.normalizer
        with _refusing("the tokenizer cannot split the text"):
            normal = text if normalizer is None else normalizer.normalize_str(text)
            return [word for word, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def _settled(tokenizer: Mapping[str, object]) -> dict[str, object]:
    """Leave out what would change ids from one text to the next, or one reading of it to another."""
    model = tokenizer.get("model")
    if isinstance(model, dict) and model.get("dropout") is not None:
        model = model | {"dropout": None}
    return {**tokenizer, **dict.fromkeys(_UNSETTLED), "model": model}


def _loaded(description: Mapping[str, object]) -> Tokenizer:
    from tokenizers import Tokenizer

    with _refusing("the tokenizer is damaged, or of a newer kind than is known here"):
        tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.encode_special_tokens = True  # as what they are in the text: letters
    return tokenizer


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn whatever the library raises into `UserError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # where a damaged file makes it panic, not even an `Exception`
        raise UserError(f"{what}: {(str(error).strip() or type(error).__name__).splitlines()[0]}") from error


@lru_cache(maxsize=1)
def _bytes_by_letter() -> dict[str, int]:
    """Give the byte for each letter that byte-level BPE writes it as: those with glyphs stay, the rest are moved up."""
    stay = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [value for value in range(BYTES) if value not in stay]
    return {chr(value): value for value in stay} | {chr(BYTES + rank): value for rank, value in enumerate(moved)}
