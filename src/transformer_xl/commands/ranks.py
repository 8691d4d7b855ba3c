"""Which of several processes this one is, before any framework is imported."""

from __future__ import annotations

import os

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # in the order in which Lightning reads them


def is_main() -> bool:
    """Say whether this is the process, of all of a run's, that writes files and prints."""
    number = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")
    # where a person starts the command on each machine, its first process there has no other number
    machine = "0" if "RANK" in os.environ else os.environ.get("NODE_RANK", "0")
    return number == "0" and machine == "0"


def processes_from_outside() -> int:
    """Count the processes that torchrun or srun started with one command; 1 where nobody did."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    is_batch = os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")
    return int(os.environ.get("SLURM_NTASKS", "1")) if is_batch and "SLURM_PROCID" in os.environ else 1
