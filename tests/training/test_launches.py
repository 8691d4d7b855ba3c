"""Processes that torchrun or srun has started: one folder, one W&B run, one voice, the numbers of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch import Trainer

from tests.conftest import REPOSITORY, read_values, run_training, tiny_overrides
from tests.training.processes import SECONDS, Ended, start_slowed
from transformer_xl import launchers
from transformer_xl.errors import UserError

EXACT = ["trainer.precision=64-true", "data.batch_size=5", "trainer.max_steps=6"]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run_under(first: tuple[str, ...], arguments: list[str], cwd: Path, **environment: str) -> Ended:
    process = subprocess.Popen(
        [*first, str(REPOSITORY / "train.py"), *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stdout, stderr = process.communicate(timeout=SECONDS)
    return Ended(process.returncode, stdout, stderr, {})


@pytest.mark.slow
def test_processes_that_torchrun_starts_are_one_run(text_file: Path, tmp_path: Path) -> None:
    base = [*tiny_overrides(text_file, tmp_path), *EXACT]
    one = run_training([*base, f"hydra.run.dir={tmp_path / 'one'}"], tmp_path)
    assert one.status == 0, one.stderr
    two = tmp_path / "two"
    monitored = [argument for argument in base if argument != "logger=none"]
    ended = run_under(
        TORCHRUN, [*monitored, "trainer.devices=2", f"hydra.run.dir={two}"], tmp_path, WANDB_MODE="offline"
    )
    assert ended.status == 0, ended.stderr
    assert ended.stdout.count("parameters") == 1
    assert len(list(two.glob("wandb/offline-run-*/*.wandb"))) == 1
    for name in ("train/loss", "val/loss", "test/loss"):
        assert read_values(two, name) == pytest.approx(one.values(name), rel=1e-9)
    assert json.loads((two / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_other_numbers_than_torchrun_started_are_refused_in_one_sentence(text_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    ended = run_under(TORCHRUN, [*tiny_overrides(text_file, tmp_path), f"hydra.run.dir={folder}"], tmp_path)
    assert ended.status == 1  # torchrun's own
    (sentence,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "torchrun started 2 processes" in sentence
    assert "trainer.devices=2 trainer.num_nodes=1" in sentence


@pytest.mark.slow
def test_torchrun_ends_the_others_when_one_is_killed(text_file: Path, tmp_path: Path) -> None:
    run = start_slowed("training_step", 0.05, text_file, tmp_path, "trainer.max_steps=600", first=TORCHRUN)
    os.kill(run.companions[1], signal.SIGKILL)
    ended = run.ended()
    assert ended.status != 0


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_who_started_the_processes(variables: pytest.MonkeyPatch) -> None:
    assert launchers.cluster_environment() is None
    variables.setenv("SLURM_NTASKS", "1")
    assert isinstance(launchers.cluster_environment(), LightningEnvironment)
    variables.setenv("SLURM_NTASKS", "4")
    with pytest.raises(UserError, match="--ntasks-per-node=4"):
        launchers.cluster_environment()
    variables.setenv("SLURM_NTASKS_PER_NODE", "2")
    environment = launchers.cluster_environment()
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue
    variables.setenv("SLURM_JOB_NAME", "interactive")
    assert launchers.cluster_environment() is None
    variables.setenv("TORCHELASTIC_RUN_ID", "x")
    assert isinstance(launchers.cluster_environment(), TorchElasticEnvironment)


@pytest.mark.parametrize(
    ("tasks", "machines", "devices", "nodes", "words"),
    [
        (4, 2, 2, 2, None),
        (4, 1, 1, 1, "srun started 4 processes.* ask for 1: give trainer.devices=4 trainer.num_nodes=1"),
        (4, 2, 4, 1, "srun started processes on 2 machines, and trainer.num_nodes is 1: give trainer.devices=2"),
    ],
)
def test_other_numbers_than_srun_started_are_refused(
    variables: pytest.MonkeyPatch, tasks: int, machines: int, devices: int, nodes: int, words: str | None
) -> None:
    for name, value in {"NTASKS": tasks, "NTASKS_PER_NODE": tasks // machines, "NNODES": machines}.items():
        variables.setenv(f"SLURM_{name}", str(value))
    for name in ("PROCID", "LOCALID", "NODEID"):
        variables.setenv(f"SLURM_{name}", "0")
    environment = launchers.cluster_environment()
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        num_nodes=nodes,
        plugins=[environment],
        logger=False,
        enable_checkpointing=False,
    )
    if words is None:
        launchers.check_number_of_processes(trainer, environment)
        return
    with pytest.raises(UserError, match=words):
        launchers.check_number_of_processes(trainer, environment)
