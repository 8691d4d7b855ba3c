"""A sweep: each job a process of its own, its outcome a file in its folder, a table of all at the end."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import yaml

from transformer_xl.commands.call import Call, key_of
from transformer_xl.commands.compose import configure
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.errors import atomic_write
from transformer_xl.registry import program
from transformer_xl.run_folder import Summary, claim, moment, shown
from transformer_xl.scores import BITS_PER_BYTE, BITS_PER_CHARACTER, PERPLEXITY

RECORD = "job.json"
"""In the folder of each job: its overrides, objective and exit status."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_INTERRUPTED = 128 + signal.SIGINT


class Job(NamedTuple):
    """A job that has run.

    Attributes:
        number: from 0.
        label: the settings that the sweep varies.
        folder: of the run.
        exit_code: of its process.
        summary: what its `summary.json` says.
    """

    number: int
    label: str
    folder: Path
    exit_code: int
    summary: Summary

    @property
    def objective(self) -> float | None:
        """The best validation loss in nats; None where the job failed or has none."""
        return self.summary.objective if self.exit_code == 0 else None


def run_sweep(call: Call) -> int:
    """Run the jobs of a sweep, each in a process of its own, and print their table.

    Args:
        call: the command.

    Returns:
        The exit status: 0, 1 with a failed job, or as a signal asks.

    Raises:
        UserError: the first job's settings cannot be; nothing was started.
    """
    jobs, named = call.jobs(), call.literals().get("hydra.sweep.dir")
    configure(jobs[0])
    folder = (Path(named) if named else claim(Path("outputs"), f"sweep-{moment()}")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "multirun.yaml") as file:
        yaml.safe_dump([job.overrides for job in jobs], file, allow_unicode=True)
    done: list[Job] = []
    processes: list[subprocess.Popen[bytes]] = []
    with _forwarding(processes) as received:
        for number, job in enumerate(jobs):
            varied = [line for line in job.overrides if line not in call.overrides]
            label = printable(" ".join(varied or job.overrides))
            print(f"job {number + 1} of {len(jobs)}: {label}", file=sys.stderr, flush=True)
            below, kept = folder / str(number), [line for line in job.overrides if not line.startswith("hydra.")]
            command = [*_entry(), *call.flags, *kept, f"hydra.run.dir={below}"]
            processes.append(subprocess.Popen(command, process_group=0))
            code = processes[-1].wait()
            code = code if code >= 0 else 128 - code
            done.append(Job(number, label, below, code, Summary.read(below)))
            below.mkdir(parents=True, exist_ok=True)
            with atomic_write(below / RECORD) as file:
                json.dump({"overrides": kept, "objective": done[-1].objective, "exit_code": code}, file, indent=1)
            if received or code == _INTERRUPTED:
                break
    print_jobs(done)
    _print_seeds(done)
    if received or code == _INTERRUPTED:
        typed = [word for word in call.command[1:] if key_of(word) not in ("plugins", "resume", "hydra.sweep.dir")]
        go_on = f"{program('train')} {shlex.join(typed)} resume=auto hydra.sweep.dir={shlex.quote(shown(folder))}"
        print(f"the sweep was stopped; go on with: {go_on}", file=sys.stderr)
        return code if code not in (0, 1, 2) else 128 + received[0]
    return int(any(job.exit_code for job in done))


def _entry() -> list[str]:
    """Return how this process was started: by a script, a console script, or `-m`."""
    spec = sys.modules["__main__"].__spec__
    return [sys.executable, *([os.path.abspath(sys.argv[0])] if spec is None else ["-m", spec.name])]


@contextmanager
def _forwarding(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Pass signals on to the newest process; a terminal's Ctrl-C thus reaches the job once, not twice."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in processes[-1:]:
            process.send_signal(number)

    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's stays so
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print what each job reached, the best first.

    Beside the objective stand scores in the unit of each corpus: of the test split, and of its beginning, read with the
    memory that the job was trained with, and with four times as much.
    """
    best_first = sorted(jobs, key=lambda job: math.inf if job.objective is None else job.objective)
    columns: dict[str, list[str]] = {
        "job": [str(job.number + 1) for job in best_first],
        "overrides": [job.label for job in best_first],
        "objective (val/loss, nats)": ["-" if job.objective is None else f"{job.objective:.6g}" for job in best_first],
        "test": [_score(job) for job in best_first],
        "start of test": [_score(job, 1) for job in best_first],
        "4 x memory": [_score(job, 4) for job in best_first],
        "status": ["finished" if job.exit_code == 0 else f"exit status {job.exit_code}" for job in best_first],
        "folder": [printable(os.path.relpath(job.folder)) for job in best_first],
    }
    shown = {name: cells for name, cells in columns.items() if set(cells) != {"-"} or name.startswith("objective")}
    print_table(list(shown), list(zip(*shown.values(), strict=True)))
    if len(jobs) > 1 and best_first[0].objective is not None:
        print(f"best: job {best_first[0].number + 1}, {best_first[0].label}")


def _score(job: Job, memory: int | None = None) -> str:
    """Return the score of the test split, or of its beginning with so many times the job's own memory."""
    metrics = job.summary.metrics
    values = metrics.get("test", {})
    if memory is not None and values:
        mem_len = values["mem_len"]
        values = {} if mem_len == 0 and memory > 1 else metrics.get(f"test_beginning_memory_{memory * mem_len}", {})
    for unit in (PERPLEXITY, BITS_PER_CHARACTER, BITS_PER_BYTE):  # the vocabulary's own before what all have
        if values.get(unit) is not None:
            return f"{values[unit]:.4f} {unit}"
    return "-"


def _print_seeds(jobs: Sequence[Job]) -> None:
    """Print mean and deviation of jobs that differ by `seed` alone."""
    groups: dict[str, list[float]] = {}
    for job in jobs:
        if job.objective is not None:
            others = " ".join(word for word in job.label.split(" ") if key_of(word) != "seed")
            groups.setdefault(others, []).append(job.objective)
    rows = [
        [others or "all", str(len(values)), f"{statistics.fmean(values):.5f} ± {statistics.stdev(values):.5f}"]
        for others, values in groups.items()
        if len(values) > 1
    ]
    if rows:
        print()
        print_table(["overrides", "seeds", "val/loss in nats, mean ± deviation"], rows)
