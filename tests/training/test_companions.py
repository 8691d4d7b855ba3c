"""One of several processes is killed, or gets a signal, at any moment: the others end too, in order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.training.processes import STATUSES, is_alive, start_slowed, wait_until

MOMENTS = {
    "before the first step": ("configure_optimizers", 3.0),
    "in a step": ("training_step", 1.0),
    "in a validation": ("validation_step", 0.05),
    "in the final test": ("test_step", 0.05),
}

OTHERS = [moment for moment in MOMENTS if moment != "in a step"]


@pytest.mark.parametrize("moment", ["in a step", *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_a_killed_process_ends_the_others_with_one_sentence(text_file: Path, tmp_path: Path, moment: str) -> None:
    run = start_slowed(*MOMENTS[moment], text_file, tmp_path, devices=3)
    os.kill(run.companions[1], signal.SIGKILL)
    ended = run.ended()
    assert ended.status == 1
    assert ended.stderr.startswith("process 3 of 3 ended (killed by SIGKILL; was memory short?): the run was stopped")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert (ended.summary["status"], ended.summary["exit_code"]) == ("failed", 1)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_others_end_when_the_main_process_is_killed(text_file: Path, tmp_path: Path, moment: str) -> None:
    run = start_slowed(*MOMENTS[moment], text_file, tmp_path, devices=3)
    run.process.kill()
    ended = run.ended()
    assert "the main process has ended" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to"), [(signal.SIGTERM, "main"), (signal.SIGUSR1, "other"), (signal.SIGINT, "all")]
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_to_any_process_stops_them_all(
    text_file: Path, tmp_path: Path, moment: str, number: signal.Signals, to: str
) -> None:
    run = start_slowed(*MOMENTS[moment], text_file, tmp_path)
    processes = {"main": [run.process.pid], "other": run.companions, "all": [run.process.pid, *run.companions]}
    for pid in processes[to]:
        os.kill(pid, number)
    ended = run.ended()
    assert ended.status == STATUSES[number], ended.stderr
    assert (ended.summary["status"], ended.summary["exit_code"]) == ("stopped", STATUSES[number])
    assert ended.stderr.count("\n") == 1, ended.stderr


@pytest.mark.slow
def test_a_second_interrupt_ends_all_at_once(text_file: Path, tmp_path: Path) -> None:
    run = start_slowed("training_step", 60.0, text_file, tmp_path)
    companions = run.companions
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)
    assert run.ended().status == 130
    wait_until(lambda: not any(map(is_alive, companions)))
