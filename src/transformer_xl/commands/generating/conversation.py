"""`generate.py interactive=true`: one text that a person and a model write in turn."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from transformer_xl.commands.closed_pipe import note, say
from transformer_xl.commands.generating.prompts import Prompt, without_line_end
from transformer_xl.commands.generating.token_codecs import Codec
from transformer_xl.errors import UserError
from transformer_xl.inference.continuation import Continuation, continued
from transformer_xl.inference.text_writing import Growing

_ASK = ">>> "
_RESET = "/reset"
_QUIT = "/quit"
_KEPT = 1024
"""Last tokens that are kept: what is written may depend on the line that it stands in."""


class Conversation:
    """A text that both have written; a further line of the person's stands below what the model wrote."""

    def __init__(
        self, begin: Callable[[], Continuation], codec: Codec, prompt: Prompt, *, n_tokens: int, end: int | None
    ) -> None:
        """Begin the text.

        Args:
            begin: gives an empty text of the model's.
            codec: between tokens and texts.
            prompt: what stands before the first line; may be empty.
            n_tokens: the most that the model writes in its turn.
            end: the token that ends its turn; None: none does.
        """
        self._begin = begin
        self._codec = codec
        self._prompt = prompt
        self._n_tokens = n_tokens
        self._end = end
        self.forget()

    def forget(self) -> None:
        """Begin anew, after the prompt."""
        self._continuation = self._begin()
        self._recent: deque[int] = deque(maxlen=_KEPT)
        self._ended_document = False
        if self._prompt.text:
            self._add(self._codec.tokens_of(self._prompt))

    def answer(self, line: str) -> Iterator[str]:
        """Put a line behind the text, and let the model go on; give what can be printed after each token.

        What stops early leaves the text as far as it has come.

        Args:
            line: without its end; empty: the model goes on with what is there.

        Raises:
            UserError: the vocabulary cannot say the line; the text stays as it was.
        """
        tokens = self._tokens_of(line)
        growing = Growing(self._codec.writer(after=[*self._recent, *tokens]), n_tokens=self._n_tokens, end=self._end)
        self._ended_document = False
        return self._answer(tokens, growing)

    def _answer(self, tokens: list[int], growing: Growing) -> Iterator[str]:
        self._recent.extend(tokens)
        for text in continued(self._continuation, tokens, growing):
            if growing.ended == "document":
                self._ended_document = True
            else:
                self._recent.append(growing.tokens[-1])
            yield text

    def _tokens_of(self, line: str) -> list[int]:
        if not self._recent:
            return self._codec.tokens_of(Prompt(where="the line", text=line))
        if line:
            return self._codec.encode_after(line, self._recent[-1])
        # the end of a document is read only where the model is told to go on behind it
        return [self._end] if self._ended_document and self._end is not None else []

    def _add(self, tokens: list[int]) -> None:
        self._continuation.add([tokens])
        self._recent.extend(tokens)


def converse(conversation: Conversation) -> None:
    """Ask for lines and print answers until there are no more lines, or the person ends it."""
    note(f"an empty line goes on, {_RESET} forgets, Ctrl-C stops an answer, {_QUIT} ends")
    while (line := _ask()) is not None and line != _QUIT:
        if line == _RESET:
            conversation.forget()
            continue
        try:
            pieces = conversation.answer(line)
        except UserError as mistake:
            note(f"error: {mistake}")
            continue
        last = ""
        with _interruptible() as interrupted:
            for piece in pieces:
                say(piece)
                last = piece or last
                if interrupted():
                    break
        if not last.endswith("\n"):
            say("\n")


def _ask() -> str | None:
    """Read a line without its end; None where there is none, or the person wants to leave."""
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            _load_editing()
            return input(_ASK)
        print(_ASK, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
    except (EOFError, KeyboardInterrupt):
        note("")
        return None
    return without_line_end(line).decode("utf-8", errors="surrogateescape") if line else None


def _load_editing() -> None:
    """Let the person edit a line, and find those before by the arrow keys, where the system has what it takes."""
    try:
        import readline  # noqa: F401 - its import is what does it
    except ModuleNotFoundError:
        return


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C in here be a wish, which the value tells of, so that no token is left half read."""
    wishes: list[int] = []

    def wish(number: int, frame: FrameType | None) -> None:
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)

    before = signal.signal(signal.SIGINT, wish)
    try:
        yield lambda: bool(wishes)
    finally:
        signal.signal(signal.SIGINT, before)
