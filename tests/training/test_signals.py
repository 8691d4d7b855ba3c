from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_xl.errors import Stopped
from transformer_xl.training.stopping import StopSignals


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 75)])
def test_a_signal_stops_at_once_outside_of_steps(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=number.name) as caught, StopSignals():
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == status
    assert signal.getsignal(number) is before


def test_a_signal_during_a_step_is_remembered_and_obeyed_when_steps_have_ended() -> None:
    with StopSignals() as signals:
        signals.hold()
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGUSR1
        with pytest.raises(Stopped) as caught:
            signals.release()
    assert caught.value.exit_code == 75


ASK = """
import sys
from types import SimpleNamespace
import torch
from transformer_xl.training.stopping import Agreement
rank, store, step_at_once = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
trainer = SimpleNamespace(world_size=2, strategy=SimpleNamespace(root_device=torch.device("cpu")))
agreement = Agreement()
asked = [(15 if rank and step >= 2 else 0, step == step_at_once) for step in range(5)]
print([int(agreement.reason(trainer, own, at_once=at_once)) for own, at_once in asked])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "told"), [(2, [0, 0, 15, 15, 15]), (1, [0, 0, 0, 15, 15])])
def test_two_processes_hear_of_a_signal_at_the_same_step(tmp_path: Path, at_once: int, told: list[int]) -> None:
    """A step late, unless the answer is needed at once."""
    command = [sys.executable, "-c", ASK]
    given = [str(tmp_path / "store"), str(at_once)]
    ranks = [subprocess.Popen([*command, rank, *given], stdout=subprocess.PIPE, text=True) for rank in "01"]
    assert [process.communicate(timeout=60)[0].strip() for process in ranks] == [str(told)] * 2
