"""Sides in turn: each a process of its own, measured one after the other in every round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SIDES = Path(__file__).parent / "sides"
SOURCE = Path(__file__).parents[2] / "src"


class Side(NamedTuple):
    """Who does which work: a name as the tables have it, a Python, a script of `sides/`, a request (see `works.py`)."""

    name: str
    python: Path
    script: str
    request: dict[str, Any]


@dataclass(kw_only=True)
class Result:
    """What a side measured.

    Attributes:
        name: of the side.
        tokens: of a step.
        versions: of its libraries.
        turns: median seconds of a step in each round.
        values: the last value of each round: a loss.
        peak_bytes: the process's high-water mark.
        error: why there are no turns; None: there are.
    """

    name: str
    tokens: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    turns: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    error: str | None = None


class _Process:
    """A side's process, which has warmed its work once this exists."""

    def __init__(self, side: Side, stack: ExitStack) -> None:
        self.result = Result(name=side.name)
        self._words = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = str(side.request["threads"])
        self._process = stack.enter_context(
            subprocess.Popen(
                [side.python, SIDES / side.script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": threads},
            )
        )
        stack.callback(self._process.kill)
        if answer := self._ask({"work": side.request}):
            self.result.tokens, self.result.versions = answer["tokens"], answer["versions"]

    def turn(self, seconds: float) -> None:
        """Measure steps for so many seconds; a side that failed does nothing."""
        if self.result.error is None and (answer := self._ask({"seconds": seconds})):
            self.result.turns.append(statistics.median(answer["seconds"]))
            self.result.values.append(answer["values"][-1])
            self.result.peak_bytes = answer["peak_bytes"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" not in answer:
            return answer
        self.result.error = answer["error"]
        self._words.seek(0)
        print(f"{self.result.name} failed:\n{self._words.read()}", file=sys.stderr, flush=True)
        return None


def contest(sides: Sequence[Side], *, rounds: int, seconds: float) -> list[Result]:
    """Measure sides in turn: all of them in every round, every second round from the last to the first.

    Args:
        sides: to measure.
        rounds: how often each has its turn.
        seconds: that a turn takes at the least.
    """
    with ExitStack() as stack:
        processes = []
        for side in sides:
            print(f"  {side.name}: warming", file=sys.stderr, flush=True)
            processes.append(_Process(side, stack))
        for number in range(rounds):
            print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for process in processes if number % 2 == 0 else reversed(processes):
                process.turn(seconds)
        return [process.result for process in processes]
