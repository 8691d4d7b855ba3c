"""Jobs over several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_xl.data.building import parallel
from transformer_xl.data.building.cache import file_sha256
from transformer_xl.data.building.parallel import in_order
from transformer_xl.errors import UserError


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_cores", lambda: 2)


def test_results_come_in_the_order_of_the_jobs_from_other_processes() -> None:
    jobs = list(range(20))
    assert list(in_order(abs, jobs, doing="counting", announce=pytest.fail)) == jobs
    processes = set(in_order(_process_of, jobs, doing="counting", announce=pytest.fail))
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2


def _process_of(job: int) -> int:
    return os.getpid()


def test_nothing_of_the_current_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pickle", "struct", "numpy"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert list(in_order(abs, [-1, -2], doing="", announce=pytest.fail)) == [1, 2]


def test_one_job_is_done_here() -> None:
    assert list(in_order(_process_of, [1], doing="counting", announce=pytest.fail)) == [os.getpid()]


def test_a_mistake_in_a_job_is_raised_here_and_the_processes_end(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match=r"absent' cannot be read: No such file"):
        list(in_order(file_sha256, [tmp_path / "there", tmp_path / "absent"] * 9, doing="", announce=pytest.fail))
    assert not any(
        b"building.parallel" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children_of(os.getpid())
    )


def test_a_killed_process_is_said() -> None:
    with pytest.raises(RuntimeError, match="ended with status -9; was memory short"):
        list(in_order(_killed, [1, 2, 3], doing="", announce=pytest.fail))


def _killed(job: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_SECONDS_BETWEEN_LINES", -1.0)
    lines: list[str] = []
    list(in_order(abs, [1, 2, 3, 4], doing="counting", announce=lines.append))
    assert lines == ["data: counting, 25 %", "data: counting, 50 %", "data: counting, 75 %"]


PROGRAM = """
import sys, time
from transformer_xl.data.building import parallel
parallel._cores = lambda: 2
print("begun", flush=True)
list(parallel.in_order(time.sleep, [60, 60], doing="", announce=print))
"""


def test_a_program_without_a_guard_works_and_takes_its_processes_along(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    workers: list[int] = []
    waited = time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < waited:
        workers = children_of(program.pid)
    program.kill()
    program.wait()
    while any(_lives(worker) for worker in workers) and time.monotonic() < waited:
        time.sleep(0.05)
    assert len(workers) == 2
    assert not any(_lives(worker) for worker in workers)


def children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _lives(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
