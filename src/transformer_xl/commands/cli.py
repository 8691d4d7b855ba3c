"""How every command runs: its job once, or handed to Hydra, as a sweep is; mistakes end in one line."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from transformer_xl import processes
from transformer_xl.commands.compose import Call, library_sentence, read
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
    check: Callable[[Call], object] | None = None,
) -> int:
    """Read the command line and do the job: once, or for each job of a sweep in a process of its own.

    Args:
        name: of the command, and of its file in `conf/` without `.yaml`.
        job: what to do.
        argv: arguments without the program; those of this process by default.
        config_dir: another folder than the project's `conf/`.
        check: of the first job of a sweep, before any starts: raises a UserError for settings that cannot be.

    Returns:
        The exit status: 0, 1 for a bug or a sweep with a failed job, 2 for a user's mistake, or as a signal asks.
    """
    processes.spin_briefly()
    try:
        call, flags = read(name, [sys.argv[0], *(sys.argv[1:] if argv is None else argv)], config_dir=config_dir)
        if flags:
            return _hand_to_hydra(call, flags, check)
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


def _hand_to_hydra(call: Call, flags: list[str], check: Callable[[Call], object] | None) -> int:
    """Let Hydra compose, and do what its flags say; each job of a sweep is a process of its own."""
    from transformer_xl.commands import sweep

    is_sweep = "-m" in flags or "--multirun" in flags
    if is_sweep and check is not None:
        check(_first_job(call))
    job = sweep.JobCommand.of_this_process(tuple(call.flags))
    config_dirs = [flag for flag in call.flags if flag.startswith("--")]
    start = hydra.main(config_path=str(call.config_dir), config_name=call.name, version_base="1.3")(sweep.Task(job))
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [call.command[0], *config_dirs, *flags, *call.overrides, *([sweep.SweepFolder.as_override()] * is_sweep)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # its errors are raised as they are
    status, interrupted = 0, False
    try:
        start()
    except sweep.SweepEnded as ended:
        status, interrupted = ended.exit_code, True
    except KeyboardInterrupt:
        status, interrupted = _INTERRUPTED, True
    finally:
        sys.argv = before[0]
        os.environ.pop("HYDRA_FULL_ERROR")
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]
        all_succeeded = sweep.finish(job.token)
    if interrupted:
        print(f"the sweep was stopped; go on with: {sweep.command_to_go_on(call.command)}", file=sys.stderr)
    return status or (0 if all_succeeded else 1)


def _first_job(call: Call) -> Call:
    """Return the first job of a sweep, but for what only its process finds out."""
    lines = []
    for override in OverridesParser.create().parse_overrides(call.overrides):
        is_swept = override.is_sweep_override()
        if override.key_or_group in ("row", "init_from") or (is_swept and not override.is_discrete_sweep()):
            continue
        value = next(override.sweep_string_iterator()) if is_swept else ""
        lines.append(f"{override.get_key_element()}={value}" if is_swept else str(override.input_line))
    return replace(call, overrides=lines)


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
