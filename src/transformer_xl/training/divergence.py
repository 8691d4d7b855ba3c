"""A loss that rises and stays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Divergence:
    """Watches how far each step's loss is above the best so far."""

    def __init__(self, *, nats: float, steps: int) -> None:
        """Take the limits.

        Args:
            nats: a loss more than so much above the best one is far.
            steps: how many of them in a row are named.
        """
        self._nats = nats
        self._steps = steps
        self._best = math.inf
        self._in_a_row = 0

    def note(self, step: int, loss: float | None) -> str | None:
        """Hear of a step's loss (nats; None is passed over), in order; give a sentence once an episode."""
        if loss is None:
            return None
        if loss <= self._best + self._nats:
            self._best = min(self._best, loss)
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        if self._in_a_row != self._steps:
            return None
        return (
            f"the training loss is {loss:.3f} at step {step}, and has been more than {self._nats:g} nats above its "
            f"best, {self._best:.3f}, for {self._steps} steps: it may have diverged; a smaller optimizer.lr usually "
            "helps"
        )

    def state_dict(self) -> dict[str, Any]:
        """Give the best loss, and for how many steps it has been far above."""
        return {"best": self._best, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._best, self._in_a_row = state["best"], state["in_a_row"]
