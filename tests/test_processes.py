"""Processes of a run: who started them, who speaks, and what becomes of the others when one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch import Trainer

from tests.conftest import REPOSITORY, Outcome, tiny_overrides
from tests.oracles.runs_support import SECONDS, children_of, is_alive, program
from tests.training.processes import wait_until
from transformer_xl import processes
from transformer_xl.errors import UserError


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "is_main"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "4", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, False),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, True),
    ],
    ids=str,
)
def test_one_process_is_the_main_one(variables: pytest.MonkeyPatch, environment: dict[str, str], is_main: bool) -> None:
    for name, value in environment.items():
        variables.setenv(name, value)
    assert processes.is_main() is is_main


def test_who_started_the_processes(variables: pytest.MonkeyPatch) -> None:
    assert processes.cluster_environment() is None
    variables.setenv("SLURM_NTASKS", "4")
    assert isinstance(processes.cluster_environment(), LightningEnvironment)  # a batch script that calls python itself
    variables.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(UserError, match="--ntasks-per-node=4"):
        processes.cluster_environment()
    variables.setenv("SLURM_NTASKS_PER_NODE", "2")
    environment = processes.cluster_environment()
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue
    variables.setenv("TORCHELASTIC_RUN_ID", "x")
    assert isinstance(processes.cluster_environment(), TorchElasticEnvironment)


@pytest.mark.parametrize(
    ("tasks", "machines", "devices", "nodes", "words"),
    [
        (4, 2, 2, 2, None),
        (4, 1, 1, 1, "srun started 4 processes: give trainer.devices=4 trainer.num_nodes=1"),
        (4, 2, 4, 1, "srun started 4 processes: give trainer.devices=2 trainer.num_nodes=2"),
    ],
)
def test_other_numbers_than_srun_started_are_refused(
    variables: pytest.MonkeyPatch, tasks: int, machines: int, devices: int, nodes: int, words: str | None
) -> None:
    for name, value in {"NTASKS": tasks, "NTASKS_PER_NODE": tasks // machines, "NNODES": machines}.items():
        variables.setenv(f"SLURM_{name}", str(value))
    for name in ("PROCID", "LOCALID", "NODEID", "STEP_ID"):
        variables.setenv(f"SLURM_{name}", "0")
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        num_nodes=nodes,
        plugins=[processes.cluster_environment()],
        logger=False,
        enable_checkpointing=False,
    )
    if words is None:
        processes.check_number(trainer)
        return
    with pytest.raises(UserError, match=words):
        processes.check_number(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("is_main_lost", [False, True])
def test_the_others_end_when_one_is_killed(text_file: Path, tmp_path: Path, is_main_lost: bool) -> None:
    run = tmp_path / "run"
    longer = ["trainer.devices=3", "trainer.max_steps=100000", "trainer.val_check_interval=100000"]
    settings = [*tiny_overrides(text_file, tmp_path), *longer, f"hydra.run.dir={run}"]
    with program("train", *settings, cwd=tmp_path) as process:
        wait_until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
        others = children_of(process.pid)
        os.kill(process.pid if is_main_lost else others[1], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, others)))
        stdout, stderr = process.communicate(timeout=SECONDS)
    if is_main_lost:
        return
    if process.returncode == -signal.SIGKILL:  # Lightning's launcher was first, which ends all processes at once
        assert f"PID {others[1]} terminated with code -9" in stdout + stderr
    else:
        assert process.returncode == 1
        assert stderr.startswith("process 3 of 3 has ended with status -9: the run was")


TWICE = """
import sys
from transformer_xl import compose, train
for name in ("one", "two"):
    summary = train(compose(*sys.argv[1:], f"name={name}"))
    print(name, summary.status, summary.step, flush=True)
"""


@pytest.mark.slow
def test_a_script_may_train_twice_on_two_processes(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    settings = [*tiny_overrides(text_file, tmp_path), "trainer.devices=2", "trainer.max_steps=2"]
    command = [sys.executable, "twice.py", *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "finished" in line]
    assert set(said) == {"one finished 2", "two finished 2"}  # the second run's other process passes the first
    assert said.count("two finished 2") == 1


SEEN = """
from lightning.pytorch import Callback
import transformer_xl as txl
from transformer_xl.settings import Settings

@txl.register("callback", "seen", config=Settings)
class Seen(Callback):
    def __init__(self, settings): ...
    def on_train_start(self, trainer, module):
        print("bucket views", trainer.model.gradient_as_bucket_view, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("views", ["true", "false"])
def test_gradients_lie_in_the_blocks_that_processes_exchange(text_file: Path, tmp_path: Path, views: str) -> None:
    (tmp_path / "seen.py").write_text(SEEN)
    settings = [*tiny_overrides(text_file, tmp_path), "trainer.devices=2", "trainer.max_steps=2"]
    parts = ["plugins=[seen.py]", "+callbacks.seen={}", f"trainer.ddp.gradient_as_bucket_view={views}"]
    command = [sys.executable, str(REPOSITORY / "train.py"), *settings, *parts]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert f"bucket views {views.title()}" in done.stdout


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("trainer.strategy=fsdp", "must be ddp or auto: every device holds the whole model"),
        ("trainer.strategy=deepspeed_stage_2", "must be ddp or auto: every device holds the whole model"),
        ("trainer.ddp.bf16_gradients=true", "needs several CUDA devices"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(
    tiny_run: Callable[..., Outcome], capsys: pytest.CaptureFixture[str], setting: str, words: str
) -> None:
    assert tiny_run(setting).status == 2
    assert words in capsys.readouterr().err


def test_a_process_whose_starter_has_ended_before_it_looks_ends_too() -> None:
    late = "import time; time.sleep(1); from transformer_xl import processes\nwith processes.together(): time.sleep(60)"
    starter = f"""if True:
        import os, subprocess, sys
        from transformer_xl import processes
        processes.announce({{}})
        subprocess.Popen([sys.executable, "-c", {late!r}], env=os.environ | {{"LOCAL_RANK": "1"}})"""
    subprocess.run(
        [sys.executable, "-c", starter], stdout=subprocess.PIPE, timeout=20, check=True
    )  # both hold the pipe
