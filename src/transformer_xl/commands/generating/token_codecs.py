"""Between tokens and what people and programs type and read: texts of a vocabulary, or the tokens' numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_xl.commands.generating.prompts import Prompt
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.continuation import first_tokens
from transformer_xl.inference.generation import checked_ids
from transformer_xl.inference.text_writing import NumberWriter, TextWriter, Writer
from transformer_xl.model.base import LanguageModel


class Codec(ABC):
    """How prompts become tokens, and drawn tokens what is printed."""

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """Turn a prompt into tokens; an empty one into those that a text begins after.

        Raises:
            UserError: naming the prompt, where it cannot be said.
        """
        try:
            return self.encode(prompt.text) or self.beginning()
        except UserError as error:
            if str(error).startswith(f"{prompt.where} is "):
                raise
            raise UserError(f"{prompt.where}: {error}") from error

    @abstractmethod
    def shown(self, prompt: Prompt) -> str:
        """Give a prompt as it stands before what follows it."""

    @abstractmethod
    def encode(self, text: str | bytes) -> list[int]:
        """Turn a text into tokens, which may be none."""

    @abstractmethod
    def encode_after(self, text: str, last: int) -> list[int]:
        """Turn a further line into the tokens that put it behind a text whose last token is `last`."""

    @abstractmethod
    def beginning(self) -> list[int]:
        """Give the tokens that a text without a prompt begins after."""

    @abstractmethod
    def writer(self, *, after: Sequence[int]) -> Writer:
        """Begin to write the tokens that follow others."""


class TextCodec(Codec):
    """Texts, as a vocabulary says them."""

    def __init__(self, vocabulary: Tokenizer, *, stops: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._stops = stops

    def shown(self, prompt: Prompt) -> str:
        """Give a prompt as it is."""
        return prompt.text if isinstance(prompt.text, str) else prompt.text.decode("utf-8", errors="replace")

    def encode(self, text: str | bytes) -> list[int]:
        """Turn a text into tokens; bytes that are no UTF-8 are for vocabularies of bytes only."""
        if isinstance(text, bytes):
            text = self._vocabulary.text_of_bytes(text)
        tokens: list[int] = self._vocabulary.encode(text).tolist()
        return tokens

    def encode_after(self, text: str, last: int) -> list[int]:
        """Put a line behind a text: in a line of its own, where the vocabulary has line ends, else behind a blank."""
        opening = self.encode("")
        if opening:  # it stands between lines too
            tokens = self.encode(text)
            return tokens[len(opening) :] if opening == [last] else tokens
        for between in ("\n", " "):
            if self._is_said(between):
                return self.encode(text if self._vocabulary.decode([last]).endswith(between) else between + text)
        return self.encode(text)

    def beginning(self) -> list[int]:
        """Give the tokens that a text without a prompt begins after."""
        return first_tokens(self._vocabulary)

    def writer(self, *, after: Sequence[int]) -> TextWriter:
        """Begin to write the text of the tokens that follow others."""
        return TextWriter(self._vocabulary, after=after, stops=self._stops)

    def _is_said(self, text: str) -> bool:
        try:
            return self._vocabulary.decode(self._vocabulary.encode(text)) == text
        except UserError:
            return False


@dataclass(frozen=True, kw_only=True)
class NumberCodec(Codec):
    """The tokens' numbers, with blanks between them.

    Attributes:
        vocab_size: one more than the largest.
        vocabulary: says what a text begins after; None: a prompt is needed.
    """

    vocab_size: int
    vocabulary: Tokenizer | None

    def shown(self, prompt: Prompt) -> str:
        """Give numbers with a blank behind each."""
        return "".join(f"{word} " for word in _words(prompt.text))

    def encode(self, text: str | bytes) -> list[int]:
        """Read numbers between white space."""
        words = _words(text)
        for word in words:
            # the length bounds what int() is given; a longer number is no token anyway
            if not (word.isascii() and word.isdigit() and len(word) <= 18):
                raise UserError(f"{word!a} is no id, and with format=tokens a prompt must be ids, as in 12 7 9")
        return list(checked_ids([int(word) for word in words], vocab_size=self.vocab_size)) if words else []

    def encode_after(self, text: str, last: int) -> list[int]:
        """Read further numbers; nothing stands before them."""
        return self.encode(text)

    def beginning(self) -> list[int]:
        """Give the tokens that a text without a prompt begins after."""
        if self.vocabulary is None:
            raise UserError("prompt is null or empty, and the model has no vocabulary to begin a text: give ids")
        return first_tokens(self.vocabulary)

    def writer(self, *, after: Sequence[int]) -> NumberWriter:
        """Begin to write numbers."""
        return NumberWriter()


def _words(text: str | bytes) -> list[str]:
    return (text.decode("utf-8", errors="backslashreplace") if isinstance(text, bytes) else text).split()


def codec_of(model: LanguageModel, *, run: str, output_format: str, stops: Sequence[str]) -> Codec:
    """Give the codec for a model.

    Raises:
        UserError: texts of a model without a vocabulary.
    """
    vocabulary: Tokenizer | None = model.vocabulary
    if output_format == "tokens":
        return NumberCodec(vocab_size=model.vocab_size, vocabulary=vocabulary)
    if vocabulary is None:
        raise UserError(f"run={run} has no vocabulary, and cannot read or write text: give format=tokens")
    return TextCodec(vocabulary, stops=stops)
