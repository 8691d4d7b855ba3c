"""A process that has imported everything and forks a command for each request; see `runs_support.Forks`."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Any

_IMPORTED = (
    *("lightning.pytorch", "matplotlib.pyplot", "pyarrow.csv", "pyarrow.parquet", "tokenizers", "torch.distributed"),
    *("torchmetrics", "wandb", "transformer_xl.build", "transformer_xl.commands.report"),
)
"""What commands import, whenever they do; what is not there any more is passed over."""


class _StepError(Exception):
    """A bug in the middle of a run."""


class _Moments:
    """Counts the moments that a process passes, and stops it at chosen ones."""

    def __init__(self, stops: list[dict[str, Any]]) -> None:
        self._stops = {(stop["moment"], stop["number"]): stop["how"] for stop in stops}
        self._passed: Counter[str] = Counter()

    def pass_(self, moment: str) -> None:
        self._passed[moment] += 1
        ways = self._stops.get((moment, self._passed[moment]))
        for way in ways.split(",") if ways else ():
            if way == "raise":
                raise _StepError(f"at {moment} {self._passed[moment]}")
            if way == "wait":
                _wait_to_go_on()
            elif way == "pause":
                _flush()
                time.sleep(0.5)
            else:
                os.kill(os.getpid(), signal.Signals[way])
                time.sleep(0.001)  # Python runs the handler


def _wait_to_go_on() -> None:
    """Leave PID.waiting, and wait for PID.go; in the folder in which the process began."""
    place = os.environ["ORACLE_FOLDER"]
    open(f"{place}/{os.getpid()}.waiting", "w").close()
    while not os.path.exists(f"{place}/{os.getpid()}.go"):
        time.sleep(0.02)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _watch(moments: _Moments) -> None:
    """Count moments through what Lightning, torch and Python themselves offer."""
    import lightning.pytorch as pl
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    class Watcher(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            moments.pass_("train_batch")

        def on_validation_batch_start(self, *_: Any) -> None:
            moments.pass_("validation_batch")

        def on_test_batch_start(self, *_: Any) -> None:
            moments.pass_("test_batch")

    start = pl.Trainer.__init__

    def with_watcher(trainer: Any, *args: Any, callbacks: Any = None, **options: Any) -> None:
        given = [] if callbacks is None else [callbacks] if isinstance(callbacks, pl.Callback) else list(callbacks)
        start(trainer, *args, callbacks=[*given, Watcher()], **options)

    pl.Trainer.__init__ = with_watcher
    register_optimizer_step_post_hook(lambda *_: moments.pass_("optimizer_step"))
    replace = os.replace

    def counted_replace(*args: Any, **options: Any) -> None:
        moments.pass_("replace")
        replace(*args, **options)

    os.replace = counted_replace
    save = torch.save

    def save_in_halves(content: Any, target: Any, *args: Any, **options: Any) -> None:
        buffer = io.BytesIO()
        save(content, buffer, *args, **options)
        whole = buffer.getvalue()
        file = open(target, "wb") if isinstance(target, str | os.PathLike) else target  # noqa: SIM115
        file.write(whole[: len(whole) // 2])
        file.flush()
        moments.pass_("save")
        file.write(whole[len(whole) // 2 :])
        if file is not target:
            file.close()

    torch.save = save_in_halves


def _run(request: Mapping[str, Any]) -> int:
    from tests.oracles.runs_support import main_of

    os.setpgid(0, 0)
    os.chdir(request["folder"])
    for name, value in request["environment"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    os.environ["ORACLE_FOLDER"] = request["folder"]
    _connect(request)
    _limit(request)
    rank = _make_believe(request)
    _watch(_Moments([stop for stop in request["stops"] if stop["rank"] == rank]))
    status = 1
    try:
        exec(request["code"], {})
        main_of(request["command"])()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    # no functions of `atexit`: they would remove temporary folders that imports made, and that all processes share
    try:
        _flush()
    except BrokenPipeError:
        status = 120  # as Python ends
    return status


def _connect(request: Mapping[str, Any]) -> None:
    """Connect the standard streams to files, or to a program that reads."""
    log, errors = (os.open(f"{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(errors, 2)
    if not request["reader"]:
        return
    reads, writes = os.pipe()
    reader = subprocess.Popen(request["reader"], stdin=reads, stdout=log, close_fds=True)
    os.close(reads)
    for number in (1, 2) if request["both"] else (1,):
        os.dup2(writes, number)
    os.close(writes)
    if request["reader"] == ["true"]:
        reader.wait()


def _limit(request: Mapping[str, Any]) -> None:
    """Set signals and resources; the tests themselves may run under nohup, or behind a shell's &."""
    import resource

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in request["ignore"]:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    for name, value in request["limit"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _make_believe(request: Mapping[str, Any]) -> int:
    """Let the process look as if its script had just been started; return its rank."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only
    from wandb.sdk.data_types._private import MEDIA_TMP

    os.makedirs(MEDIA_TMP.name, exist_ok=True)  # which a process forked before this one may have removed
    sys.argv = [request["program"], *request["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]  # what starts other processes sees a script that Python was given
    sys.modules["__main__"].__spec__ = None
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        rank_zero_only.rank = rank  # type: ignore[attr-defined]  # as its import does
    return rank


def _wait(process: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _serve() -> None:
    import torch

    from tests.oracles.runs_support import main_of

    for module in _IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    torch.set_num_threads(1)
    for command in ("train", "evaluate", "score", "generate"):
        main_of(command)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: Any = _wait(request["wait"], request["seconds"])
        else:
            sys.stdout.flush()
            answer = os.fork()
            if answer == 0:
                os._exit(_run(request))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
