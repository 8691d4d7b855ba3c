"""Standard streams that are closed: ending where nobody reads any more, as behind `| head`, or from the start."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TextIO


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Print in here; when standard output is closed, what follows is left out, and that is no mistake."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Let what is still to be written go nowhere, else Python complains about what it cannot write when it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a piece of text that is read at once.

    Raises:
        BrokenPipeError: nobody reads, or standard output was closed before the command began.
    """
    if sys.stdout is None:
        raise BrokenPipeError("standard output is closed")
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line for people, beside what a program reads."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def standard_input() -> BinaryIO:
    """Give the bytes of standard input; none where it was closed before the command began."""
    return io.BytesIO() if sys.stdin is None else sys.stdin.buffer


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether a standard stream, which may be closed, is a terminal."""
    return stream is not None and stream.isatty()
