"""What asks a run to stop: signals, and a limit of time; every process hears of it at the same step or batch.

Nothing is saved inside a handler: a signal is remembered until the step, or a batch of an evaluation, has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from transformer_xl.errors import Stopped

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 75}
OUT_OF_TIME = -1
"""A reason to stop, beside the signals' numbers."""


class StopSignals:
    """Ends the run where it is when a signal comes; while training or evaluating, remembers it until the batch ends.

    A signal that this process was started to ignore, as by `nohup`, stays ignored; outside of the main thread, where
    Python knows no handlers, all are as they were.

    Args:
        speaks: whether this process answers a signal on the screen: one of several does.

    Attributes:
        received: the first signal that came; None: none did.
    """

    def __init__(self, *, speaks: bool = False) -> None:
        self.received: signal.Signals | None = None
        self._speaks = speaks
        self._is_held = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in EXIT_CODES if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Remember the signals that come from here on."""
        self._is_held = True

    def release(self) -> None:
        """Obey at once again; `Stopped` where a signal came since training last looked."""
        self._is_held = False
        if self.received is not None:
            raise stopped_by(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                os._exit(EXIT_CODES[signal.SIGINT])
            return
        self.received = signal.Signals(number)
        if not self._is_held:
            raise stopped_by(self.received)
        if self._speaks:
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self.received.name}: stopping after this step; Ctrl-C ends at once\n".encode())


def stopped_by(received: signal.Signals) -> Stopped:
    """Return what says that a signal ended the run where it was."""
    return Stopped(f"stopped by {received.name} outside of training's steps", exit_code=EXIT_CODES[received])


class Agreement:
    """A reason to stop that one of the processes has, the same on all; each of them asks at the same steps."""

    def __init__(self) -> None:
        self._asked: Callable[[], int] = lambda: 0

    def reason(self, trainer: Trainer, own: int, *, at_once: bool) -> int:
        """Tell the others this process's own reason, and return the one that all have; 0: none has any.

        With several processes the answer is that of the last time, which has come meanwhile: so none of them waits for
        its device, and the run stops one step later. `at_once`: the answer of this time.
        """
        if trainer.world_size == 1:
            return own
        before, self._asked = self._asked, _ask(own, trainer.strategy.root_device)
        return self._asked() if at_once else before()


def _ask(own: int, device: torch.device) -> Callable[[], int]:
    reasons = (0, OUT_OF_TIME, *sorted(EXIT_CODES))  # of several the last one counts
    place = torch.full((), reasons.index(own), device=device)
    torch.distributed.all_reduce(place, op=torch.distributed.ReduceOp.MAX)
    found = place.to("cpu", non_blocking=True)
    arrived = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def answer() -> int:
        if arrived is not None:
            arrived.synchronize()  # not the whole device: the step that was begun since goes on
        return reasons[int(found)]

    return answer


class _NoHandlers(_SignalConnector):
    def register_signal_handlers(self) -> None:
        pass


def leave_signals_alone(trainer: Trainer) -> None:
    """Keep Lightning from handling signals: its SIGTERM handler waits, inside the handler, for the other processes.

    With it goes the question to the first process, before each batch, whether it has had one; each process would wait
    for its device to answer.
    """
    trainer._signal_connector = _NoHandlers(trainer)
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
