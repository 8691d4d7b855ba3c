"""Sub-words: tokenizers that the library `tokenizers` reads from a `tokenizer.json` or learns here (byte-level BPE)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl import hub, registry
from transformer_xl.data.tokenizer import EOD, FORMAT, LearnSettings, Part, Tokenizer, character_border, readable
from transformer_xl.errors import UserError, first_line

FILE = "tokenizer.json"
_ENDS_OF_DOCUMENTS = (
    *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<eod>", "<|eos|>"),
    *("<\uff5cend\u2581of\u2581sentence\uff5c>", "<|im_end|>"),
)
"""Special tokens that stand behind a text where a tokenizer has them, the first of them before the others."""
# Merging takes the square of a word's length, and a text can be one word: DNA, base64, a line of blanks.
_LONG_WORD = re.compile(r"(\w{256}|\s{256}|[^\w\s]{256})")
# The splitting of GPT-2, of cl100k, and of all that are made like them (Llama 3, Qwen, DeepSeek and others) ends a
# word of letters or digits where white space begins, whatever follows, and looks back at nothing from there; the same
# holds for the full-width stops of Chinese and Japanese. Behind a full stop or between two line ends they differ.
_BORDER = "(?<=[^\\W_])(?=[ \t\r\n\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
_TO_LAST_BORDER = re.compile(f".*{_BORDER}", re.DOTALL)
_PIECES = re.compile(f".{{1,65536}}{_BORDER}|.+", re.DOTALL)


@registry.register("tokenizer", "bpe")
class SubwordTokenizer(Tokenizer):
    """Sub-words of a `tokenizer.json`, which is part of the vocabulary's own JSON.

    It neither adds nor cuts off anything: no special tokens around a text, no padding, no dropout. Special tokens that
    stand in a text are text like any other.
    """

    kind = "bpe"
    unit = "bpb"
    sample_bytes = 200_000_000

    def __init__(self, description: Mapping[str, Any], end_of_document: int | None) -> None:
        """Load the contents of a `tokenizer.json`; `end_of_document` is one of its ids or the one after its last."""
        from tokenizers import Tokenizer, decoders

        # what would change ids from one text to the next, or one reading of it to another
        model = {name: None if name == "dropout" else value for name, value in description["model"].items()}
        settled = {"truncation": None, "padding": None, "post_processor": None, "model": model}
        self.description: dict[str, Any] = {**description, **settled}
        self._tokenizer = Tokenizer.from_str(json.dumps(self.description))
        self._tokenizer.encode_special_tokens = True  # as what they are in the text: letters
        self._ids = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self._ids or (end_of_document is not None and not 0 <= end_of_document <= self._ids):
            raise UserError(f"the tokenizer has {self._ids} sub-words, and {end_of_document} ends a document")
        self.end_of_document = self.start = end_of_document
        self.size = self._ids + (end_of_document == self._ids)
        number, name = model.get("unk_id"), model.get("unk_token")
        self.unknown = number if isinstance(number, int) else self._tokenizer.token_to_id(name) if name else None
        self._is_of_bytes = isinstance(self._tokenizer.decoder, decoders.ByteLevel)

    def __reduce__(self) -> tuple[Any, ...]:
        # the library's own copies take special tokens in a text for what they name
        return SubwordTokenizer, (self.description, self.end_of_document)

    @classmethod
    def learn(cls, parts: Iterable[Part], settings: LearnSettings) -> SubwordTokenizer:
        """Return byte-level BPE that splits text as GPT-2 does; fewer sub-words where nothing comes twice any more."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        assert settings.bpe_size is not None
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
        # pieces, since the library takes 256 texts at a time into memory
        pieces = (piece for part in parts for piece in _PIECES.findall(part.data.decode()))
        tokenizer.train_from_iterator((text for piece in pieces for text in _LONG_WORD.split(piece)), trainer)
        return cls(json.loads(tokenizer.to_str()), None)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SubwordTokenizer:
        return cls(data["tokenizer"], data.get("end_of_document"))

    def to_json(self) -> dict[str, object]:
        end = {"end_of_document": self.end_of_document}
        return {"format": FORMAT, "kind": self.kind, "tokenizer": self.description} | end

    def with_end_of_document(self) -> SubwordTokenizer:
        return self if self.end_of_document is not None else SubwordTokenizer(self.description, self._ids)

    @classmethod
    def learning_split_point(cls, data: bytes) -> int:
        return character_border(data)

    def split_point(self, data: bytes) -> int:
        """Return the last place where a letter or digit ends a word; 0: none, or the tokenizer may look further."""
        if not self._is_of_bytes:
            return 0
        found = _TO_LAST_BORDER.match(data.decode("utf-8", errors="surrogateescape"))
        return len(found[0].encode("utf-8", errors="surrogateescape")) if found else 0

    def encode(self, text: str) -> NDArray[np.int64]:
        try:
            (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception as error:  # whatever the library raises
            raise UserError(f"the tokenizer cannot say the text: {first_line(error)}") from error
        return np.array(found.ids, np.int64)

    def text_bytes(self, ids: NDArray[np.int64]) -> int:
        return int(self._bytes_of_id[ids].sum()) if self._is_of_bytes else super().text_bytes(ids)

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        numbers = np.asarray(ids, np.int64).reshape(-1)
        first, *others = np.split(numbers, np.flatnonzero(numbers == self.end_of_document))
        documents = [first.tolist(), *(some[1:].tolist() for some in others)]
        return EOD.join(self._tokenizer.decode_batch(documents, skip_special_tokens=False))

    def symbol(self, number: int) -> str:
        text = self.decode([number])
        name = self._tokenizer.id_to_token(number) or f"#{number}"  # an id that the tokenizer leaves out
        return readable(text if text and "\ufffd" not in text else name)

    @cached_property
    def _bytes_of_id(self) -> NDArray[np.int64]:
        """Widths of byte-level sub-words, whose names have one letter per byte; of other tokens that of the name."""
        from tokenizers.pre_tokenizers import ByteLevel

        letters = set(ByteLevel.alphabet())
        names = [self._tokenizer.id_to_token(number) or "" for number in range(self.size)]
        return np.array([len(name if letters.issuperset(name) else name.encode()) for name in names], np.int64)


def load_pretrained(name: str) -> SubwordTokenizer:
    """Load a tokenizer of another program; one of its special tokens ends a document, if it has such a one.

    Args:
        name: a `tokenizer.json`, a folder that holds one, or `owner/name` or `owner/name@revision` on the Hub.

    Raises:
        UserError: there is none of that name, or it cannot be fetched, or is damaged.
    """
    try:
        path = local_path(name) or hub.fetch(name, [FILE]) / FILE
        description = json.loads(path.read_bytes())
        added = description["added_tokens"]
        ends = {token["content"]: token["id"] for token in added if token["special"]}
        return SubwordTokenizer(description, next((ends[name] for name in _ENDS_OF_DOCUMENTS if name in ends), None))
    except Exception as error:  # what the library makes of a wrong value
        raise UserError(f"data.tokenizer is {name!r}, which gives no {FILE}: {first_line(error)}") from error


def local_path(name: str) -> Path | None:
    """Return the file that a tokenizer's name stands for here; None where it is a name on the Hub."""
    path = Path(os.path.expanduser(name)).absolute()
    if path.is_dir():
        return path / FILE
    return path if path.exists() or not hub.NAME.fullmatch(name) or name.endswith(".json") else None
