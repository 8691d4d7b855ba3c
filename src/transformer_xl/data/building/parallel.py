"""Work on a large text over all cores, in order, with a line now and then that says how far it is."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_SECONDS_BETWEEN_LINES = 10.0
_PROGRAM = (
    "import pickle, sys; parent, sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from transformer_xl.data.building.parallel import serve; serve(parent)"
)


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
    if len(jobs) < 2 or _cores() < 2:
        yield from _with_lines(map(work, jobs), count=len(jobs), doing=doing, announce=announce)
        return
    workers = [_Worker() for _ in range(min(_cores(), len(jobs)))]
    free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in workers:
        free.put(worker)

    def do(job: Job) -> Result:
        worker = free.get()
        try:
            result: Result = worker.do(work, job)
            return result
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers)) as threads:
        try:
            yield from _with_lines(threads.map(do, jobs), count=len(jobs), doing=doing, announce=announce)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.end()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _with_lines(
    results: Iterator[Result], *, count: int, doing: str, announce: Callable[[str], None]
) -> Iterator[Result]:
    telling = Telling(doing, total=count, announce=announce)
    for result in results:
        yield result
        telling.add(1)


class _Worker:
    """Another process that does one job after another.

    It imports nothing from the current folder (`-P`). It is not one of `multiprocessing`: those run the user's own main
    program again, or inherit locks that threads hold.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send((os.getpid(), sys.path))

    def do(self, work: Callable[[Any], Any], job: Any) -> Any:
        """Do a job there; what it raises there is raised here."""
        assert self._process.stdout is not None
        try:
            self._send((work, job))
            succeeded, value = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            status = self._process.wait()
            raise RuntimeError(f"a process that read text ended with status {status}; was memory short?") from error
        if not succeeded:
            raise value
        return value

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()


def serve(parent: int) -> None:
    """Do jobs that come on standard input, until it ends or the process that sends them (`parent`) does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        while True:
            try:
                work, job = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                answer = True, work(job)
            except Exception as error:
                answer = False, error
            try:
                pickle.dump(answer, answers)
                answers.flush()
            except BrokenPipeError:  # nobody waits for it any more
                os._exit(1)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
