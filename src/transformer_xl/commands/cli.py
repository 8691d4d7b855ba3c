"""How every command runs and ends: its work once, or as a sweep; a mistake ends in one line."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO, cast

import yaml

from transformer_xl import processes
from transformer_xl.commands.call import Call, read
from transformer_xl.errors import Stopped, UserError


class _Screen:
    """A standard stream that swallows what cannot be written any more, as after `| head -1` or a lost terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main(work: Callable[[], int], *, outlives_screen: bool = False) -> NoReturn:
    """Do a command's work, and exit with its status; `outlives_screen`: also where nobody reads what it prints."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the command began
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text may hold what the terminal cannot show
    if outlives_screen:
        sys.stdout, sys.stderr = cast(TextIO, _Screen(sys.stdout)), cast(TextIO, _Screen(sys.stderr))
    sys.exit(work())


def run(
    name: str,
    job: Callable[[Call], object],
    argv: Sequence[str] | None = None,
    *,
    sweep: Callable[[Call, Callable[[Call], object]], int] | None = None,
) -> int:
    """Read the command line and do what it asks for; return the exit status, as `ended` does.

    Args:
        name: of the command, and of its file in `conf/`.
        job: the command's work.
        argv: arguments without the program; those of this process by default.
        sweep: runs the jobs of a sweep, each by `job`, and returns its exit status; None: the command has no sweeps.
    """

    def work() -> int:
        call = read(name, [sys.argv[0], *(sys.argv[1:] if argv is None else argv)])
        if call.shows and call.is_sweep:
            call = call.jobs()[0]
        if call.shows == "help":
            print(call.help())
        elif call.shows:
            print(yaml.safe_dump(call.values(call.compose()), sort_keys=False, allow_unicode=True))
        elif call.is_sweep:
            if sweep is None:
                raise UserError(f"--multirun sweeps over training runs, and {name} has none: call it for each value")
            return sweep(call, job)
        else:
            job(call)
        return 0

    return ended(work)


def ended(work: Callable[[], int]) -> int:
    """Do a command's work, say why it ended, and return the exit status.

    Returns:
        That of the work; 1 after a bug, 2 after a user's mistake, 0 where nobody reads standard output any more, or as
        a signal asks.
    """
    processes.spin_briefly()
    try:
        status = work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Stopped as stopped:
        print(_one_line(str(stopped)), file=sys.stderr)
        return stopped.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or else Python complains when it ends
        return 0
    except Exception as error:
        sentence = _sentence_of(error)
        if sentence is None:
            traceback.print_exception(error)
            return 1
        print(f"error: {_one_line(sentence)}", file=sys.stderr)
        return 2
    return status


def _one_line(text: str) -> str:
    sentence, gap, code = text.partition("\n\n")  # lines of code below a sentence stay lines
    return " ".join(sentence.splitlines()) + gap + code


def _sentence_of(error: Exception) -> str | None:
    """Return the sentence for a user's mistake; None: it is a bug."""
    if isinstance(error, OSError) and error.filename is not None:
        path = error.filename if error.filename2 is None else error.filename2
        return f"{path if isinstance(path, int) else os.fsdecode(path)} cannot be used: {error.strerror}"
    return str(error) if isinstance(error, UserError) else None
