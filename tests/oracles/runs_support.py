"""Commands and runs as a user starts them, for the oracles of part B: in this process, or in one that can be stopped.

Nothing in here knows more of the program than its commands, settings, files and the libraries below it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).parents[2]
SECONDS = 240
"""How long a test waits for what should take a few seconds: machines are slow and shared."""

STATUSES = {"SIGKILL": -9, "SIGTERM": 143, "SIGHUP": 129, "SIGINT": 130, "SIGUSR1": 75}

_WORDS = """
    the of and a to in is it that was he for on are with as his they at be this from have or by one had not but what
    all were when we there can an your which their said if do will each about how up out them then she many some so
    these would other into has more her two like him see time could no make than first been its who now people my
    made over did down only way find use may water long little very after words called just where most know memory
"""


def made_up_text(size: int, seed: int = 0) -> str:
    """Return so many characters of lines of English words; the same for the same seed."""
    draw = random.Random(seed)
    words = _WORDS.split()
    lines: list[str] = []
    length = 0
    while length < size:
        line = " ".join(draw.choice(words) for _ in range(draw.randint(3, 12))).capitalize() + "."
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[: size - 1] + "\n"


def tiny(text: Path, cache: Path) -> list[str]:
    """Return the settings of a run of six steps of a model of two layers, on the CPU."""
    return [
        "data=text",
        f"data.path={text}",
        f"data.cache_dir={cache / 'corpora'}",
        "data.tokenizer=byte",
        "data.batch_size=4",
        "data.segment_len=5",
        "model=txl_tiny",
        "model.n_layer=2",
        "model.d_model=16",
        "model.n_head=2",
        "model.d_head=8",
        "model.d_inner=32",
        "model.mem_len=7",
        "logger=none",
        "callbacks.throughput.peak_flops=1e11",
        "callbacks.report.memory_tokens=0",
        "callbacks.sample.n_tokens=0",
        "trainer.accelerator=cpu",
        "trainer.precision=32-true",
        "trainer.max_steps=6",
        "trainer.val_check_interval=3",
        "trainer.limit_val_batches=4",
        "trainer.limit_test_batches=2",
        "trainer.log_every_n_steps=2",
        "scheduler.warmup_steps=2",
        "optimizer.lr=0.01",
        "trainer.enable_progress_bar=false",
    ]


def without(arguments: Sequence[str], *keys: str) -> list[str]:
    """Return the arguments less those that set one of the keys."""
    return [argument for argument in arguments if argument.partition("=")[0] not in keys]


# --- what a run leaves ---


def values_of(folder: Path, name: str) -> dict[int, float | None]:
    """Read one metric of `metrics.jsonl` by step; a step that stands twice is a mistake."""
    values: dict[int, float | None] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["name"] == name:
            assert entry["step"] not in values, f"{name} stands twice at step {entry['step']}"
            values[entry["step"]] = entry["value"]
    return values


def summary_of(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def checkpoint_of(folder: Path, name: str = "last") -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
    return checkpoint


def step_of(folder: Path, name: str = "last") -> int:
    return int(checkpoint_of(folder, name)["global_step"])


def weights_of(folder: Path, name: str = "last") -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = checkpoint_of(folder, name)["state_dict"]
    return weights


def assert_same_weights(folder: Path, other: Path, name: str = "last") -> None:
    one, two = weights_of(folder, name), weights_of(other, name)
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key


def assert_same_run(folder: Path, whole: Path) -> None:
    """Compare what two runs left, to the bit: every figure that is no speed, last and best weights, objective."""
    of_machine = ("tokens_per_second", "mfu", "memory_", "time", "seconds")

    def figures(run: Path) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        kept = [entry for entry in entries if not any(word in entry["name"] for word in of_machine)]
        return sorted(kept, key=lambda entry: (entry["step"], entry["name"]))

    assert figures(folder) == figures(whole)
    for name in ("last", "best"):
        assert step_of(folder, name) == step_of(whole, name), name
        assert_same_weights(folder, whole, name)
    one, two = summary_of(folder), summary_of(whole)
    for key in ("status", "exit_code", "objective"):
        assert one[key] == two[key], key


# --- commands in this process ---


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def printed(self) -> str:
        return self.out + self.err


def main_of(command: str) -> Any:
    """Return the main function of a command, found by the name under which it is installed."""
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts[f"txl-{command}"].partition(":")
    return getattr(importlib.import_module(module), name)


def call(command: str, *arguments: str, stdin: str = "", program: str | None = None) -> Result:
    """Call a command's main function with arguments, as its script does, or a program of another name."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = sys.argv, sys.stdin
    sys.argv = [program or str(REPOSITORY / f"{command}.py"), *arguments]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    status = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main_of(command)()
            except SystemExit as leaving:
                status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            for stream in (out, err):
                stream.flush()
    finally:
        sys.argv, sys.stdin = before
    printed = [stream.buffer.getvalue().decode(errors="replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Result(status, *printed)


# --- commands in processes of their own ---


@dataclass(frozen=True)
class Stop:
    """The moment at which a process stops itself, counted from 1.

    Attributes:
        moment: `train_batch`, `optimizer_step`, `validation_batch`, `test_batch`, `replace` (of a file by its new
            version), `save` (half of a checkpoint is written).
        number: how often it has come.
        how: names of signals, and `raise`, `pause` (for half a second) and `wait` (see `Forks.start`), in order.
        rank: of the process.
    """

    moment: str
    number: int
    how: str = "SIGKILL"
    rank: int = 0


class Forks:
    """Starts commands in processes that have imported everything: a second each instead of seven."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src"), *sys.path])
        environment.pop("WANDB_SERVICE", None)  # that of this process would hold the runs of all others
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.oracles.forkserver"],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._count = 0

    def start(
        self,
        command: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        stops: Sequence[Stop] = (),
        environment: Mapping[str, str | None] | None = None,
        reader: Sequence[str] = (),
        both: bool = False,
        ignore: Sequence[str] = (),
        program: str | None = None,
        code: str = "",
        limit: Mapping[str, int] | None = None,
    ) -> int:
        """Start a command and return its process id.

        Args:
            command: `train`, `evaluate`, ...
            arguments: of it.
            folder: working folder; `PID.out` and `PID.err` in it take what it prints. Where a stop says `wait`, the
                process leaves `PID.waiting` in it, and waits for `PID.go`.
            stops: when it stops itself.
            environment: variables to set, or to remove (None).
            reader: program that reads its standard output.
            both: it reads standard error too.
            ignore: signals that are ignored from the start, as `nohup` does.
            program: what it is started as; the script in this repository unless told.
            code: Python that is run before the command.
            limit: resource limits, as AS, in their own units.
        """
        return int(
            self._ask(
                command=command,
                arguments=list(arguments),
                folder=str(folder),
                stops=[vars(stop) for stop in stops],
                environment=dict(environment or {}),
                reader=list(reader),
                both=both,
                ignore=list(ignore),
                program=program or str(REPOSITORY / f"{command}.py"),
                code=code,
                limit=dict(limit or {}),
            )
        )

    def wait(self, process: int, *, seconds: float = SECONDS) -> int | None:
        """Return the status of a process that has ended, negative for a signal; None (and it is killed) in case not."""
        status: int | None = self._ask(wait=process, seconds=seconds)
        return status

    def run(self, command: str, arguments: Sequence[str], folder: Path, **options: Any) -> Result:
        """Run a command to its end; status -999 if it does not end in time."""
        seconds = options.pop("seconds", SECONDS)
        process = self.start(command, arguments, folder, **options)
        status = self.wait(process, seconds=seconds)
        return self.result(process, folder, status)

    def signal(self, process: int, name: str) -> None:
        """Send a signal to a process that was started."""
        os.kill(process, signal.Signals[name])

    def result(self, process: int, folder: Path, status: int | None) -> Result:
        printed = [(folder / f"{process}.{name}").read_text(errors="replace") for name in ("out", "err")]
        return Result(-999 if status is None else status, *printed)

    def until(self, condition: Callable[[], bool], *processes: int) -> None:
        """Wait for a condition while processes run."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            assert all(is_alive(process) for process in processes), "a process has ended"
            time.sleep(0.02)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(process: int) -> list[int]:
    """Return the processes that a process has started."""
    children: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            children += map(int, (task / "children").read_text().split())
    return children


def copy_run(run: Path, target: Path) -> Path:
    """Copy a run folder, which a test then changes."""
    shutil.copytree(run, target)
    return target


def places(processes: int) -> list[dict[str, str]]:
    """Return what torchrun tells each of its processes; nothing to one alone."""
    if processes == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes), "GROUP_RANK": "0"}
    shared |= {"TORCHELASTIC_RUN_ID": "oracle", "LOCAL_WORLD_SIZE": str(processes), "GROUP_WORLD_SIZE": "1"}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


@contextlib.contextmanager
def program(
    command: str, *arguments: str, cwd: Path, first: Sequence[str] = (), **environment: str | None
) -> Iterator[subprocess.Popen[str]]:
    """Start a script of this repository as a user does; it is ended with the block."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_SERVICE": None, **environment}
    process = subprocess.Popen(
        [*(first or [sys.executable]), str(REPOSITORY / f"{command}.py"), *arguments],
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
