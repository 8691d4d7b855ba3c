"""The processes of a run: started by Lightning's launcher, torchrun or srun; the first decides, the others follow.

Lightning's launcher starts the further processes with this process's own command line once training begins; they learn
from the environment which run they belong to. Under torchrun and srun all start at once, and the first one broadcasts
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from transformer_xl.errors import Stopped, UserError

if TYPE_CHECKING:
    from lightning.fabric.plugins import ClusterEnvironment
    from lightning.pytorch import Trainer

_RUN = "TRANSFORMER_XL_RUN"
"""In the environment of a process of Lightning's launcher: the run, and the folders of its parent's earlier ones."""
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # in the order in which Lightning reads them
_OF_LAUNCHER = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", _RUN)
_SPINS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SECONDS_TO_LEAVE = 3.0
_SECONDS_TO_NOTICE = 3.0

_earlier: list[str] = []
"""Folders of the runs that this process has trained, in order."""


def is_main() -> bool:
    """Return whether this is the process, of all of a run's, that decides, writes files and prints."""
    if "SLURM_PROCID" in os.environ and not _is_slurm_step() and "RANK" not in os.environ:
        return os.environ.get("LOCAL_RANK", "0") == "0"
    return next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0") == "0"


def spin_briefly() -> None:
    """Let OpenMP's threads wait a moment rather than long for each other, unless the user has chosen; before torch.

    Long spinning makes everything many times slower on a machine that other processes share.
    """
    if not any(name in os.environ for name in _SPINS):
        os.environ["GOMP_SPINCOUNT"] = "4000"  # see docs/performance.md
        os.environ["KMP_BLOCKTIME"] = "1"


def _is_slurm_step() -> bool:
    return "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1


def is_started_by_srun() -> bool:
    """Return whether srun has started this process and the others of its run."""
    return "TORCHELASTIC_RUN_ID" not in os.environ and _is_slurm_step()


def cluster_environment() -> ClusterEnvironment | None:
    """Return what started this process, as Lightning knows it; None: Lightning shall find out.

    Raises:
        UserError: srun was not told how many processes a machine has.
    """
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    if not _is_slurm_step():
        return LightningEnvironment() if "SLURM_NTASKS" in os.environ else None
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        tasks = os.environ["SLURM_NTASKS"]
        raise UserError(
            f"srun starts {tasks} processes and does not say how many on each machine: give it "
            f"--ntasks-per-node={tasks}, or as many as a machine has devices"
        )
    return SLURMEnvironment(auto_requeue=False)  # which would save within a signal handler, in the middle of a step


def check_number(trainer: Trainer) -> None:
    """Refuse a run whose settings ask for another number of processes than were started.

    Raises:
        UserError: both numbers.
    """
    asked, num_nodes = trainer.num_devices * trainer.num_nodes, trainer.num_nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher, started = "torchrun", int(os.environ["WORLD_SIZE"])
        machines = started // int(os.environ["LOCAL_WORLD_SIZE"])
    elif is_started_by_srun():
        launcher, started = "srun", int(os.environ["SLURM_NTASKS"])
        machines = int(os.environ.get("SLURM_STEP_NUM_NODES", os.environ.get("SLURM_NNODES", "1")))
    elif num_nodes > 1:
        raise UserError(f"trainer.num_nodes is {num_nodes}: start the processes of all machines by torchrun or srun")
    else:
        return
    advice = f"give trainer.devices={started // machines} trainer.num_nodes={machines}"
    if started != asked:
        raise UserError(
            f"{launcher} started {started} processes, and trainer.devices={trainer.num_devices} with "
            f"trainer.num_nodes={num_nodes} ask for {asked}: {advice}"
        )
    if num_nodes != machines:
        raise UserError(
            f"{launcher} started processes on {machines} machines, and trainer.num_nodes is {num_nodes}: {advice}"
        )


