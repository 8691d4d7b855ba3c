"""Processes of `train.py` by fork: a server imports everything once, so that a process costs a second and not five.

The server runs no computation and starts no thread; what it forks is a process of `train.py` like any other, but that
the moments it passes are counted (`MOMENTS`), so that a test can stop it at one of them, always the same.

Started as a program, this file is the server: one JSON object a line each way.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]

MOMENTS = (
    *("batch", "training_step", "backward", "zero_grad", "optimizer_step", "validation_step", "test_step"),
    *("write", "fsync", "replace", "link", "record"),
)
"""Each counts before and after; `write` is when half of a checkpoint's bytes are written. What passes before the first
batch, files written, counts as `start`, and not among all."""


@dataclass(frozen=True)
class Stop:
    """What a process does to itself at a moment.

    Attributes:
        number: at which moment of its kind, from 1.
        moment: one of `MOMENTS` or `start`; None: all kinds but `start` are counted together.
        how: a signal's name, or `raise` for an exception.
        rank: of the process that does it.
    """

    number: int
    moment: str | None = None
    how: str = "SIGKILL"
    rank: int = 0


class StepError(Exception):
    """What a stop raises that is no signal."""


class Server:
    """Starts processes of `train.py` in the server and waits for them."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]),
        }
        environment.pop("WANDB_SERVICE", None)  # that of this process would hold the runs of all others
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.forked"],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self,
        arguments: list[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        stop: Stop | None = None,
        counts: Path | None = None,
        seconds_a_step: float | None = None,
    ) -> int:
        """Start a process and return its id.

        Args:
            arguments: of `train.py`.
            log: file that takes what it prints.
            environment: variables beside those of the tests.
            stop: at which moment it stops itself.
            counts: where it writes at its end how often it passed each moment.
            seconds_a_step: by its clock for `trainer.max_time`; None: real time.
        """
        return int(
            self._ask(
                arguments=arguments,
                log=str(log),
                environment=dict(environment or {}),
                stop=None if stop is None else asdict(stop),
                counts=None if counts is None else str(counts),
                seconds_a_step=seconds_a_step,
            )
        )

    def wait(self, processes: list[int], *, seconds: float = 240) -> dict[int, int]:
        """Wait until one of the processes has ended; give the status of all that have, -9 for SIGKILL."""
        ended: dict[str, int] = self._ask(wait=processes, seconds=seconds)
        assert ended, f"processes {processes} still run after {seconds} s"
        return {int(process): status for process, status in ended.items()}

    def kill(self, processes: list[int]) -> None:
        """End processes at once; each still has to be waited for."""
        self._ask(kill=processes)

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class _Counter:
    """Counts the moments that a process passes, and stops it at the chosen one."""

    def __init__(self, stop: Stop | None) -> None:
        self.passed: Counter[str] = Counter()
        self._stop = stop
        self._trains = False

    def pass_(self, moment: str) -> None:
        self._trains = self._trains or moment == "batch"
        moment = moment if self._trains else "start"
        self.passed[moment] += 1
        stop = self._stop
        if stop is None or (stop.moment != moment if stop.moment is not None else moment == "start"):
            return
        if stop.number == (self.passed.total() - self.passed["start"] if stop.moment is None else self.passed[moment]):
            if stop.how == "raise":
                raise StepError(f"raised at moment {stop.number}")
            os.kill(os.getpid(), signal.Signals[stop.how])

    def around(self, owner: Any, name: str, moment: str) -> None:
        """Count a moment before and after each call of a function."""
        function: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.pass_(moment)
            result = function(*args, **kwargs)
            self.pass_(moment)
            return result

        setattr(owner, name, counted)


def _count_moments(counter: _Counter) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    from transformer_xl.training.module import LanguageModule
    from transformer_xl.training.recorder import Recorder

    counter.around(LanguageModule, "on_train_batch_start", "batch")
    for name in ("training_step", "validation_step", "test_step"):
        counter.around(LanguageModule, name, name)
    counter.around(torch.Tensor, "backward", "backward")
    counter.around(torch.optim.Optimizer, "zero_grad", "zero_grad")
    register_optimizer_step_pre_hook(lambda *_: counter.pass_("optimizer_step"))
    register_optimizer_step_post_hook(lambda *_: counter.pass_("optimizer_step"))
    for name in ("fsync", "replace", "link"):
        counter.around(os, name, name)
    counter.around(Recorder, "record", "record")
    save = torch.save

    def save_in_halves(content: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        buffer = io.BytesIO()
        save(content, buffer, *args, **kwargs)
        whole = buffer.getvalue()
        file = open(target, "wb") if isinstance(target, str | os.PathLike) else target  # noqa: SIM115
        file.write(whole[: len(whole) // 2])
        file.flush()
        counter.pass_("write")
        file.write(whole[len(whole) // 2 :])
        if file is not target:
            file.close()

    torch.save = save_in_halves


def _train(request: Mapping[str, Any]) -> int:
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from transformer_xl.commands.train import main
    from transformer_xl.training import stopping

    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # as its import does
    sys.argv = [str(REPOSITORY / "train.py"), *request["arguments"]]
    stop = None if request["stop"] is None else Stop(**request["stop"])
    counter = _Counter(stop if stop is not None and stop.rank == rank else None)
    _count_moments(counter)
    if request["seconds_a_step"] is not None:
        ticks = iter(range(10**9))
        stopping.monotonic = lambda: next(ticks) * request["seconds_a_step"]
    status = 1
    try:
        main()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    if request["counts"] is not None:
        Path(request["counts"]).write_text(json.dumps(counter.passed))
    # no functions of `atexit`: they would remove temporary folders that imports made, and that all processes share
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _wait(processes: list[int], seconds: float) -> dict[int, int]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended = {}
        for process in processes:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                ended[process] = os.waitstatus_to_exitcode(status)
        if ended:
            return ended
        time.sleep(0.005)
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return {}


def _serve() -> None:
    # all that a process of `train.py` imports, whenever it does
    import matplotlib.pyplot
    import wandb  # noqa: F401

    import transformer_xl.build
    import transformer_xl.commands.report  # noqa: F401

    matplotlib.use("Agg")
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: Any = _wait(request["wait"], request["seconds"])
        elif "kill" in request:
            answer = None
            for process in request["kill"]:
                os.kill(process, signal.SIGKILL)
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(_train(request))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
