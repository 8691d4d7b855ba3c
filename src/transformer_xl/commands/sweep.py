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
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, ListConfig, OmegaConf

from transformer_xl.commands.call import ALREADY_QUOTED, Call, as_typed, key_of, quote
from transformer_xl.commands.cli import hand_to_hydra
from transformer_xl.commands.compose import configure
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.errors import atomic_write, program
from transformer_xl.run_folder import Summary, shown
from transformer_xl.scores import BITS_PER_BYTE, BITS_PER_CHARACTER, PERPLEXITY

RECORD = "job.json"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_INTERRUPTED = 128 + signal.SIGINT
_OF_THE_SWEEP = (
    *("hydra.sweep", "hydra/sweep", "hydra.launcher", "hydra/launcher"),
    *("hydra.mode", "hydra.run.", "hydra.callbacks.txl_sweep"),
)
_ROW = "row="
_COMPARISON = (
    "row",
    "data",
    "parameters",
    "tokens",
    "test",
    "start of test",
    "4 x memory",
    "train tok/s",
    "eval tok/s",
)


class SweepEnded(BaseException):
    """A signal ended the sweep; not an `Exception`, which Hydra would take for a failed job's."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class SweepFolder(Callback):
    """Learns what is swept and where the jobs have their folders, and settles it for them, in other processes too.

    Attributes:
        path: folder of the sweep.
        swept: keys that have several values.
        jobs: how many there are; None: that only the sweeper knows.
    """

    path: ClassVar[Path | None] = None
    swept: ClassVar[frozenset[str]] = frozenset()
    jobs: ClassVar[int | None] = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Name the folder once; what goes wrong with it is reported where Hydra makes it."""
        try:
            folder = Path(config.hydra.sweep.dir).absolute()
        except Exception:
            return
        SweepFolder.path = folder
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quote(str(folder))}")
        params = config.hydra.sweeper.get("params") or {}
        _note_swept([*(f"{key}={value}" for key, value in params.items()), *_as_written(config.hydra.overrides.task)])

    @classmethod
    def as_override(cls) -> str:
        """Return the override that adds this callback to Hydra's."""
        return f"+hydra.callbacks.txl_sweep={{_target_:{cls.__module__}.{cls.__qualname__}}}"


def _note_swept(lines: list[str]) -> None:
    jobs, swept = 1, set()
    try:
        for override in OverridesParser.create().parse_overrides(lines):
            if override.is_sweep_override():
                swept.add(key_of(str(override.input_line)))
                jobs *= len(list(override.sweep_string_iterator()))
        SweepFolder.swept, SweepFolder.jobs = frozenset(swept), jobs
    except Exception:  # a sweeper's own grammar
        SweepFolder.swept, SweepFolder.jobs = frozenset(swept), None


@dataclass(frozen=True)
class JobCommand:
    """How to start a job of the sweep `token` from any process: the user's entry point and Hydra's own flags."""

    entry: tuple[str, ...]
    flags: tuple[str, ...]
    token: str

    @classmethod
    def of_this_process(cls, flags: tuple[str, ...]) -> JobCommand:
        """Start jobs as the user started this process: by a script, a console script, or `-m`."""
        spec = sys.modules["__main__"].__spec__
        started = [os.path.abspath(sys.argv[0])] if spec is None else ["-m", spec.name]
        return cls(entry=(sys.executable, *started), flags=flags, token=os.urandom(8).hex())


@dataclass(frozen=True)
class JobRecord:
    """What `job.json` holds."""

    sweep: str
    number: int
    overrides: list[str]
    objective: float | None
    exit_code: int
    folder: str

    @property
    def summary(self) -> Summary:
        """What the job's `summary.json` says."""
        return Summary.read(Path(self.folder))

    def choice(self, key: str) -> str | None:
        """Return the value of an override that begins with `key`."""
        return next((line.removeprefix(key) for line in self.overrides if line.startswith(key)), None)


@dataclass(frozen=True)
class Task:
    """What Hydra calls for each job; launchers may pickle it."""

    command: JobCommand

    def __call__(self, config: DictConfig) -> float:
        return run_job(self.command)


