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
from typing import Any, NamedTuple

import yaml

from transformer_xl.commands.call import Call, key_of
from transformer_xl.commands.compose import configure
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.errors import atomic_write, program
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
        overrides: all of them, as a user types them.
        folder: of the run.
        exit_code: of its process.
        summary: what its `summary.json` says.
    """

    number: int
    label: str
    overrides: list[str]
    folder: Path
    exit_code: int
    summary: Summary

    @property
    def objective(self) -> float | None:
        """The best validation loss in nats; None where the job failed or has none."""
        return self.summary.objective if self.exit_code == 0 else None

    def choice(self, group: str) -> str:
        """Return the choice of a group; empty: none is named."""
        return next((line.partition("=")[2] for line in self.overrides if key_of(line) == group), "")


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
            done.append(Job(number, label, kept, below, code, Summary.read(below)))
            _write_record(done[-1])
            if received or code == _INTERRUPTED:
                break
    _print_table(done)
    _print_seeds(done)
    print_comparison(done)
    if received or code == _INTERRUPTED:
        typed = [word for word in call.command[1:] if key_of(word) not in ("resume", "hydra.sweep.dir")]
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


def _write_record(job: Job) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    record = {"overrides": job.overrides, "objective": job.objective, "exit_code": job.exit_code}
    with atomic_write(job.folder / RECORD) as file:
        json.dump(record, file, indent=1)


def _print_table(jobs: Sequence[Job]) -> None:
    """Print what each job reached, the best first."""
    bits = {job.number: job.summary.metrics.get("valid", {}).get(BITS_PER_BYTE) for job in jobs}
    has_bits = any(value is not None for value in bits.values())
    best_first = sorted(jobs, key=lambda job: math.inf if job.objective is None else job.objective)
    rows = [
        [
            str(job.number),
            job.label,
            _number(job.objective, ".6g"),
            *([_number(bits[job.number], ".4f")] if has_bits else []),
            "finished" if job.exit_code == 0 else f"exit status {job.exit_code}",
            printable(os.path.relpath(job.folder)),
        ]
        for job in best_first
    ]
    heading = ["bits per byte"] if has_bits else []
    print_table(["job", "overrides", "objective (val/loss, nats)", *heading, "status", "folder"], rows)
    if len(jobs) > 1 and best_first[0].objective is not None:
        print(f"best: job {best_first[0].number}, {best_first[0].label}")


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


def print_comparison(jobs: Sequence[Job]) -> None:
    """Print a table of the jobs that a comparison's rows made (`row=` in their overrides), if there are any.

    Scores are in the unit of each corpus; the beginning of the test split is read with the memory that the row was
    trained with, and with four times as much where it has one.
    """
    rows = sorted((_compared(job) for job in jobs if job.choice("row")), key=lambda row: row[1])
    if rows:
        print()
        print_table(["row", "data", "parameters", "tokens", "test", "start of test", "4 x memory"], rows)
        print(
            "start of test: the first tokens of every lane, with the memory that the row was trained with; 4 x memory: "
            "the same with four times as much; -: the row has no memory whose length matters."
        )


def _compared(job: Job) -> list[str]:
    summary, metrics = job.summary, job.summary.metrics
    test = metrics.get("test", {})
    mem_len = test.get("mem_len")
    longer = metrics.get(f"test_beginning_memory_{4 * mem_len}", {}) if mem_len else {}
    return [
        job.choice("row"),
        " ".join([job.choice("data"), *(f"{name}={value}" for name, value in summary.read_as.items())]),
        _number(summary.parameters or None, ",.0f"),
        _number(summary.tokens or None, ",.0f"),
        *map(_score, (test, metrics.get(f"test_beginning_memory_{mem_len}", {}), longer)),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _score(values: dict[str, Any]) -> str:
    for unit in (PERPLEXITY, BITS_PER_CHARACTER, BITS_PER_BYTE):  # the vocabulary's own before what all have
        if values.get(unit) is not None:
            return f"{values[unit]:.4f} {unit}"
    return "-"
