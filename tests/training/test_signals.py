from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.training.processes import SECONDS, STATUSES
from transformer_xl.errors import Stopped
from transformer_xl.training.signals import StopSignals

STUCK = """
import hashlib
from transformer_xl.training import signals

signals.PATIENCE_SECONDS = 0.5
with signals.StopSignals() as stop:
    stop.when_stuck(lambda reason: print(reason, flush=True), waits_for_others=True)
    stop.hold()
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)  # an hour in which Python runs no handler
"""


@pytest.mark.parametrize("number", STATUSES, ids=lambda number: number.name)
def test_a_signal_stops_at_once_outside_of_steps(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=number.name) as caught, StopSignals():
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == STATUSES[number]
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


def test_a_process_that_cannot_be_called_back_is_ended_from_aside() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    stdout, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 75
    assert "stopped by SIGUSR1" in stdout
