"""Several processes that read one split, each some of its lanes, on the same machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from transformer_xl.commands.evaluating.shares import Opened, Progress, Share, Subject, read_share
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import split_evenly
from transformer_xl.errors import LostProcess, UserError

_SECONDS_BETWEEN_LOOKS = 1.0


class Readers:
    """This process, which reads the first share, and the others.

    Attributes:
        processes: how many read.
    """

    def __init__(self, others: Sequence[_Other]) -> None:
        self.processes = 1 + len(others)
        self._others = others

    def read(
        self,
        subject: Subject,
        opened: Opened,
        *,
        split: str,
        lengths: EvalConfig,
        max_tokens: int | None,
        progress: Progress,
    ) -> Share:
        """Read a split, each process some of its lanes.

        Raises:
            UserError: the split is too short, or there are more processes than lanes.
            LostProcess: another process has ended.
        """
        if self.processes > lengths.batch_size:
            raise UserError(
                f"eval.processes is {self.processes}, and must be at most eval.batch_size {lengths.batch_size}: each "
                "reads lanes of its own"
            )
        first, *rest = split_evenly(lengths.batch_size, self.processes)
        for number, (other, lanes) in enumerate(zip(self._others, rest, strict=True), start=1):
            other.ask(_Task(_on_device(subject, number), split, lengths, lanes, max_tokens))
        own = read_share(opened, split=split, lengths=lengths, lanes=first, max_tokens=max_tokens, progress=progress)
        return reduce(Share.__add__, [own, *(other.answer() for other in self._others)])


@contextmanager
def readers(processes: int) -> Iterator[Readers]:
    """Start processes, which share this one's cores, and end them."""
    threads = torch.get_num_threads()
    each = max(1, threads // processes)
    torch.set_num_threads(each)
    others: list[_Other] = []
    try:
        for _ in range(processes - 1):
            others.append(_Other(threads=each))
        yield Readers(others)
    finally:
        for other in others:
            other.end()
        torch.set_num_threads(threads)


class _Task(NamedTuple):
    """What another process is asked to read."""

    subject: Subject
    split: str
    lengths: EvalConfig
    lanes: range
    max_tokens: int | None


class _Other:
    """Another process that reads; it ends with this one, however that does."""

    def __init__(self, *, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, threads, os.getpid()), daemon=True)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process hears it too, and ends that one
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()

    def ask(self, task: _Task) -> None:
        """Let it begin to read."""
        self._connection.send(task)

    def answer(self) -> Share:
        """Wait for what it has read.

        Raises:
            LostProcess: it has ended.
            Exception: what it has met.
        """
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise LostProcess("a process that read for this one has ended: killed, or out of memory") from error
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Share)
        return answer

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.terminate()
        self._process.join()


def _serve(connection: Connection, threads: int, parent: int) -> None:
    """Answer the tasks of the process that started this one, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(threads)
    known: tuple[Subject, Opened] | None = None
    while True:
        try:
            subject, split, lengths, lanes, max_tokens = connection.recv()
        except EOFError:
            return  # the other has ended
        try:
            if known is None or known[0] != subject:
                known = subject, subject.opened()
            share = read_share(
                known[1], split=split, lengths=lengths, lanes=lanes, max_tokens=max_tokens, progress=None
            )
        except Exception as error:
            connection.send(error)
        else:
            connection.send(share)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _on_device(subject: Subject, number: int) -> Subject:
    """Give each process a GPU of its own where there are several."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if subject.device not in ("auto", "cuda") or count < 2:
        return subject
    return replace(subject, device=f"cuda:{number % count}")
