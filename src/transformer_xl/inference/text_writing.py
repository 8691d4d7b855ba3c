"""Drawn tokens turned into what is printed, until something ends the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from transformer_xl.data.tokenizer import Tokenizer

Ending = Literal["n_tokens", "stop", "document"]
"""What ended a text: its length, a stop string, the end of a document."""


class Writer(Protocol):
    """Writes tokens as text."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come; nothing is written from there on."""

    def feed(self, token: int) -> str:
        """Take the next token; give the text that can be printed now, which may be none."""

    def rest(self) -> str:
        """Give the text that waits for more, where no more comes."""


class StopFinder:
    """Passes a text through up to the first stop string that is complete; what may begin one waits."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty text stands everywhere"
        self._stops = tuple(stops)
        self._waiting = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take more text; give what stands before every stop string, whatever comes next."""
        text = self._waiting + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        self.stopped = bool(found)
        end = min(found)[1] if found else len(text) - self._begun(text)
        self._waiting = "" if found else text[end:]
        return text[:end]

    def rest(self) -> str:
        """Give the text that waits, where no more comes."""
        waiting, self._waiting = self._waiting, ""
        return waiting

    def _begun(self, text: str) -> int:
        """Count the characters at the end of a text with which a stop string may begin."""
        lengths = (length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
        return max(lengths, default=0)


class TextWriter:
    """Writes tokens as a vocabulary does, whole characters at a time, up to a stop string."""

    def __init__(self, vocabulary: Tokenizer, *, after: Sequence[int], stops: Sequence[str]) -> None:
        """Begin after other tokens.

        Args:
            vocabulary: of the tokens.
            after: the tokens before, which are not written.
            stops: texts that end this one; no part of them is written.
        """
        self._decoder = vocabulary.decoder(after)
        self._stops = StopFinder(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._stops.stopped

    def feed(self, token: int) -> str:
        """Take the next token; give the text that can be printed now."""
        return self._stops.feed(self._decoder.feed(token))

    def rest(self) -> str:
        """Give the text that waits for more."""
        last = self._stops.feed(self._decoder.finish())
        return last if self.stopped else last + self._stops.rest()


class NumberWriter:
    """Writes tokens as their numbers, with blanks between them."""

    stopped = False

    def __init__(self) -> None:
        self._blank = ""

    def feed(self, token: int) -> str:
        """Take the next token; give its number."""
        blank, self._blank = self._blank, " "
        return f"{blank}{token}"

    def rest(self) -> str:
        """Nothing waits."""
        return ""


class Growing:
    """A text that takes drawn tokens until something ends it.

    Attributes:
        tokens: those that it took, the end of a document not among them.
        ended: what ended it; None while it grows.
    """

    def __init__(self, writer: Writer, *, n_tokens: int, end: int | None) -> None:
        """Begin with no token.

        Args:
            writer: of the tokens.
            n_tokens: the most that are taken.
            end: the token that ends the text, and is not written; None: none does.
        """
        self._writer = writer
        self._n_tokens = n_tokens
        self._end = end
        self.tokens: list[int] = []
        self.ended: Ending | None = None

    def take(self, token: int) -> str:
        """Take the next token; give the text that can be printed now."""
        if token == self._end:
            self.ended = "document"
            return self._writer.rest()
        self.tokens.append(token)
        text = self._writer.feed(token)
        if not self._writer.stopped and len(self.tokens) == self._n_tokens:
            self.ended = "n_tokens"
            text += self._writer.rest()
        if self._writer.stopped:
            self.ended = "stop"
        return text
