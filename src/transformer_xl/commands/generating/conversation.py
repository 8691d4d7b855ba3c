"""`generate.py interactive=true`: one text that a person and a model write in turn."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from transformer_xl.commands.closed_pipe import is_terminal, note, say, standard_input
from transformer_xl.commands.generating.prompts import Prompt, without_line_end
from transformer_xl.commands.generating.token_codecs import Codec
from transformer_xl.errors import UserError
from transformer_xl.inference.continuation import Continuation, continued
from transformer_xl.inference.text_writing import Growing

_ASK = ">>> "
_HELP_TEXT = "an empty line goes on; Ctrl-C stops an answer, and at the prompt ends the chat"
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
        self._codec = codec
        self._prompt = prompt
        self._n_tokens = n_tokens
        self._end = end
        self._continuation = begin()
        self._recent: deque[int] = deque(maxlen=_KEPT)
        self._ended_document = False
        if prompt.text:
            self._add(codec.tokens_of(prompt))

    @property
    def has_prompt(self) -> bool:
        """Whether something stands before the first line."""
        return bool(self._prompt.text)

    @property
    def shown_prompt(self) -> str:
        """Give what stands before the first line, as it is printed."""
        return self._codec.shown(self._prompt)

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


def converse(conversation: Conversation, *, echo: bool) -> None:
    """Answer the prompt where there is one, then lines, until there are no more, or the person ends it.

    Args:
        conversation: that begins.
        echo: whether its prompt is printed before what follows it.
    """
    note(_HELP_TEXT)
    if echo:
        say(conversation.shown_prompt)
    if conversation.has_prompt:
        _answer(conversation, "")
    while (line := _ask()) is not None:
        _answer(conversation, line)


def _answer(conversation: Conversation, line: str) -> None:
    try:
        pieces = conversation.answer(line)
    except UserError as mistake:
        note(f"error: {mistake}")
        return
    last = ""
    with _interruptible() as interrupted:
        for piece in pieces:
            say(piece)
            last = piece or last
            if interrupted():
                break
        is_stopped = interrupted()
    if not last.endswith("\n"):
        say("\n")
    if is_stopped:
        note("(stopped)")


def _ask() -> str | None:
    """Read a line without its end; None where there is none, or the person wants to leave."""
    is_typed = is_terminal(sys.stdin)
    try:
        if is_typed and is_terminal(sys.stdout):
            _load_editing()
            return input(_ASK)
        if is_typed:
            print(_ASK, end="", file=sys.stderr, flush=True)
        line = standard_input().readline()
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
