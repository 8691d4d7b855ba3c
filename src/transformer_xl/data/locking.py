"""One process does what all of them need; the others say so and wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def only_one(path: Path, *, announce: Callable[[str], None], waiting: str) -> Iterator[None]:
    """Hold a lock that at most one process on this machine has, and that a killed one gives back.

    Where the file system has no locks, all may go on at once.

    Args:
        path: of the lock file; its folder is made. The file is left there.
        announce: gets `waiting` once, if another process has the lock.
        waiting: what to say.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(waiting)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # no locks here
        yield
    finally:
        os.close(handle)
