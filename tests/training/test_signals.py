from __future__ import annotations

import os
import signal

import pytest

from tests.training.processes import STATUSES
from transformer_xl.errors import Stopped
from transformer_xl.training.stopping import StopSignals


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
