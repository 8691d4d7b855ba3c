"""A sweep: each job a process of its own, its outcome a file in its folder, a table of all at the end."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, cast

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, ListConfig, OmegaConf

from transformer_xl.commands import cli
from transformer_xl.commands.comparison import print_comparison
from transformer_xl.commands.tables import JobRecord, print_rows, printable
from transformer_xl.scores import BITS_PER_BYTE

RECORD = "job.json"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_INTERRUPTED = 128 + signal.SIGINT
_OF_THE_SWEEP = (
    "hydra.sweep",
    "hydra/sweep",
    "hydra.launcher",
    "hydra/launcher",
    "hydra.mode",
    "hydra.run.",
    "hydra.callbacks.txl_sweep",
)


class SweepEnded(BaseException):
    """A signal ended the sweep; not an `Exception`, which Hydra would take for a failed job's."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class SweepFolder(Callback):
    """Learns where the sweep's jobs have their folders, and settles it for all of them, in other processes too."""

    path: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Name the folder once; what goes wrong with it is reported where Hydra makes it."""
        try:
            folder = Path(config.hydra.sweep.dir).absolute()
        except Exception:
            return
        SweepFolder.path = folder
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={cli.quote(str(folder))}")

    @classmethod
    def as_override(cls) -> str:
        """Give the override that adds this callback to Hydra's."""
        return f"+hydra.callbacks.txl_sweep={{_target_:{cls.__module__}.{cls.__qualname__}}}"


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
        program = [os.path.abspath(sys.argv[0])] if spec is None else ["-m", spec.name]
        return cls(entry=(sys.executable, *program), flags=flags, token=os.urandom(8).hex())


@dataclass(frozen=True)
class Task:
    """What Hydra calls for each job; launchers may pickle it."""

    command: JobCommand

    def __call__(self, config: DictConfig) -> float:
        return run_job(self.command)


def run_job(command: JobCommand) -> float:
    """Run the job that Hydra is at in a process of its own, record its outcome, and give its objective.

    Returns:
        The objective that the job left in `summary.json`; nan when it failed or left none.

    Raises:
        SweepEnded: the job was interrupted, or a signal came for the sweep and was passed on to the job.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.sweep.dir, str(hydra.sweep.subdir)).absolute()
    overrides = _as_written(hydra.overrides.task)
    kept = [line for line in _as_written(hydra.overrides.hydra) if not cli.key_of(line).startswith(_OF_THE_SWEEP)]
    arguments = [*command.flags, *overrides, *kept, "hydra.mode=RUN", f"hydra.run.dir={cli.quote(str(folder))}"]
    exit_code, received = _run_process([*command.entry, cli.ALREADY_QUOTED, *arguments])
    record = JobRecord(
        sweep=command.token,
        number=int(hydra.job.num),
        overrides=overrides,
        objective=_read_objective(folder) if exit_code == 0 else None,
        exit_code=exit_code,
        folder=str(folder),
    )
    _write_record(folder, record)
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
def _handling_signals(handler: Any) -> Iterator[None]:
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


def _read_objective(folder: Path) -> float | None:
    try:
        objective = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["objective"]
        return float(objective) if objective is not None and math.isfinite(objective) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_record(folder: Path, record: JobRecord) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{RECORD}.tmp"
    unfinished.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
    unfinished.replace(folder / RECORD)


def read_records(folder: Path, token: str) -> list[JobRecord]:
    """Read the outcomes of one sweep's jobs, whatever process ran them, in order."""
    found = [JobRecord(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.rglob(RECORD)]
    return sorted((record for record in found if record.sweep == token), key=lambda record: record.number)


def finish(token: str) -> bool:
    """Print the table of the jobs that ran, and say whether all succeeded; forget a folder where none did run."""
    folder = SweepFolder.path
    if folder is None:
        return True
    records = read_records(folder, token)
    if records:
        _print_table(records)
        print_comparison(records)
    elif {path.name for path in folder.glob("*")} == {"multirun.yaml"}:
        (folder / "multirun.yaml").unlink()
    return all(record.exit_code == 0 for record in records)


def _print_table(records: list[JobRecord]) -> None:
    shared = set.intersection(*(set(record.overrides) for record in records)) if len(records) > 1 else set()
    bits = [_read_bits(Path(record.folder)) for record in records]
    header = ["job", "overrides", "objective", *(["bits a byte"] if any(bits) else []), "status", "folder"]
    rows = [
        [
            str(record.number),
            printable(" ".join(cli.as_typed(line) for line in record.overrides if line not in shared)),
            "-" if record.objective is None else f"{record.objective:.6g}",
            *([found or "-"] if any(bits) else []),
            "finished" if record.exit_code == 0 else f"exit status {record.exit_code}",
            printable(os.path.relpath(record.folder)),
        ]
        for record, found in zip(records, bits, strict=True)
    ]
    print_rows(header, rows)


def _read_bits(folder: Path) -> str | None:
    """Read a job's bits a byte on the validation split, which compare whatever the vocabulary is."""
    try:
        metrics = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["metrics"]
        return f"{metrics['valid'][BITS_PER_BYTE]:.4f}"
    except (OSError, ValueError, TypeError, KeyError):
        return None
