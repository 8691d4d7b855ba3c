"""The processes of a run: started by Lightning's launcher, torchrun or srun; the first decides, the others follow.

Lightning's launcher starts the further processes with this process's own command line once training begins; they learn
from the environment which run they belong to. Under torchrun and srun all start at once, and the first one broadcasts
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from transformer_xl.errors import Stopped, UserError

if TYPE_CHECKING:
    from lightning.fabric.plugins import ClusterEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy

    from transformer_xl.config import DdpConfig

_RUN = "TRANSFORMER_XL_RUN"
"""In the environment of a process of Lightning's launcher: the run that it belongs to."""
_OF_LAUNCHER = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", _RUN)
_SPINS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SECONDS_TO_LEAVE = 3.0
_SECONDS_TO_NOTICE = 3.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


# ---- the machine


def spin_briefly() -> None:
    """Let OpenMP's threads wait a moment rather than long for each other, unless the user has chosen; before torch.

    Long spinning makes everything many times slower on a machine that other processes share.
    """
    if not any(name in os.environ for name in _SPINS):
        os.environ["GOMP_SPINCOUNT"] = "4000"  # see docs/performance.md
        os.environ["KMP_BLOCKTIME"] = "1"


def keep_freed_memory() -> None:
    """Have this process keep freed blocks of up to 40 MiB for itself; does nothing without the GNU C library.

    That library asks the system for each large block and gives it back when it is freed; a training step on a CPU then
    spends up to half of its time on the system's clearing of pages that it had a moment ago. Larger blocks, as logits
    of many words, would find their room taken by smaller ones, and need more.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        if not libc.mallopt(_M_MMAP_THRESHOLD, 40 << 20):
            libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most of older libraries
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


# ---- who started the processes


def is_main() -> bool:
    """Return whether this is the process, of all of a run's, that decides, writes files and prints."""
    names = ("RANK", "SLURM_PROCID" if is_started_by_srun() else "LOCAL_RANK")
    return next((os.environ[name] for name in names if os.environ.get(name)), "0") == "0"


def is_started_by_srun() -> bool:
    """Return whether srun has started this process and the others of its run."""
    several = "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1
    return several and "TORCHELASTIC_RUN_ID" not in os.environ


def _all_start_at_once() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ or is_started_by_srun()


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
    if not is_started_by_srun():
        return LightningEnvironment() if "SLURM_NTASKS" in os.environ else None
    try:
        return SLURMEnvironment(auto_requeue=False)  # which would save within a signal handler, in the middle of a step
    except RuntimeError as error:
        raise UserError(str(error)) from error


def ddp_strategy(settings: DdpConfig) -> DDPStrategy:
    """Return Lightning's strategy for several processes, which exchange gradients as settings say."""
    from lightning.pytorch.strategies import DDPStrategy
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return DDPStrategy(
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        ddp_comm_hook=bf16_compress_hook if settings.bf16_gradients else None,
    )


def check_number(trainer: Trainer) -> None:
    """Refuse a run whose settings ask for another number of processes than were started.

    Raises:
        UserError: both numbers.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher, started = "torchrun", int(os.environ["WORLD_SIZE"])
        machines = started // int(os.environ["LOCAL_WORLD_SIZE"])
    elif is_started_by_srun():
        launcher, started = "srun", int(os.environ["SLURM_NTASKS"])
        machines = int(os.environ.get("SLURM_STEP_NUM_NODES", os.environ.get("SLURM_NNODES", "1")))
    elif trainer.num_nodes > 1:
        raise UserError("trainer.num_nodes is above 1: start the processes of all machines by torchrun or srun")
    else:
        return
    if (trainer.num_devices, trainer.num_nodes) != (started // machines, machines):
        raise UserError(
            f"trainer.devices={trainer.num_devices} trainer.num_nodes={trainer.num_nodes}, but {launcher} started "
            f"{started} processes: give trainer.devices={started // machines} trainer.num_nodes={machines}"
        )


# ---- the first process tells the others


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Let the processes of torchrun or srun meet, and take all of it back at the end."""
    before = {name: os.environ.get(name) for name in _OF_LAUNCHER}
    if _all_start_at_once():
        _join()
    elif not is_main():
        parent = json.loads(os.environ[_RUN])["pid"]  # which may have ended by now
        threading.Thread(target=_end_with_parent, args=(parent,), name="parent", daemon=True).start()
    try:
        yield
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_initialized():
            with contextlib.suppress(Exception):
                torch.distributed.destroy_process_group()
        for name, value in before.items():  # Lightning leaves them behind, and the next run would take them for its own
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _join() -> None:
    import torch

    environment = cluster_environment()
    assert environment is not None
    port = environment.main_port
    where = f"tcp://{environment.main_address}:{port}" if is_started_by_srun() else "env://"
    try:
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and torch.distributed.is_nccl_available() else "gloo",
            init_method=where,
            rank=environment.global_rank(),
            world_size=environment.world_size(),
            timeout=timedelta(minutes=30),
        )
    except torch.distributed.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise UserError(f"MASTER_PORT is {port}, and another program listens there: set another") from error


def _end_with_parent(parent: int) -> None:
    """End this process when the one that started it has ended, whatever it waits for."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def share(decide: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what the first process decides, in plain containers, on each process.

    Raises:
        SystemExit: on the other processes, where the first one does not decide: it says why.
    """
    if not _all_start_at_once():
        decided: dict[str, Any] = decide() if is_main() else json.loads(os.environ[_RUN])
        return decided
    try:
        box = [decide() if is_main() else None]
    except BaseException:
        with contextlib.suppress(Exception):  # of others that have ended
            _broadcast([None])
        raise
    _broadcast(box)
    if box[0] is None:
        raise SystemExit(0)
    return box[0]


def _broadcast(box: list[Any]) -> None:
    import torch

    torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))


def announce(run: dict[str, Any]) -> None:
    """Leave the run in the environment, for the processes that Lightning's launcher starts."""
    os.environ.setdefault(_RUN, json.dumps(run | {"pid": os.getpid()}))


# ---- how processes end


def leave() -> None:
    """End a process that Lightning's launcher has started for one run, whatever its script would do next."""
    if not _all_start_at_once() and not is_main():
        raise SystemExit(0)


def is_broken_connection(error: BaseException) -> bool:
    """Return whether an error means that another process does not answer any more."""
    import torch

    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def lost_process(trainer: Trainer | None) -> str:
    """Say which process of the run has ended, where this one has started it."""
    started = getattr(getattr(getattr(trainer, "strategy", None), "launcher", None), "procs", [])
    deadline = time.monotonic() + _SECONDS_TO_NOTICE
    while started and time.monotonic() < deadline:  # a connection breaks before its process has quite ended
        for number, process in enumerate(started, start=2):
            if process.poll() is not None:
                return f"process {number} of {len(started) + 1} has ended with status {process.returncode}"
        time.sleep(0.1)
    return "another process of the run has ended"


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
