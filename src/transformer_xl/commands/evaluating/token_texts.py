"""The text of tokens one by one, as their vocabulary writes them in a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from transformer_xl.data.tokenizer import Vocabulary
from transformer_xl.data.vocabularies.base import ListedSymbols

_REPLACEMENT = "\ufffd"
_MOST_PARTS = 4
"""Tokens of which one character can be made: UTF-8 writes none in more than four bytes."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Piece(Generic[Value]):
    """A text, and the tokens that make it: one, or several that together are a character.

    Attributes:
        text: as it stands among the others, with the blank before a word; of what is no text, the token's symbol.
        tokens: ids, each with what was given for it.
        is_text: whether `text` is part of the text; a lone part of a character is not.
    """

    text: str
    tokens: tuple[tuple[int, Value], ...]
    is_text: bool


class TokenTexts(Generic[Value]):
    """Cuts a text into its tokens; what a token means may only be known when the next ones are.

    The texts of all pieces, but for parts of characters, make up what the vocabulary's `decode` gives for all tokens
    together, as long as it writes them one after another, each with a look at no more than the one before.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._are_texts = isinstance(vocabulary, ListedSymbols)
        self._before: list[int] = []
        self._waiting: list[tuple[int, Value]] = []

    def add(self, number: int, value: Value) -> Iterator[Piece[Value]]:
        """Take the next token, and give the pieces that are known by it."""
        self._waiting.append((number, value))
        yield from self._known(at_end=False)

    def finish(self) -> Iterator[Piece[Value]]:
        """Give what is left at the end of the text."""
        yield from self._known(at_end=True)

    def _known(self, *, at_end: bool) -> Iterator[Piece[Value]]:
        while self._waiting:
            text = self._text_of_waiting()
            if _REPLACEMENT not in text or self._are_texts:
                yield Piece(text, tuple(self._waiting), is_text=True)
                self._before = [number for number, _ in self._waiting]
                self._waiting = []
            elif not at_end and text.endswith(_REPLACEMENT) and len(self._waiting) < _MOST_PARTS:
                return  # the next tokens may complete a character
            else:
                number, value = self._waiting.pop(0)
                yield Piece(self._vocabulary.symbol(number), ((number, value),), is_text=False)
                self._before = []  # what it is part of must not hide the next part
                again, self._waiting = self._waiting, []
                for token in again:
                    yield from self.add(*token)

    def _text_of_waiting(self) -> str:
        """Write the waiting tokens as they stand behind the ones before them."""
        ids = [number for number, _ in self._waiting]
        before = self._vocabulary.decode(self._before)
        both = self._vocabulary.decode(self._before + ids)
        if both.startswith(before):
            return both[len(before) :]
        alone = self._vocabulary.decode(ids)  # they change the one before; whether a blank lies between them is known
        return f" {alone}" if both.endswith(f" {alone}") else alone
