from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest


@pytest.mark.slow
def test_a_failed_job_does_not_keep_the_others_from_running(project: Any) -> None:
    done = project.run("-m", "model.mem_len=7", "name=[fine,bug,no_objective]")
    assert done.returncode == 1
    assert "a bug of ours" in done.stderr
    records = [json.loads(path.read_text()) for path in sorted(project.cwd.glob("outputs/sweep-*/*/job.json"))]
    assert [record["exit_code"] for record in records] == [0, 1, 0]
    assert [record["objective"] for record in records] == [3.5, None, None]
    header, *rows, best = done.stdout.splitlines()
    assert "objective (val/loss, nats)" in header
    assert [row.split()[0] for row in rows] == ["1", "2", "3"], "the best first"
    assert [row.split()[1] for row in rows] == ["name=fine", "name=bug", "name=no_objective"], (
        "what all share is left out"
    )
    assert best == "best: job 1, name=fine"
    assert "job 2 of 3: name=bug" in done.stderr
    assert [" 3.5 " in row for row in rows] == [True, False, False]
    assert ["finished" in row for row in rows] == [True, False, True]
    assert "exit status 1" in rows[1]


@pytest.mark.slow
def test_each_job_gets_its_settings(project: Any) -> None:
    done = project.run(
        "-m", "data=text", "data.path=[a=1 '${x}',汉 b]", "model.cutoffs=[1,2],[3]", "hydra.sweep.dir=x y"
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads((project.cwd / "x y" / job / "seen.json").read_text()) for job in "0123"]
    assert [(one["config"]["data"]["path"], one["config"]["model"]["cutoffs"]) for one in seen] == [
        (path, cutoffs) for path in ("a=1 '${x}'", "汉 b") for cutoffs in ([1, 2], [3])
    ]
    assert [one["folder"] for one in seen] == [str(project.cwd / "x y" / job) for job in "0123"]
    assert not (project.cwd / "outputs").exists()


@pytest.mark.slow
def test_a_job_that_was_interrupted_ends_the_sweep(project: Any) -> None:
    done = project.run("-m", "name=interrupt,fine")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert len(list(project.cwd.glob("outputs/sweep-*/*/job.json"))) == 1
    assert "exit status 130" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_each_running_job_once_and_ends_the_sweep(
    project: Any, number: signal.Signals, jobs: int
) -> None:
    arguments = ["-m", "name=wait", "seed=1,2,3"]
    if jobs > 1:
        arguments += [*several(project), f"jobs={jobs}"]
    process = subprocess.Popen(
        project.command(*arguments), cwd=project.cwd, stdout=subprocess.PIPE, text=True, process_group=0
    )
    deadline = time.monotonic() + 60
    while len(list(project.cwd.rglob("ready"))) < jobs:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, number)  # as a terminal does
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    received = [json.loads(path.read_text()) for path in project.cwd.rglob("signals.json")]
    assert received == [[number]] * jobs
    assert output.count(f"exit status {128 + number}") == jobs


def several(project: Any) -> list[str]:
    """Add an experiment whose jobs may run several at a time."""
    folder = project.cwd.parent / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "several.yaml").write_text("# @package _global_\nrows: {a: seed=7}\nsweep: {}\n")
    return [f"--config-dir={folder.parent}", "experiment=several"]


@pytest.mark.slow
def test_of_jobs_at_a_time_one_that_fails_keeps_none_from_running(project: Any) -> None:
    done = project.run("-m", *several(project), "jobs=2", "model.mem_len=7", "name=[bug,fine,no_objective]")
    assert done.returncode == 1
    records = [json.loads(path.read_text()) for path in sorted(project.cwd.glob("outputs/sweep-*/*/job.json"))]
    assert [record["exit_code"] for record in records] == [1, 0, 0]
    assert [record["objective"] for record in records] == [None, 3.5, None]
    assert "job 1: exit status 1; see " in done.stderr
    (printed,) = project.cwd.glob("outputs/sweep-*/0/printed.txt")
    assert "a bug of ours" in printed.read_text()
