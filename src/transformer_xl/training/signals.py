"""The signals that stop a run, from its first moment to its last."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from transformer_xl.errors import Stopped

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 75}

PATIENCE_SECONDS = 40.0
"""How long after a signal a process may be busy in something that it cannot be called back from."""


class StopSignals:
    """Ends the run where it is when a signal comes; while training or evaluating, remembers it until the batch ends.

    A signal that this process was started to ignore, as by `nohup`, stays ignored.

    Python runs a handler only between two of its own instructions, which a process that waits for another one may
    never reach. A thread therefore sees each signal as it comes, and ends a process that does not react.

    Attributes:
        received: the first signal that came; None: none did.
    """

    def __init__(self, *, speaks: bool = False) -> None:
        """Take whether this process answers a signal on the screen: one of several does."""
        self.received: signal.Signals | None = None
        self._speaks = speaks
        self._is_held = False
        self._waits_for_others = False
        self._last_beat = monotonic()
        self._obeyed = threading.Event()
        self._give_up: Callable[[Stopped], None] = lambda _: None
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1
        self._pipe = (-1, -1)

    def __enter__(self) -> StopSignals:
        """Take over the signals."""
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._previous_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(self._pipe[0],), name="stop-signals", daemon=True).start()
        heard = [number for number in EXIT_CODES if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._obeyed.set()
        os.close(self._pipe[1])  # which ends the thread

    def when_stuck(self, give_up: Callable[[Stopped], None], *, waits_for_others: bool) -> None:
        """Set what a thread does for a process that a signal cannot reach, before it ends that process.

        Args:
            give_up: gets what the process would have raised.
            waits_for_others: whether a step may wait for other processes, and so for ever.
        """
        self._give_up, self._waits_for_others = give_up, waits_for_others

    def hold(self) -> None:
        """Remember the signals that come from here on."""
        self._is_held = True

    def release(self) -> None:
        """Obey at once again, also a signal that came since training last looked.

        Raises:
            Stopped: there was one.
        """
        self._is_held = False
        if self.received is not None:
            self._stop(self.received)

    def beat(self) -> None:
        """Say that training is going on: a part of a step, or of an evaluation, has ended."""
        self._last_beat = monotonic()

    def obey(self) -> None:
        """Say that what a signal asked for is being done."""
        self._obeyed.set()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                os._exit(EXIT_CODES[signal.SIGINT])  # the other processes follow their main one
            return
        self.received = signal.Signals(number)
        if not self._is_held:
            self._stop(self.received)
        elif self._speaks:
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self.received.name}: stopping after this batch; Ctrl-C ends at once\n".encode())

    def _stop(self, received: signal.Signals) -> None:
        self.obey()
        raise stopped_by(received)

    def _watch(self, pipe: int) -> None:
        with contextlib.closing(os.fdopen(pipe, "rb", buffering=0)) as numbers:
            while number := numbers.read(1):
                if number[0] in EXIT_CODES:
                    self._see_to(signal.Signals(number[0]))

    def _see_to(self, received: signal.Signals) -> None:
        came = monotonic()
        while not self._obeyed.wait(1.0):
            may_be_stuck = self._waits_for_others or not self._is_held
            if may_be_stuck and monotonic() - max(came, self._last_beat) > PATIENCE_SECONDS:
                self._give_up(stopped_by(received))
                os._exit(EXIT_CODES[received])


def stopped_by(received: signal.Signals) -> Stopped:
    """Say that a signal ended the run where it was."""
    return Stopped(f"stopped by {received.name} outside of training's steps", exit_code=EXIT_CODES[received])
