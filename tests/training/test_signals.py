from __future__ import annotations

import os
import signal

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
