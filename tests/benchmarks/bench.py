"""A call of the benchmark: the sides' environments, what was measured so far, and the files that are written."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.contest import Side, contest
from tests.benchmarks.tables import comparison
from tests.benchmarks.works import Request, sizes_in_words

OURS, ROPE, TRANSFORMERS, X_TRANSFORMERS = "ours", "rope", "transformers", "x-transformers"
_TORCH = "torch>=2.9,<2.14"
REQUIREMENTS = {
    TRANSFORMERS: ("transformers==4.37.2", _TORCH, "sacremoses", "numpy"),
    X_TRANSFORMERS: ("x-transformers==2.31.*", _TORCH, "numpy"),
}
"""What pip installs for each peer; numpy: they import it, and ask for no release."""
_HOW = """\
random ids, no dropout, fused Adam, gradients clipped at 0.25, the memory full before anything is timed; \
sides in turn; medians of the rounds; a ratio is the median of each round's (least to most); \
peak memory is the process's (VmHWM)"""


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

    def compare(self, row: str, works: dict[str, Request], *, beside: Sequence[str]) -> None:
        """Measure sides in turn; print the table, and write everything so far.

        Args:
            row: name of the row.
            works: of each side by its name, which begins with the library's and may have a precision behind a comma.
            beside: names of those whose ratios are shown.
        """
        wanted = {name: request for name, request in works.items() if not self.sides or _library(name) in self.sides}
        sides = [self._side(name, request | {"threads": self.threads}) for name, request in wanted.items()]
        results = contest(sides, rounds=self.rounds, seconds=self.seconds)
        self.numbers[row] = [asdict(result) | {"request": wanted[result.name]} for result in results]
        for result in results:
            if result.error is not None and _library(result.name) not in REQUIREMENTS:
                sys.exit(f"{result.name} of {row} failed: {result.error}")
            self.versions.setdefault(_library(result.name), result.versions)
        words = "; ".join(dict.fromkeys(map(sizes_in_words, wanted.values())))
        part = f"**{row}**: {words}\n\n{comparison(results, peers=beside)}"
        print(f"{part}\n", flush=True)
        self.parts.append(part)
        self._write()

    def _side(self, name: str, request: Request) -> Side:
        library = _library(name)
        if library not in REQUIREMENTS:
            return Side(name, Path(sys.executable), "of_ours.py", request)
        python = _python_of(library, self.environments / f"environment-{library}")
        return Side(name, python, f"of_{library.replace('-', '_')}.py", request)

    def _write(self) -> None:
        about = self._about()
        text = "\n".join([*(f"{name}: {words}  " for name, words in about.items()), "", *self.parts])
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "table.md").write_text(text, encoding="utf-8")
        numbers = json.dumps({"about": about, "rows": self.numbers}, indent=1)
        (self.folder / "numbers.json").write_text(numbers, encoding="utf-8")

    def _about(self) -> dict[str, str]:
        asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        commit = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        units = torch.cpu.get_capabilities()
        names = [name for name in ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16") if units.get(name)]
        return {
            "machine": f"{_processor()}, {os.cpu_count()} cores ({', '.join(names) or 'no bfloat16 units'}); "
            f"{self.threads} threads",
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "versions": "; ".join(
                f"{side}: {', '.join(f'{name} {version}' for name, version in of_side.items())}"
                for side, of_side in sorted(self.versions.items())
            ),
            "commit": commit.stdout.strip() or "unknown",
            "command": self.command,
            "how": f"{_HOW}; {self.rounds} rounds of at least {self.seconds:g} s",
        }


def _library(side: str) -> str:
    return side.partition(",")[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _python_of(library: str, folder: Path) -> Path:
    """Return the Python of a peer's environment, which is made where there is none, or one of other requirements."""
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    wanted = json.dumps([sys.version, *REQUIREMENTS[library]])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {library} into {folder}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[library]]
    subprocess.run(install, check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python
