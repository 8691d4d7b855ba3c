"""The task that only memory solves."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.conftest import QUIET, Outcome

Run = Callable[..., Outcome]


@pytest.mark.slow
def test_with_memory_the_copies_are_known_and_without_it_nothing_is(tiny_run: Run) -> None:
    recall = ["experiment=recall", "trainer.accelerator=cpu", *QUIET]
    with_memory = tiny_run(*recall, name="with", base=False)
    assert with_memory.status == 0
    assert with_memory.summary["metrics"]["test"]["loss"] < 0.05
    assert list(with_memory.values("val/memory_gain").values())[-1] > 1.5
    without = tiny_run(*recall, "model.mem_len=0", "trainer.max_steps=300", name="without", base=False)
    assert not without.values("val/memory_gain")
    assert without.summary["metrics"]["test"]["loss"] == pytest.approx(math.log(8), abs=0.03)
