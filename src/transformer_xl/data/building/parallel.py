"""Work on a large text over all cores, in order, with a line now and then that says how far it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_SECONDS_BETWEEN_LINES = 10.0


class Telling:
    """Gives a line every ten seconds that says how much of something is done."""

    def __init__(self, doing: str, *, total: int, announce: Callable[[str], None]) -> None:
        self._doing, self._total, self._announce = doing, total, announce
        self._done = 0
        self._said = time.monotonic()

    def add(self, done: int) -> None:
        """Count what was done."""
        self._done += done
        if self._done < self._total and time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._announce(f"data: {self._doing}, {100 * self._done // self._total} %")


def in_order(
    work: Callable[[Job], Result], jobs: Sequence[Job], *, doing: str, announce: Callable[[str], None]
) -> Iterator[Result]:
    """Yield the result of each job, in order; where there are several, over the cores that this process may use.

    Args:
        work: a function of a module, its argument and result being such as can be sent to another process.
        jobs: its arguments, about equally long.
        doing: what is being done, for the lines.
        announce: gets a line every ten seconds.
    """
    telling = Telling(doing, total=len(jobs), announce=announce)
    workers = min(len(os.sched_getaffinity(0)), len(jobs))
    if workers < 2:
        for job in jobs:
            yield work(job)
            telling.add(1)
        return
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        for result in pool.map(work, jobs):
            yield result
            telling.add(1)
    except BrokenProcessPool as error:
        raise RuntimeError("a process that read text has ended; was memory short?") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
