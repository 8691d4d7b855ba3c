"""Sub-words: tokenizers that the library `tokenizers` reads from a `tokenizer.json` or learns here (byte-level BPE)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import hub, registry
from transformer_xl.data.tokenizer import (
    EOD,
    FORMAT,
    ByteDecoder,
    Decoder,
    Encoded,
    LearnSettings,
    Part,
    Tokenizer,
    character_border,
    flat_ids,
    json_value,
    readable,
    utf8,
)
from transformer_xl.errors import UserError, first_line

FILE = "tokenizer.json"
_ENDS_OF_DOCUMENTS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<eod>",
    "<|eos|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|im_end|>",
)
"""Special tokens that stand behind a text where a tokenizer has them, the first of them before the others."""
_LARGEST_BYTES = 256 << 20  # ten times the largest that is in use
_BYTES = 256 << 20  # ten times the largest that is in use
_ON_THE_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_BYTES = 256
"""Symbols that byte-level BPE begins with."""
_PART_BYTES = 1 << 16
"""Of a long text: so much of it at least is one piece of work."""
# Merging takes the square of a word's length, and a text can be one word: DNA, base64, a line of blanks.
_LONG_WORD = re.compile(r"\w{256}|\s{256}|[^\w\s]{256}")
_BORDER = re.compile(rb"(?<=[0-9A-Za-z\x80-\xff])(?:[ \t\r\n]|\xe3\x80[\x81\x82]|\xef\xbc[\x81\x8c\x9a\x9b\x9f])")
_WINDOW = 1 << 12
_WIDEST_BORDER = 3
_WIDEST_CHARACTER = 4
_PROBES = (
    ("The old cat", " sat, on 12"),
    ("in 1906", " it"),
    ("The end", "\nIt's"),
    ("1906", "\n\n\n  a"),
    ("cat", "\r\n\r\ndog"),
    ("cat", "   dog"),
    ("cat", "\tdog"),
    ("caf\u00e9", " \u0436\u0438\u0437\u043d\u044c"),
    ("\u4ed6\u8bf4", "\u3002\u5979\u8bf4"),
    ("\u732b", "\uff0c 12"),
)
"""Texts in two parts, cut as `last_border` cuts."""


@registry.register("tokenizer", "bpe")
class SubwordTokenizer(Tokenizer):
    """Sub-words of a `tokenizer.json`, which is part of the vocabulary's own JSON.

    It neither adds nor cuts off anything: no special tokens around a text, no padding, no dropout. Special tokens that
    stand in a text are text like any other.
    """

    kind = "bpe"
    unit = "bpb"
    sample_bytes = 200_000_000
    uses_all_cores = True

    def __init__(self, description: Mapping[str, object], *, end_of_document: int | None) -> None:
        """Load a tokenizer; `UserError` where it is damaged.

        Args:
            description: the contents of a `tokenizer.json`.
            end_of_document: an id of the tokenizer's, or the one after its last, or None.
        """
        model = description.get("model")
        if isinstance(model, dict) and model.get("dropout") is not None:
            model = model | {"dropout": None}
        # what would change ids from one text to the next, or one reading of it to another
        settled = {"truncation": None, "padding": None, "post_processor": None, "model": model}
        self.description: dict[str, Any] = {**description, **settled}
        self._tokenizer = _loaded(self.description)
        self._ids = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self._ids:
            raise UserError("the tokenizer has no sub-words, and must have at least 1")
        if end_of_document is not None and not 0 <= end_of_document <= self._ids:
            raise UserError(f"a document's end has the id {end_of_document}, and must have one from 0 to {self._ids}")
        self.end_of_document = self.start = end_of_document
        self.size = self._ids + (end_of_document == self._ids)
        number, name = self.description["model"].get("unk_id"), self.description["model"].get("unk_token")
        self.unknown = number if isinstance(number, int) else self._tokenizer.token_to_id(name) if name else None

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> SubwordTokenizer:
        """Return byte-level BPE that splits text as GPT-2 does; fewer sub-words where nothing comes twice any more."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        assert settings.bpe_size is not None
        if settings.bpe_size < _BYTES:
            raise UserError(f"data.bpe_size is {settings.bpe_size}, and must be at least {_BYTES}: each byte is one")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=settings.bpe_size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[],
        )
        # the library takes 256 texts at a time into memory
        tokenizer.train_from_iterator(_training_texts(parts), trainer)
        return cls(json.loads(tokenizer.to_str()), end_of_document=None)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> SubwordTokenizer:
        end = None if data.get("end_of_document") is None else json_value(data, "end_of_document", int)
        return cls(json_value(data, "tokenizer", dict), end_of_document=end)

    def to_json(self) -> dict[str, object]:
        end = {"end_of_document": self.end_of_document}
        return {"format": FORMAT, "kind": self.kind, "tokenizer": self.description} | end

    def with_end_of_document(self) -> SubwordTokenizer:
        return self if self.end_of_document is not None else self._ending_with(self._ids)

    def with_special(self) -> SubwordTokenizer:
        """Return the tokenizer with that special token of its own as the end of a document which stands behind texts.

        One that the tokenizer also finds in a text as text is none.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        for name in _ENDS_OF_DOCUMENTS:
            if name in special and not any(special[name] in self.encode(text) for text in (name, f"a {name} a{name}a")):
                return self._ending_with(special[name])
        return self

    def _ending_with(self, number: int) -> SubwordTokenizer:
        return SubwordTokenizer(self.description, end_of_document=number)

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        return character_border(data)

    def split_point(self, data: bytes) -> int:
        return last_border(data) if self._can_be_cut else 0

    def encode(self, text: str) -> NDArray[np.int64]:
        return self.encode_part(Part(utf8(text, restores_bytes=False))).ids

    def encode_part(self, part: Part) -> Encoded:
        return self.encode_parts([part])[0]

    def encode_parts(self, parts: Sequence[Part]) -> list[Encoded]:
        """Return several parts as ids, on all cores; a long one is cut where that changes nothing."""
        counts, texts = [], []
        for part in parts:
            self.text_of_bytes(part.data)
            pieces = [piece.decode() for piece in in_parts(part.data, self.split_point, size=_PART_BYTES)]
            counts.append(len(pieces))
            texts += pieces
        with _refusing("the tokenizer cannot say the text"):
            found = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        ends = np.cumsum(counts).tolist()
        ids = [
            np.concatenate([np.array(some, np.int64) for some in found[end - count : end]])
            for end, count in zip(ends, counts, strict=True)
        ]
        return [self._encoded(some, len(part.data)) for some, part in zip(ids, parts, strict=True)]

    def _encoded(self, ids: NDArray[np.int64], given: int) -> Encoded:
        known = ids if self.unknown is None else ids[ids != self.unknown]
        text_bytes = int(self._width_of_id[known].sum()) if self.is_of_bytes else len(self.decode(known).encode())
        return Encoded(ids, unknown=len(ids) - len(known), text_bytes=min(text_bytes, given))

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        numbers = flat_ids(ids, size=self.size)
        first, *others = np.split(numbers, np.flatnonzero(numbers == self.end_of_document))
        with _refusing("the tokenizer cannot write its ids as text"):
            texts = self._tokenizer.decode_batch(
                [some.tolist() for some in (first, *(some[1:] for some in others))], skip_special_tokens=False
            )
        return EOD.join(texts)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        if not self.is_of_bytes:
            return super().decode_bytes(ids)
        return b"".join(map(self._bytes_of, flat_ids(ids, size=self.size).tolist()))

    def decoder(self, after: Sequence[int] = ()) -> Decoder:
        # not the library's DecodeStream, which refuses ids whose text changes the one before, as drawn ids may
        return ByteDecoder(self, after=after) if self.is_of_bytes else super().decoder(after)

    def symbol(self, number: int) -> str:
        name = self._tokenizer.id_to_token(number)
        if number == self.end_of_document:
            return EOD
        if name is None:
            return f"#{number}"  # an id that the tokenizer leaves out
        if not self.is_of_bytes or not _byte_of_letter().keys() >= set(name):
            return readable(name)
        data = self._bytes_of(number)
        text = data.decode(errors="replace")
        return readable(ascii(data) if "\ufffd" in text else text)

    @cached_property
    def is_of_bytes(self) -> bool:
        """Whether the ids stand for bytes, as those of byte-level BPE do."""
        from tokenizers.decoders import ByteLevel

        return isinstance(self._tokenizer.decoder, ByteLevel)

    @cached_property
    def _width_of_id(self) -> NDArray[np.int64]:
        return np.array([len(self._bytes_of(number)) for number in range(self.size)], np.int64)

    def _bytes_of(self, number: int) -> bytes:
        if number == self.end_of_document:
            return EOD.encode()
        name = self._tokenizer.id_to_token(number) or ""  # an id that the tokenizer leaves out, in decoding too
        byte_of = _byte_of_letter()
        return bytes(map(byte_of.__getitem__, name)) if byte_of.keys() >= set(name) else name.encode()

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
        return all(self._words(left) + self._words(right) == self._words(left + right) for left, right in _PROBES)

    def _words(self, text: str) -> list[str]:
        normalizer = self._tokenizer.normalizer
        with _refusing("the tokenizer cannot split the text"):
            normal = text if normalizer is None else normalizer.normalize_str(text)
            return [word for word, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(normal)]

    def __getstate__(self) -> dict[str, Any]:
        return {"description": self.description, "end_of_document": self.end_of_document}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # the library's own copies take special tokens in a text for what they name
        self.__init__(**state)  # type: ignore[misc]


def load_pretrained(name: str) -> SubwordTokenizer:
    """Load a tokenizer of another program; one of its special tokens ends a document, if it has such a one.

    Args:
        name: a `tokenizer.json`, a folder that holds one, or `owner/name` or `owner/name@revision` on the Hub.

    Raises:
        UserError: there is none of that name, or it cannot be fetched, or is damaged.
    """
    try:
        path = local_path(name) or hub.fetch(name, [FILE]) / FILE
        if path.stat().st_size > _LARGEST_BYTES:
            raise UserError(f"it has more than {_LARGEST_BYTES >> 20} MB")
        contents = json.loads(path.read_bytes())
        if not isinstance(contents, dict):
            raise UserError("it must be a JSON object")
        return SubwordTokenizer(contents, end_of_document=None).with_special()
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"data.tokenizer is {name!r}, which is no {FILE}: {first_line(error)}") from error


def local_path(name: str) -> Path | None:
    """Return the file that a tokenizer's name stands for here; None where it is a name on the Hub."""
    path = Path(os.path.expanduser(name)).absolute()
    if path.is_dir():
        return path / FILE
    return path if path.exists() or not hub.NAME.fullmatch(name) or name.endswith(".json") else None