def run_job(command: JobCommand) -> float:
    """Run the job that Hydra is at in a process of its own, record its outcome, and return its objective.

    Returns:
        The objective that the job left in `summary.json`; nan when it failed or left none.

    Raises:
        SweepEnded: the job was interrupted, or a signal came for the sweep and was passed on to the job.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.sweep.dir, str(hydra.sweep.subdir)).absolute()
    overrides = _as_written(hydra.overrides.task)
    number = int(hydra.job.num)
    of = "" if SweepFolder.jobs is None else f" of {SweepFolder.jobs}"
    print(f"job {number + 1}{of}: {_varied(overrides, SweepFolder.swept)}", file=sys.stderr, flush=True)
    kept = [line for line in _as_written(hydra.overrides.hydra) if not key_of(line).startswith(_OF_THE_SWEEP)]
    arguments = [*command.flags, *overrides, *kept, "hydra.mode=RUN", f"hydra.run.dir={quote(str(folder))}"]
    exit_code, received = _run_process([*command.entry, ALREADY_QUOTED, *arguments])
    objective = Summary.read(folder).objective if exit_code == 0 else None
    record = JobRecord(
        sweep=command.token,
        number=number,
        overrides=[line.removeprefix("+") if key_of(line) == "row" else line for line in overrides],
        objective=objective if objective is not None and math.isfinite(objective) else None,
        exit_code=exit_code,
        folder=str(folder),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / RECORD) as file:
        json.dump(asdict(record), file, indent=1)
    if received is not None:
        raise SweepEnded(exit_code if exit_code not in (0, 1, 2) else 128 + received)
    if exit_code == _INTERRUPTED:
        raise SweepEnded(exit_code)
    return math.nan if record.objective is None else record.objective


def _as_written(overrides: object) -> list[str]:
    """Read a list of Hydra's as it stands, without looking up the `${` in it, which reading it item by item does."""
    lines = OmegaConf.to_container(cast(ListConfig, overrides), resolve=False)
    assert isinstance(lines, list)
    return lines


def _varied(overrides: Sequence[str], keys: frozenset[str]) -> str:
    lines = [line for line in overrides if not keys or key_of(line) in keys]
    return printable(" ".join(map(as_typed, lines)))


def _run_process(argv: list[str]) -> tuple[int, int | None]:
    """Run to the end, passing on the signals that come; a terminal's Ctrl-C thus reaches the job once, not twice."""
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []
    pending: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    with _handling_signals(forward):
        try:
            process = subprocess.Popen(argv, process_group=0)
        except OSError as error:
            print(f"error: a job could not be started: {error}", file=sys.stderr)
            return 1, None
        for number in pending:
            process.send_signal(number)
        code = process.wait()
    return (code if code >= 0 else 128 - code), (received[0] if received else None)


@contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's stays so
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def run_sweep(call: Call, flags: list[str], *, check: Callable[[Call], object] | None = configure) -> int:
    """Run the jobs of a sweep, each in a process of its own, and print their table.

    Args:
        call: the command.
        flags: of Hydra's.
        check: of the first job, before any starts: raises a UserError for settings that cannot be.

    Returns:
        The exit status: 0, 1 with a failed job, or as a signal asks.
    """
    SweepFolder.path = None
    if check is not None:
        check(_first_job(call))
    job = JobCommand.of_this_process(tuple(call.flags))
    status = None
    try:
        hand_to_hydra(call, flags, Task(job), [SweepFolder.as_override()])
    except SweepEnded as ended:
        status = ended.exit_code
    except KeyboardInterrupt:
        status = _INTERRUPTED
    finally:
        all_succeeded = _finish(job.token)
    if status is not None:
        print(f"the sweep was stopped; go on with: {command_to_go_on(call.command)}", file=sys.stderr)
        return status
    return 0 if all_succeeded else 1


def _first_job(call: Call) -> Call:
    """Return the first job of a sweep, but for what only its process finds out."""
    lines = []
    for override in OverridesParser.create().parse_overrides(call.overrides):
        is_swept, key = override.is_sweep_override(), override.key_or_group
        if key in ("row", "init_from") or (is_swept and ("." in key or not override.is_discrete_sweep())):
            continue  # of a setting's values others may be right
        value = next(override.sweep_string_iterator()) if is_swept else ""
        lines.append(f"{override.get_key_element()}={value}" if is_swept else str(override.input_line))
    return replace(call, overrides=lines)


def _finish(token: str) -> bool:
    """Print the tables of the jobs that ran, and return whether all succeeded; forget a folder where none did run."""
    folder = SweepFolder.path
    if folder is None:
        return True
    records = read_records(folder, token)
    if records:
        _print_table(records)
        _print_seeds(records)
        print_comparison(records)
    elif {path.name for path in folder.glob("*")} == {"multirun.yaml"}:
        (folder / "multirun.yaml").unlink()
    return all(record.exit_code == 0 for record in records)


