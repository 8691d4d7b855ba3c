"""How a side speaks: a process that does one work, and measures itself when it is told to, in lines of JSON.

It reads requests from its input, one a line, and answers each with one line:

    {"work": {...}}       once, the first: build the work and warm it     {"tokens": n, "versions": {...}}
    {"seconds": s}        do whole steps, for at least s seconds          {"seconds": [...], "values": [...],
                                                                           "peak_bytes": n}

`seconds` has the time of each step, `values` what each gave (a loss), `peak_bytes` is the process's high-water mark so
far. An exception is answered with {"error": "..."} and ends the process. The end of the input ends it too.

A side runs with its own library's Python: nothing here, nor in the files beside it, imports more than torch.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TextIO

import torch

Request = dict[str, Any]


class Work(Protocol):
    """What is measured.

    Attributes:
        tokens: that a step reads or makes, over all lanes.
    """

    tokens: int

    def draw(self) -> Any:
        """Make what a step needs; its time does not count."""

    def step(self, drawn: Any) -> float:
        """Do one step, and return its loss."""


def serve(make_work: Callable[[Request], Work], *, versions: dict[str, str]) -> None:
    """Answer the requests of the standard input until it ends.

    Args:
        make_work: builds and warms what a request describes.
        versions: of the libraries of this side.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    try:
        _answer_all(make_work, versions, answers)
    except Exception as error:
        traceback.print_exc()
        _send(answers, {"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def _answer_all(make_work: Callable[[Request], Work], versions: dict[str, str], answers: TextIO) -> None:
    request = json.loads(sys.stdin.readline())["work"]
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    work = make_work(request)
    versions = {"python": platform.python_version(), "torch": torch.__version__, **versions}
    _send(answers, {"tokens": work.tokens, "versions": versions})
    for line in sys.stdin:
        seconds, values = measure(work, at_least=json.loads(line)["seconds"])
        _send(answers, {"seconds": seconds, "values": values, "peak_bytes": peak_bytes()})


def measure(work: Work, *, at_least: float) -> tuple[list[float], list[float]]:
    """Do steps, one at the least, until `at_least` seconds have passed in them; return their times and values.

    A step in which the process was stopped and told to go on does not count.
    """
    seconds: list[float] = []
    values: list[float] = []
    went_on: list[int] = []
    signal.signal(signal.SIGCONT, lambda number, _: went_on.append(number))
    while not seconds or sum(seconds) < at_least:
        went_on.clear()
        drawn = work.draw()
        start = time.perf_counter()
        value = work.step(drawn)
        passed = time.perf_counter() - start
        if not went_on:
            seconds.append(passed)
            values.append(value)
    return seconds, values


def peak_bytes() -> int:
    """Return the most memory that this process has held at once (VmHWM), 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0
    return 1024 * int(lines["VmHWM"].split()[0])


def _send(answers: TextIO, answer: Request) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
