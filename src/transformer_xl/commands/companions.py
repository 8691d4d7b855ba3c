"""The other processes of a run on this machine: started, watched, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from hydra.utils import get_original_cwd
from lightning.pytorch import Trainer

from transformer_xl import launchers
from transformer_xl.commands import ranks
from transformer_xl.commands.cli import quote
from transformer_xl.errors import LostProcess, Stopped, UserError
from transformer_xl.training.signals import EXIT_CODES

LOST_ANOTHER = 69
"""Exit status of a process that ends because another has ended."""

_PARENT = "TRANSFORMER_XL_MAIN_PROCESS"
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_NOTICE = 15.0
_SECONDS_TO_END = 5.0
_SECONDS_TO_SPEAK = 1.0
_SECONDS_FOR_OTHERS_TO_LEAVE = 10.0


class Companions:
    """Processes that this one has started, one for each further device of its machine."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._first_rank = 0
        self._world_size = 1
        self._failed = threading.Event()
        self._dismissed = threading.Event()
        self._failure: Stopped | None = None
        self._give_up: Callable[[Stopped], None] = lambda _: None
        self._environment_before: dict[str, str | None] = {}

    def start(self, command: list[str], folder: Path, trainer: Trainer) -> None:
        """Start a process for each device but the first, and watch them; none where torchrun or srun has done so.

        Args:
            command: of this process: the program and its arguments as the user typed them.
            folder: of the run.
            trainer: knows the devices.
        """
        environment = launchers.own_environment(trainer)
        if environment is None:
            return
        node, devices = environment.node_rank(), trainer.num_devices
        self._first_rank, self._world_size = node * devices, trainer.world_size
        meeting = {
            "MASTER_ADDR": environment.main_address,
            "MASTER_PORT": str(environment.main_port),
            "NODE_RANK": str(node),
            "WORLD_SIZE": str(trainer.world_size),
            "LOCAL_RANK": "0",  # by which Lightning knows that it need not start them
        }
        self._environment_before = {name: os.environ.get(name) for name in meeting}
        os.environ.update(meeting)
        for local_rank in range(1, devices):
            self._processes.append(
                subprocess.Popen(
                    command_of_process(command, folder, local_rank),
                    env={**os.environ, "LOCAL_RANK": str(local_rank), _PARENT: str(os.getpid())},
                    cwd=get_original_cwd(),
                    process_group=0,  # a terminal's Ctrl-C is for the main process, which tells the others
                )
            )
        threading.Thread(target=self._watch, name="companions", daemon=True).start()

    def when_one_is_lost(self, give_up: Callable[[Stopped], None]) -> None:
        """Set what a thread calls, with the reason, when a process has ended and this one has not noticed."""
        self._give_up = give_up

    def dismiss(self) -> None:
        """Let the processes end from here on: they have done their part."""
        self._dismissed.set()

    def failure(self) -> Stopped | None:
        """Say why the run cannot go on, where that is because one of the processes has ended.

        Waits for that a little: a connection breaks before its process has quite ended.
        """
        if self._processes:
            self._failed.wait(_SECONDS_TO_NOTICE)
        return self._failure

    def end(self, *, all_is_done: bool) -> None:
        """End those that do not end by themselves, and take back what `start` put into the environment."""
        self.dismiss()
        deadline = time.monotonic() + (_SECONDS_TO_END if all_is_done else _SECONDS_TO_SPEAK)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        for name, value in self._environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def kill(self) -> None:
        """End all of them at once; they hold nothing that could be lost."""
        for process in self._processes:
            process.kill()  # does nothing to one that has ended

    def _watch(self) -> None:
        while self._failure is None:
            if self._dismissed.wait(_SECONDS_BETWEEN_LOOKS):
                return
            self._failure = self._first_failure()
        self._failed.set()
        if not self._dismissed.wait(_SECONDS_TO_NOTICE):
            self._give_up(self._failure)

    def _first_failure(self) -> Stopped | None:
        ended = [(number, process.poll()) for number, process in enumerate(self._processes, start=1)]
        failed = [(number, status) for number, status in ended if status]
        # one that ended because another did is not the cause
        failed.sort(key=lambda entry: entry[1] == LOST_ANOTHER)
        if not failed:
            return None
        number, status = failed[0]
        who = f"process {self._first_rank + number + 1} of {self._world_size}"
        if status in EXIT_CODES.values():
            return Stopped(f"{who} was stopped by a signal outside of training's steps", exit_code=status)
        return LostProcess(f"{who} ended ({_in_words(status)})")


def _in_words(status: int) -> str:
    if status == -signal.SIGKILL:
        return "killed by SIGKILL; was memory short?"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def command_of_process(command: list[str], folder: Path, local_rank: int) -> list[str]:
    """Give what starts a further process of the job that Hydra is at: as this one was, in the same run folder.

    Args:
        command: of this process: a script, a console script or a module, and its arguments as the user typed them.
        folder: of the run.
        local_rank: of the further process on this machine.
    """
    spec = sys.modules["__main__"].__spec__
    program = [os.path.abspath(command[0])] if spec is None else ["-m", spec.name]
    of_process = [
        f"hydra.run.dir={quote(str(folder))}",
    ]
    return [sys.executable, *program, *command[1:], *of_process]


def end_with_main_process() -> None:
    """In a process that another has started: end when that one does, whatever this one is doing."""
    if _PARENT in os.environ:
        threading.Thread(target=_follow, args=(int(os.environ[_PARENT]),), name="main-process", daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    rank = int(os.environ["LOCAL_RANK"])
    with contextlib.suppress(OSError):
        print(f"process {rank + 1} ends: the main process has ended", file=sys.stderr, flush=True)
    os._exit(LOST_ANOTHER)


def is_broken_connection(error: BaseException) -> bool:
    """Say whether an error means that another process does not answer any more."""
    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def leave_quietly(error: BaseException) -> None:
    """End without a word where the main process tells the user.

    That one is given time to do so, and to end this one, before it says itself what nobody else may know.

    Raises:
        SystemExit: with the status that belongs to the error; other errors than a stop or a mistake are left alone.
    """
    if ranks.is_main():
        if isinstance(error, Stopped) and launchers.is_started_by_srun():
            time.sleep(_SECONDS_FOR_OTHERS_TO_LEAVE)  # srun ends those that are there when this one gives its status
        return
    try:
        if isinstance(error, LostProcess | UserError):
            time.sleep(_SECONDS_TO_END)
    except Stopped as stopped:
        raise SystemExit(_status_of(stopped)) from error
    if isinstance(error, LostProcess):
        print(str(error), file=sys.stderr)
        raise SystemExit(LOST_ANOTHER) from error
    if isinstance(error, Stopped):
        raise SystemExit(_status_of(error)) from error


def _status_of(stopped: Stopped) -> int:
    # srun ends all processes when one gives another status than 0, and the main one may still be writing
    return 0 if launchers.is_started_by_srun() else stopped.exit_code