def last_border(data: bytes) -> int:
    """Return the last place in UTF-8 where a letter or digit ends a word; 0: there is none.

    The splitting of GPT-2, of cl100k, and of all that are made like them (Llama 3, Qwen, DeepSeek and others) ends a
    word of letters or digits where white space begins, whatever follows, and looks back at nothing from there; the same
    holds for the full-width stops of Chinese and Japanese. Behind a full stop or between two line ends they differ.
    """
    stop = len(data)
    while stop > 0:
        start = max(stop - _WINDOW, 0)
        # a border that begins in this window may end in the next
        places = [border.start() for border in _BORDER.finditer(data, start, stop + _WIDEST_BORDER - 1)]
        for place in reversed(places):
            before = data[max(place - _WIDEST_CHARACTER, 0) : place].decode("utf-8", errors="ignore")
            if data[place - 1] < 0x80 or before[-1:].isalnum():
                return place
        stop = start
    return 0


def in_parts(data: bytes, split_point: Callable[[bytes], int], *, size: int) -> Iterator[bytes]:
    """Yield UTF-8 in parts of at most `size` bytes where there are places to cut, else in larger ones."""
    start = 0
    while len(data) - start > size:
        width = size
        while not (cut := split_point(data[start : start + width])) and width < len(data) - start:
            width *= 4
        if not cut:
            break
        yield data[start : start + cut]
        start += cut
    yield data[start:]


def _training_texts(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        for piece in in_parts(part.data, last_border, size=_PART_BYTES):
            words = piece.decode()
            start = 0
            for word in _LONG_WORD.finditer(words):
                yield words[start : word.end()]
                start = word.end()
            yield words[start:]


def _loaded(description: Mapping[str, object]) -> Any:
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
def _byte_of_letter() -> dict[str, int]:
    """Return the byte for each letter that byte-level BPE writes it as: those with glyphs stay, the rest move up."""
    stay = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [value for value in range(_BYTES) if value not in stay]
    return {chr(value): value for value in stay} | {chr(_BYTES + rank): value for rank, value in enumerate(moved)}