def command_to_go_on(typed: Sequence[str]) -> str:
    """Return the command that goes on with a sweep that was stopped."""
    kept = [word for word in typed[1:] if key_of(word) not in ("resume", "hydra.sweep.dir")]
    folder = "" if SweepFolder.path is None else f" hydra.sweep.dir={shlex.quote(shown(SweepFolder.path))}"
    return f"{program('train')} {shlex.join(kept)} resume=auto{folder}"


def read_records(folder: Path, token: str) -> list[JobRecord]:
    """Read the outcomes of one sweep's jobs, whatever process ran them, in order."""
    found = [JobRecord(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.rglob(RECORD)]
    return sorted((record for record in found if record.sweep == token), key=lambda record: record.number)


def _print_table(records: list[JobRecord]) -> None:
    """Print what each job reached, the best first."""
    shared = set.intersection(*(set(record.overrides) for record in records)) if len(records) > 1 else set()
    bits = {record.number: record.summary.metrics.get("valid", {}).get(BITS_PER_BYTE) for record in records}
    has_bits = any(value is not None for value in bits.values())
    rows = []
    for record in sorted(records, key=lambda one: math.inf if one.objective is None else one.objective):
        rows.append(
            [
                str(record.number),
                printable(" ".join(as_typed(line) for line in record.overrides if line not in shared)),
                "-" if record.objective is None else f"{record.objective:.6g}",
                *([_number(bits[record.number], ".4f")] if has_bits else []),
                "finished" if record.exit_code == 0 else f"exit status {record.exit_code}",
                printable(os.path.relpath(record.folder)),
            ]
        )
    heading = ["bits per byte"] if has_bits else []
    print_table(["job", "overrides", "objective (val/loss, nats)", *heading, "status", "folder"], rows)
    if len(records) > 1 and rows[0][2] != "-":
        print(f"best: job {rows[0][0]}, {rows[0][1]}")


def _print_seeds(records: list[JobRecord]) -> None:
    """Print mean and deviation of jobs that differ by `seed` alone."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        others = tuple(line for line in record.overrides if key_of(line) != "seed")
        if record.objective is not None and len(others) < len(record.overrides):
            groups.setdefault(others, []).append(record.objective)
    shared = set.intersection(*map(set, groups)) if len(groups) > 1 else set()
    rows = [
        [
            printable(" ".join(as_typed(line) for line in others if line not in shared)) or "all",
            str(len(values)),
            f"{statistics.fmean(values):.5f} ± {statistics.stdev(values):.5f}",
        ]
        for others, values in groups.items()
        if len(values) > 1
    ]
    if rows:
        print()
        print_table(["overrides", "seeds", "val/loss in nats, mean ± deviation"], rows)


def print_comparison(records: Sequence[JobRecord]) -> None:
    """Print a table of the jobs that a comparison's rows made (`row=` in their overrides), if there are any.

    Scores are in the unit of each corpus; the beginning of the test split is read with the memory that the row was
    trained with, and with four times as much where it has one.
    """
    rows = [_compared(record) for record in records if record.choice(_ROW) is not None]
    if rows:
        print()
        print_table(_COMPARISON, sorted(rows, key=lambda row: row[1]))
        print(
            "start of test: the first tokens of every lane, with the memory that the row was trained with; 4 x memory: "
            "the same with four times as much; -: the row has no memory whose length matters."
        )


def _compared(record: JobRecord) -> list[str]:
    summary = record.summary
    test, train = summary.metrics.get("test", {}), summary.metrics.get("train", {})
    beginnings = {
        values["mem_len"]: values for name, values in summary.metrics.items() if name.startswith("test_beginning_")
    }
    own = beginnings.get(test.get("mem_len"), {})
    longer = beginnings.get(4 * test["mem_len"], {}) if test.get("mem_len") else {}
    read_as = " ".join(f"{name}={value}" for name, value in summary.read_as.items())
    return [
        record.choice(_ROW) or "",
        " ".join(filter(None, (record.choice("data="), read_as))),
        _number(summary.parameters or None),
        _number(summary.tokens or None),
        _score(test),
        _score(own),
        _score(longer),
        _number(train.get("tokens_per_second")),
        _number(own.get("tokens_per_second")),
    ]


def _number(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _score(values: dict[str, Any]) -> str:
    for unit in (PERPLEXITY, BITS_PER_CHARACTER, BITS_PER_BYTE):  # the vocabulary's own before what all have
        if values.get(unit) is not None:
            return f"{values[unit]:.4f} {unit}"
    return "-"
