"""One process at a time trains in a run folder; a killed one gives its lock back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from transformer_xl.errors import UserError

_NAME = "run.lock"


@contextlib.contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; where the file system has no locks, hold nothing.

    Args:
        folder: of the run; it exists. The lock's file is gone when the lock is.

    Raises:
        UserError: another process holds it.
    """
    path = folder / _NAME
    handle = _locked(path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path, handle) from None
        except OSError:
            return handle  # no locks here
        if _is_still(handle, path):
            return handle
        os.close(handle)  # its holder has just ended, and has removed the file


def refuse_if_in_use(folder: Path) -> None:
    """Refuse a run folder in which a process trains, without touching it.

    Raises:
        UserError: which process it is.
    """
    path = folder / _NAME
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path, handle) from None
    except OSError:
        pass  # no locks here
    os.close(handle)


def _in_use(path: Path, handle: int) -> UserError:
    holder = os.read(handle, 1000).decode(errors="replace") or "another process"
    os.close(handle)
    return UserError(f"{path.parent} is in use by {holder}: wait until that run has ended, or stop it first")


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
