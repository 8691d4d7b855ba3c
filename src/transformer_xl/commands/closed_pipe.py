"""Ending where nobody reads any more, as behind `| head`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Print in here; when standard output is closed, what follows is left out, and that is no mistake."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # else Python complains about what it cannot write when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a piece of text that is read at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line for people, beside what a program reads."""
    print(text, file=sys.stderr, flush=True)
