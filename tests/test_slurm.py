"""The batch script, with stand-ins for Slurm's own programs: stopped before its time is up, requeued, continued."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, read_values, tiny_overrides
from tests.oracles.runs_support import SECONDS
from tests.training.processes import wait_until

SRUN = """
import os, signal, subprocess, sys, time

ends_others = "--kill-on-bad-exit=1" in sys.argv
arguments = [argument for argument in sys.argv[1:]]
while arguments[0].startswith("--"):
    arguments.pop(0)
tasks = int(os.environ["SLURM_NTASKS"])
processes = []
for task in range(tasks):
    own = {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}
    processes.append(subprocess.Popen(arguments, env={**os.environ, **own}))


def pass_on(number, frame):
    for process in processes:
        process.send_signal(number)


signal.signal(signal.SIGUSR1, pass_on)
open("srun.pid", "w").write(str(os.getpid()))
while any(process.poll() is None for process in processes):
    if ends_others and any(process.poll() for process in processes):
        for process in processes:
            process.kill()
    time.sleep(0.02)
statuses = [process.wait() for process in processes]
print("statuses", statuses, file=sys.stderr)
sys.exit(max(status if status >= 0 else 128 - status for status in statuses))
"""

SCONTROL = """
import sys
open("requeued", "a").write(" ".join(sys.argv[1:]) + "\\n")
"""


class Queue:
    """A folder with `train.py` in it, and stand-ins for `srun`, `scontrol` and `python` in its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").symlink_to(REPOSITORY / "train.py")
        programs = folder / "bin"
        programs.mkdir()
        python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        own = f"#!{sys.executable}\n"
        for name, text in (("python", python), ("srun", own + SRUN), ("scontrol", own + SCONTROL)):
            (programs / name).write_text(text)
            (programs / name).chmod(stat.S_IRWXU)

    def start(self, *arguments: str, tasks: int = 2, **environment: str) -> subprocess.Popen[str]:
        slurm = {
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NAME": "transformer-xl",
            "SLURM_NTASKS": str(tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks),
            "SLURM_NNODES": "1",
            "SLURM_NODELIST": "127.0.0.1",
        }
        (self.folder / "srun.pid").unlink(missing_ok=True)
        return subprocess.Popen(
            ["bash", str(REPOSITORY / "scripts" / "slurm.sbatch"), *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
                **slurm,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def send(self, number: signal.Signals) -> None:
        os.kill(int((self.folder / "srun.pid").read_text()), number)

    @property
    def requeued(self) -> list[str]:
        path = self.folder / "requeued"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    folder = tmp_path / "queue"
    folder.mkdir()
    return Queue(folder)


def test_a_job_without_a_name_is_refused(queue: Queue) -> None:
    process = queue.start("model=txl_tiny")
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "name=X" in stderr
    assert not queue.requeued


@pytest.mark.slow
def test_a_failed_job_is_not_requeued_and_its_status_comes_out(queue: Queue, text_file: Path) -> None:
    process = queue.start(*tiny_overrides(text_file, queue.folder), "name=wrong", "model.d_model=15", tasks=1)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, stderr
    assert "model.d_model is 15" in stderr
    assert not queue.requeued


@pytest.mark.slow
def test_a_job_whose_time_is_up_is_requeued_and_goes_on_until_it_is_finished(queue: Queue, text_file: Path) -> None:
    command = [
        *tiny_overrides(text_file, queue.folder),
        "name=long",
        "trainer.max_steps=1500",
        "trainer.log_every_n_steps=1",
        "trainer.val_check_interval=500",
    ]
    folder = queue.folder / "outputs" / "long"
    process = queue.start(*command)
    log = folder / "metrics.jsonl"
    wait_until(lambda: log.exists() and log.read_text().count("train/loss") > 20)
    queue.send(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 75, stderr
    assert queue.requeued == ["requeue 12345"]
    assert "Traceback" not in stderr

    process = queue.start(*command)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr
    assert list(read_values(folder, "train/loss")) == list(range(1, 1501))
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"

    process = queue.start(*command)
    stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr
    assert stdout.count("finished") == 1
    assert queue.requeued == ["requeue 12345"]


@pytest.mark.slow
def test_a_task_of_an_array_is_requeued_alone(queue: Queue, text_file: Path) -> None:
    process = queue.start(
        *tiny_overrides(text_file, queue.folder),
        "name=task",
        "trainer.max_steps=100000",
        "trainer.log_every_n_steps=1",
        tasks=1,
        SLURM_ARRAY_JOB_ID="12300",
        SLURM_ARRAY_TASK_ID="7",
    )
    log = queue.folder / "outputs" / "task" / "metrics.jsonl"
    wait_until(lambda: log.exists() and "train/loss" in log.read_text())
    queue.send(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 75, stderr
    assert queue.requeued == ["requeue 12300_7"]


@pytest.mark.slow
def test_a_first_process_that_is_refused_ends_the_others(queue: Queue, text_file: Path) -> None:
    """Another job trains in the run's folder: the second process would wait for the first one for ever."""
    folder = queue.folder / "outputs" / "held"
    folder.mkdir(parents=True)
    handle = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    process = queue.start(*tiny_overrides(text_file, queue.folder), "name=held")
    _, stderr = process.communicate(timeout=SECONDS)
    os.close(handle)
    assert process.returncode not in (0, 75)
    assert "is in use by" in stderr
    assert not queue.requeued
