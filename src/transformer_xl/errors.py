"""How a run ends when it does not simply finish, and how a file is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal
from uuid import uuid4


class UserError(ValueError):
    """A mistake of the user's: its text is one sentence that names the setting, its value, and what would be right."""


class DamagedError(UserError):
    """A file does not hold the bytes that were written to it: another copy of it may be whole."""


class Stopped(BaseException):  # no error: `except Exception` must let it pass
    """The run was asked to stop, or lost a process: the message says how to go on; `exit_code` is the process's."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in an operating-system error that does not: one of writing to, or reading from, an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def first_line(error: BaseException) -> str:
    """Return an error's text on one line of bounded length."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def atomic_write(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file that appears at `path` once the block has ended without an error, and not before.

    It is written under a temporary name beside `path`, flushed to the disk and renamed. Text is UTF-8, its line ends
    stay as they are. An error of the operating system names the file.
    """
    temporary = path.with_name(f".{path.name[:100]}.{uuid4().hex[:12]}.tmp")
    text = {"encoding": "utf-8", "newline": "\n"} if mode == "w" else {}
    try:
        with naming_file(path), temporary.open(mode, **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
