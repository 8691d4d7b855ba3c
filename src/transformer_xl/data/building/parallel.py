"""Work on a large text over all cores, in order, with a line now and then that says how far it is."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_SECONDS_BETWEEN_LINES = 10.0


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
    if len(jobs) < 2 or _cores() < 2:
        yield from _with_lines(map(work, jobs), count=len(jobs), doing=doing, announce=announce)
        return
    # A forked process may inherit locks that threads of torch or W&B hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(_cores(), len(jobs)), mp_context=context, initializer=_end_with, initargs=(os.getpid(),)
    ) as pool:
        try:
            yield from _with_lines(pool.map(work, jobs), count=len(jobs), doing=doing, announce=announce)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _with_lines(
    results: Iterator[Result], *, count: int, doing: str, announce: Callable[[str], None]
) -> Iterator[Result]:
    said = time.monotonic()
    for number, result in enumerate(results, start=1):
        yield result
        if number < count and time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            announce(f"data: {doing}, {100 * number // count} %")


def _end_with(parent: int) -> None:
    """Let this process end when the one that started it was killed, and leave Ctrl-C to that one."""
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
