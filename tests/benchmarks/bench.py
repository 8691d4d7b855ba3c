"""What a call of the benchmark is told, and what it has measured so far."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.contest import SIDES, Result, Side, contest
from tests.benchmarks.peers import KEEPING, KEPT, Peer, python_of
from tests.benchmarks.works import Request

OURS = "ours"


@dataclass(kw_only=True)
class Bench:
    """One call.

    Attributes:
        folder: of everything that is written.
        environments: folder of the peers' environments.
        rounds: how often each side has its turn.
        seconds: of a turn, at the least.
        threads: of every side.
        quick: toy sizes.
        attention: the implementation of attention; None: the configuration's.
        sides: names of the sides that are measured; None: all.
        command: that started it.
        parts: Markdown of what was measured, in order.
        numbers: raw numbers of what was measured, by row.
        versions: of the sides' libraries.
    """

    folder: Path
    environments: Path
    rounds: int
    seconds: float
    threads: int
    quick: bool
    attention: str | None
    sides: Sequence[str] | None
    command: str
    parts: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def wants(self, name: str) -> bool:
        """Tell whether a side is to be measured; its precision may stand behind a comma."""
        return self.sides is None or name.partition(",")[0] in self.sides

    def ours(self, name: str, request: Request) -> Side:
        """Make a side of ours."""
        threads = {"threads": self.threads}
        return Side(name=name, python=Path(sys.executable), script=SIDES / "of_ours.py", request=request | threads)

    def peer(self, name: str, peer: Peer, request: Request) -> Side:
        """Make a peer's side; it is installed if it is not."""
        python = python_of(peer, below=self.environments)
        environment = KEEPING if name.endswith(KEPT) else {}
        return Side(
            name=name,
            python=python,
            script=SIDES / peer.script,
            request=request | {"threads": self.threads},
            environment=environment,
        )

    def contest(self, row: str, sides: Sequence[Side], *, steps: int = 1) -> list[Result]:
        """Measure sides in turn, `steps` steps a turn at the least, and note the raw numbers."""
        results = contest(sides, rounds=self.rounds, seconds=self.seconds, steps=steps)
        self.numbers[row] = [
            result.as_numbers() | {"request": side.request} for side, result in zip(sides, results, strict=True)
        ]
        for result, side in zip(results, sides, strict=True):
            is_ours = side.script.name == "of_ours.py"
            if is_ours and result.error is not None:
                sys.exit(f"{result.name} of {row} failed: {result.error}")
            known = OURS if is_ours else result.name.partition(",")[0]
            if result.versions:
                self.versions[known] = result.versions
        return results

    def say(self, part: str) -> None:
        """Print a piece of Markdown, and write everything so far."""
        print(f"{part}\n", flush=True)
        self.parts.append(part)
        self.write()

    def write(self) -> None:
        """Write `table.md`, for the README, and `numbers.json`."""
        about = machine.described(threads=self.threads, command=self.command, versions=self.versions)
        about["how"] = (
            "random ids, no dropout, fused Adam, gradients clipped at 0.25, the memory full before anything is timed; "
            f"sides in turn, {self.rounds} rounds of at least {self.seconds:g} s each; medians of the rounds; a ratio "
            "is the median of each round's (least to most); peak memory is the process's (VmHWM)"
        )
        text = "\n".join([*(f"{name}: {words}  " for name, words in about.items()), "", *self.parts])
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "table.md").write_text(text, encoding="utf-8")
        numbers = json.dumps({"about": about, "rows": self.numbers}, indent=1)
        (self.folder / "numbers.json").write_text(numbers, encoding="utf-8")
