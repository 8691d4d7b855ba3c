"""Jobs over several processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_xl.data.building.cache import file_sha256
from transformer_xl.data.building.parallel import in_order
from transformer_xl.errors import UserError

PROGRAM = """
import time
from transformer_xl.data.building import parallel
if __name__ == "__main__":
    print("begun", flush=True)
    list(parallel.in_order(time.sleep, [60, 60], doing="", announce=print))
"""


def test_results_come_in_the_order_of_the_jobs() -> None:
    jobs = list(range(20))
    assert list(in_order(abs, jobs, doing="counting", announce=pytest.fail)) == jobs


def test_a_mistake_in_a_job_is_raised_here(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match=r"absent' cannot be read: No such file"):
        list(in_order(file_sha256, [tmp_path / "there", tmp_path / "absent"] * 9, doing="", announce=pytest.fail))


def test_a_killed_program_takes_its_processes_along(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    waited = time.monotonic() + 60
    while len(workers := _descendants(program.pid)) < 4 and time.monotonic() < waited:  # two serve them
        time.sleep(0.1)
    program.kill()
    program.wait()
    while any(map(_lives, workers)) and time.monotonic() < waited:
        time.sleep(0.1)
    assert len(workers) >= 2
    assert not any(map(_lives, workers))


def _descendants(process: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [*children, *(one for child in children for one in _descendants(child))]


def _lives(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
