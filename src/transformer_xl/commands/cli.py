"""How every command runs: its job once, or handed to Hydra, as a sweep is; mistakes end in one line."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from transformer_xl import processes
from transformer_xl.commands.call import Call, library_sentence, read
from transformer_xl.errors import Stopped, UserError

MISTAKEN = 2
"""Exit status after a user's mistake."""
_INTERRUPTED = 130
_ERRORS_OF_FILES = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ),
    *(errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO),
}


def run(
    name: str,
    job: Callable[[Call], object],
    argv: Sequence[str] | None = None,
    *,
    config_dir: Path | None = None,
    sweep: Callable[[Call, list[str]], int] | None = None,
) -> int:
    """Read the command line and do the job: once, or for each job of a sweep in a process of its own.

    Args:
        name: of the command, and of its file in `conf/` without `.yaml`.
        job: what to do.
        argv: arguments without the program; those of this process by default.
        config_dir: another folder than the project's `conf/`.
        sweep: runs the jobs of a sweep and returns its exit status; None: the command has no sweeps.

    Returns:
        The exit status: 0, 1 for a bug or a sweep with a failed job, 2 for a user's mistake, or as a signal asks.
    """
    processes.spin_briefly()
    try:
        call, flags = read(name, [sys.argv[0], *(sys.argv[1:] if argv is None else argv)], config_dir=config_dir)
        if flags:
            if sweep is not None and not {"-m", "--multirun"}.isdisjoint(flags):
                return sweep(call, flags)
            hand_to_hydra(call, flags, print)
            return 0
        job(call)
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Stopped as stopped:
        print(one_line(str(stopped)), file=sys.stderr)
        return stopped.exit_code
    except SystemExit as leaving:
        if leaving.code is not None and not isinstance(leaving.code, int):
            raise
        return leaving.code or 0
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            traceback.print_exception(error)
            return 1
        return tell(sentence)


def hand_to_hydra(call: Call, flags: list[str], task: Callable[[Any], Any], more: Sequence[str] = ()) -> None:
    """Let Hydra compose, and do what its flags say.

    Args:
        call: the command.
        flags: of Hydra's.
        task: what Hydra calls for each job of a sweep.
        more: further overrides.
    """
    config_dirs = [flag for flag in call.flags if flag.startswith("--")]
    start = hydra.main(config_path=str(call.config_dir), config_name=call.name, version_base="1.3")(task)
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [call.command[0], *config_dirs, *flags, *call.overrides, *more]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised as they are
    try:
        start()
    finally:
        sys.argv = before[0]
        os.environ.pop("HYDRA_FULL_ERROR")
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


def tell(sentence: str) -> int:
    """Print a mistake's sentence on standard error; return the exit status that belongs to it."""
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return MISTAKEN


def one_line(text: str) -> str:
    """Write a sentence on one line; lines of code below it, which an empty line sets apart, stay lines."""
    sentence, gap, code = text.partition("\n\n")
    return " ".join(sentence.splitlines()) + gap + code


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence for a user's mistake, also where a library wrapped it; None: it is a bug."""
    reason: BaseException | None = error
    from_library = None
    while reason is not None:
        if isinstance(reason, UserError):
            return str(reason)
        if isinstance(reason, OSError) and reason.errno in _ERRORS_OF_FILES and reason.filename is not None:
            path = reason.filename if reason.filename2 is None else reason.filename2
            return f"{path if isinstance(path, int) else os.fsdecode(path)} cannot be used: {reason.strerror}"
        if not isinstance(reason, HydraException | OmegaConfBaseException):
            break
        from_library = from_library or library_sentence(reason)
        reason = reason.__cause__ or reason.__context__
    return from_library
