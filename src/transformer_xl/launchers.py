"""Who starts the processes of a run: this program itself, torchrun, or Slurm's srun."""

from __future__ import annotations

import os

from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer

from transformer_xl.errors import UserError


def cluster_environment() -> ClusterEnvironment | None:
    """Find out what started this process; None: Lightning shall look for launchers that are not known here.

    Raises:
        UserError: srun was not told how many processes a machine has.
    """
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    tasks = int(os.environ.get("SLURM_NTASKS", "0"))
    if tasks == 0 or SLURMEnvironment.job_name() in ("bash", "interactive"):
        return None
    if tasks == 1:
        return LightningEnvironment()  # one task may have several devices, for which this program starts processes
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise UserError(
            f"srun starts {tasks} processes and does not say how many on each machine: give it "
            f"--ntasks-per-node={tasks}, or as many as a machine has devices"
        )
    return SLURMEnvironment(auto_requeue=False)  # which would save within a signal handler, in the middle of a step


def is_started_by_srun() -> bool:
    """Say whether srun has started this process and the others of its run."""
    return isinstance(cluster_environment(), SLURMEnvironment)


def check_number_of_processes(trainer: Trainer, environment: ClusterEnvironment | None) -> None:
    """Refuse a run whose settings ask for another number of processes than were started.

    Raises:
        UserError: both numbers.
    """
    if not isinstance(environment, TorchElasticEnvironment | SLURMEnvironment):
        return
    launcher = "srun" if isinstance(environment, SLURMEnvironment) else "torchrun"
    started, asked = environment.world_size(), trainer.num_devices * trainer.num_nodes
    if started != asked:
        raise UserError(
            f"{launcher} started {started} processes, and trainer.devices={trainer.num_devices} with "
            f"trainer.num_nodes={trainer.num_nodes} ask for {asked}: {_how_many(launcher, started)}"
        )
    machines = _machines(launcher, started)
    if trainer.num_nodes != machines:
        raise UserError(
            f"{launcher} started processes on {machines} machines, and trainer.num_nodes is {trainer.num_nodes}: "
            f"{_how_many(launcher, started)}"
        )


def _how_many(launcher: str, started: int) -> str:
    machines = _machines(launcher, started)
    return f"give trainer.devices={started // machines} trainer.num_nodes={machines}"


def _machines(launcher: str, started: int) -> int:
    if launcher == "srun":
        return int(os.environ.get("SLURM_STEP_NUM_NODES", os.environ.get("SLURM_NNODES", "1")))
    return started // int(os.environ["LOCAL_WORLD_SIZE"])


def own_environment(trainer: Trainer) -> ClusterEnvironment | None:
    """Say where the processes of a run shall meet that this program has to start itself; None: there are none."""
    environment: ClusterEnvironment | None = getattr(trainer.strategy, "cluster_environment", None)  # one device: none
    if isinstance(environment, LightningEnvironment) and not environment.creates_processes_externally:
        return environment
    return None
