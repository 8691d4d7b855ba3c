from __future__ import annotations

import json
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_job_once_and_ends_the_sweep(project: Any, number: signal.Signals) -> None:
    process = subprocess.Popen(
        project.command("-m", "name=wait", "seed=1,2"), cwd=project.cwd, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not list(project.cwd.rglob("ready")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    (received,) = project.cwd.rglob("signals.json")
    assert json.loads(received.read_text()) == [number]
    assert f"exit status {128 + number}" in output
