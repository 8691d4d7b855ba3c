"""Which process writes and prints, by what launchers put into the environment."""

from __future__ import annotations

import pytest

from transformer_xl.commands import ranks

NAMES = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize(
    ("environment", "is_main"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0"}, True),
        ({"RANK": "4", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "3"}, False),
        ({"SLURM_PROCID": "0"}, True),
    ],
    ids=str,
)
def test_one_process_is_the_main_one(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_main: bool
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ranks.is_main() is is_main


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "3"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "train"}, 4),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, 1),
    ],
    ids=str,
)
def test_processes_that_were_started_from_outside_are_counted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    for name in (*NAMES, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ranks.processes_from_outside() == count
