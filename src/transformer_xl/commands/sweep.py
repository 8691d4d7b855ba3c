"""A sweep: each job a process of its own, its outcome a file in its folder, a table of all at the end.

Jobs run one after another, each by a program of its own, or several at a time: these are forks of this process, which
has imported everything, each on one thread; what they print is in their folders.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import yaml

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call, key_of
from transformer_xl.commands.compose import configure
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.errors import atomic_write
from transformer_xl.registry import program
from transformer_xl.run_folder import Summary, claim, moment, shown
from transformer_xl.scores import BITS_PER_BYTE, BITS_PER_CHARACTER, PERPLEXITY

PRINTED = "printed.txt"
"""In the folder of each job that is one of several at a time: what it has printed."""
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


def run_sweep(call: Call, work: Callable[[Call], object]) -> int:
    """Run the jobs of a sweep, each in a process of its own, and print their table.

    Args:
        call: the command.
        work: what a job does that is a fork of this process.

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
    if call.at_a_time > 1:
        import torch

        import_module("transformer_xl.commands.report")  # all that jobs import
        torch.set_num_threads(1)  # also: a fork has none of its parent's threads
    began, done = time.monotonic(), list[Job]()
    running: dict[int, Job] = {}  # by its process
    with _forwarding(running) as received:
        for number, job in enumerate(jobs):
            varied = [line for line in job.overrides if line not in call.overrides]
            started = Job(number, printable(" ".join(varied or job.overrides)), folder / str(number), 0, Summary())
            print(f"job {number + 1} of {len(jobs)}: {started.label}", file=sys.stderr, flush=True)
            kept = [line for line in job.overrides if not line.startswith("hydra.")]
            command = [*_entry(), *call.flags, *kept, f"hydra.run.dir={started.folder}"]
            running[_start(command, work if call.at_a_time > 1 else None, started.folder)] = started
            while len(running) >= call.at_a_time:
                done.append(_next_ended(running, jobs))
            if received or any(one.exit_code == _INTERRUPTED for one in done):
                break
        while running:
            done.append(_next_ended(running, jobs))
    seconds = int(time.monotonic() - began)
    print(f"{len(done)} jobs took {seconds // 60}:{seconds % 60:02d}", file=sys.stderr)
    _print_table(call, done, folder)
    codes = [job.exit_code for job in done]
    if received or _INTERRUPTED in codes:
        typed = [word for word in call.command[1:] if key_of(word) not in ("plugins", "resume", "hydra.sweep.dir")]
        go_on = f"{program('train')} {shlex.join(typed)} resume=auto hydra.sweep.dir={shlex.quote(shown(folder))}"
        print(f"the sweep was stopped; go on with: {go_on}", file=sys.stderr)
        return next((code for code in reversed(codes) if code not in (0, 1, 2)), 128 + (received or [0])[0])
    return int(any(codes))


def _entry() -> list[str]:
    """Return how this process was started: by a script, a console script, or `-m`."""
    spec = sys.modules["__main__"].__spec__
    return [sys.executable, *([os.path.abspath(sys.argv[0])] if spec is None else ["-m", spec.name])]


def _start(command: list[str], work: Callable[[Call], object] | None, folder: Path) -> int:
    """Start a job, with `work` as a fork of this process that prints into its folder; return the process."""
    if work is None:
        return os.posix_spawn(command[0], command, os.environ, setpgroup=0)
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setpgid(0, 0)
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        with (folder / PRINTED).open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.argv[1:] = command[len(_entry()) :]
        status = cli.run("train", work)
        sys.stderr.flush()
    finally:
        os._exit(status)  # without what the parent does at its end


def _next_ended(running: dict[int, Job], jobs: Sequence[Call]) -> Job:
    """Wait until a job ends; write down and return how."""
    process = 0
    while process not in running:
        process, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    job = running.pop(process)
    job = job._replace(exit_code=code if code >= 0 else 128 - code, summary=Summary.read(job.folder))
    job.folder.mkdir(parents=True, exist_ok=True)
    kept = [line for line in jobs[job.number].overrides if not line.startswith("hydra.")]
    with atomic_write(job.folder / RECORD) as file:
        json.dump({"overrides": kept, "objective": job.objective, "exit_code": job.exit_code}, file, indent=1)
    if job.exit_code and (job.folder / PRINTED).is_file():
        print(f"job {job.number + 1}: exit status {job.exit_code}; see {job.folder / PRINTED}", file=sys.stderr)
    return job


@contextmanager
def _forwarding(running: Collection[int]) -> Iterator[list[int]]:
    """Pass signals on to the running processes; a terminal's Ctrl-C thus reaches each job once, not twice."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's stays so
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _print_table(call: Call, jobs: Sequence[Job], folder: Path) -> None:
    if "task" in call.given:
        from transformer_xl.commands.memories import print_memories  # torch takes seconds

        numbered = call.jobs()
        print_memories([(numbered[job.number].overrides, job) for job in jobs], folder)
    else:
        print_jobs(jobs)
        _print_seeds(jobs)


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