class Meeting:
    """Where the first process tells the others which run it is."""

    def __init__(self) -> None:
        by_hand = int(os.environ.get("WORLD_SIZE", "1")) > 1 and _RUN not in os.environ
        self.is_broadcast = "TORCHELASTIC_RUN_ID" in os.environ or is_started_by_srun() or by_hand
        self._has_told = False

    def tell(self, run: dict[str, Any] | None) -> None:
        """Tell all others of this process's launcher what to run; None: nothing."""
        if self.is_broadcast and not self._has_told:
            self._has_told = True
            _broadcast(run)

    def leave(self) -> None:
        """End a process that Lightning's launcher has started for this run alone, whatever its script would do next."""
        if not self.is_broadcast and not is_main():
            raise SystemExit(0)

    def hear(self) -> dict[str, Any] | None:
        """Return what the first process says that is to be run; None: nothing."""
        if self.is_broadcast:
            heard: dict[str, Any] | None = _broadcast(None)
            return heard
        runs: list[Any] = json.loads(os.environ[_RUN])
        number = len(_earlier)
        if number + 1 < len(runs):  # a script's earlier call, which its first process has made alone with others
            _earlier.append(runs[number])
            return {"finished": runs[number]}
        run: dict[str, Any] = runs[number]
        return run


def _broadcast(run: dict[str, Any] | None) -> Any:
    import torch

    box = [run]
    torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


@contextlib.contextmanager
def together() -> Iterator[Meeting]:
    """Let the processes of torchrun or srun meet before the first one decides, and take all of it back at the end."""
    before = {name: os.environ.get(name) for name in _OF_LAUNCHER}
    meeting = Meeting()
    if meeting.is_broadcast:
        _join()
    elif not is_main():
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), name="parent", daemon=True).start()
    try:
        yield meeting
    finally:
        if is_main():
            with contextlib.suppress(Exception):  # of others that have ended
                meeting.tell(None)
        _leave(before)


def _join() -> None:
    import torch
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and torch.distributed.is_nccl_available() else "gloo"
    environment = cluster_environment()
    if isinstance(environment, SLURMEnvironment):
        rank, size = environment.global_rank(), environment.world_size()
        address, port = environment.main_address, environment.main_port
    else:
        rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))
        size = int(os.environ["WORLD_SIZE"])
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"])
    options: dict[str, Any] = {"rank": rank, "world_size": size, "timeout": timedelta(minutes=30)}
    if "TORCHELASTIC_USE_AGENT_STORE" not in os.environ:  # else torchrun's agent listens there
        options["init_method"] = f"tcp://{address}:{port}"
    try:
        torch.distributed.init_process_group(backend, **options)
    except torch.distributed.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise UserError(f"MASTER_PORT is {port}, and another program listens there: set another") from error


def _leave(before: dict[str, str | None]) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        with contextlib.suppress(Exception):
            torch.distributed.destroy_process_group()
    for name, value in before.items():  # Lightning leaves them behind, and the next run would take them for its own
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def announce(run: dict[str, Any]) -> None:
    """Leave the run in the environment, for the processes that Lightning's launcher starts."""
    if _RUN not in os.environ:
        os.environ[_RUN] = json.dumps([*_earlier, run])
    _earlier.append(str(run["folder"]))


def _end_with_parent(parent: int) -> None:
    """End this process when the one that started it has ended, whatever it waits for."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def is_broken_connection(error: BaseException) -> bool:
    """Return whether an error means that another process does not answer any more."""
    import torch

    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def lost_process(trainer: Trainer | None) -> str:
    """Say which process of the run has ended, where this one has started it."""
    processes = getattr(getattr(getattr(trainer, "strategy", None), "launcher", None), "procs", [])
    deadline = time.monotonic() + _SECONDS_TO_NOTICE
    while processes and time.monotonic() < deadline:  # a connection breaks before its process has quite ended
        for number, process in enumerate(processes, start=2):
            status = process.poll()
            if status is not None:
                return f"process {number} of {len(processes) + 1} has ended ({_status_in_words(status)})"
        time.sleep(0.1)
    return "another process of the run has ended"


def _status_in_words(status: int) -> str:
    if status == -signal.SIGKILL:
        return "killed by SIGKILL; was memory short?"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def end_quietly(error: BaseException) -> None:
    """End a process that is not the first without a word where the first one speaks for all.

    Raises:
        SystemExit: 0 after an agreed stop or a mistake, which the first process's status tells; 1 where one was lost.
    """
    if is_main():
        if isinstance(error, Stopped) and is_started_by_srun():
            time.sleep(_SECONDS_TO_LEAVE)  # srun ends those that are there when this one gives its status
        return
    if isinstance(error, Stopped | UserError):
        raise SystemExit(1 if isinstance(error, Stopped) and error.exit_code == 1 else 0) from error
