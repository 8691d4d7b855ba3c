from __future__ import annotations

import math
from typing import Any

import pytest

from transformer_xl.registry import lookup
from transformer_xl.training.optim import Schedule, make_schedule


def schedule(kind: str, *, peak: float = 1.0, total_steps: int = 100, **settings: Any) -> Schedule:
    cls = lookup("scheduler", kind).config
    assert cls is not None
    if kind == "cosine":
        settings["total_steps"] = -1
    return make_schedule(cls(kind=kind, **settings), total_steps=total_steps, peak=peak)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (schedule("constant", warmup_steps=4), {1: 0.25, 2: 0.5, 4: 1.0, 5: 1.0, 1000: 1.0}),
        (schedule("constant", warmup_steps=0), {1: 1.0, 7: 1.0}),
        (
            schedule("cosine", warmup_steps=0, total_steps=100, min_lr=0.0),
            {1: 1.0, 26: (1 + math.cos(math.pi / 4)) / 2, 51: 0.5, 101: 0.0, 500: 0.0},
        ),
        (
            schedule("cosine", peak=2.0, warmup_steps=10, total_steps=100, min_lr=0.2),
            {1: 0.1, 5: 0.5, 10: 1.0, 51: 0.55, 101: 0.1},
        ),
        (schedule("inv_sqrt", warmup_steps=16), {1: 1 / 16, 8: 0.5, 16: 1.0, 64: 0.5, 1600: 0.1}),
        (schedule("inv_sqrt", warmup_steps=0), {1: 1.0, 4: 0.5, 100: 0.1}),
    ],
)
def test_factor_by_step(made: Schedule, expected: dict[int, float]) -> None:
    assert {step: made(step) for step in expected} == pytest.approx(expected)


def plateau(patience: int = 1, min_lr: float = 0.0) -> Schedule:
    return schedule("plateau", peak=2.0, warmup_steps=2, factor=0.5, patience=patience, min_lr=min_lr)


def test_plateau_reduces_after_patience_validations_without_a_new_best() -> None:
    made = plateau()
    assert made(1) == 0.5
    seen = []
    for loss in [3.0, 2.0, 2.0, 2.5, 1.9, 1.95, 1.96, 1.97]:
        made.validated(loss)
        seen.append(made(10))
    assert seen == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_plateau_goes_on_from_its_state() -> None:
    whole, first, second = plateau(), plateau(), plateau()
    losses = [3.0, 3.0, 3.0, 2.0, 2.5, 2.5]
    for loss in losses:
        whole.validated(loss)
    for loss in losses[:2]:
        first.validated(loss)
    second.load_state_dict(first.state_dict())
    for loss in losses[2:]:
        second.validated(loss)
    assert second(10) == whole(10) == 0.25


def test_plateau_stays_above_min_lr() -> None:
    made = plateau(patience=0, min_lr=0.6)
    for _ in range(5):
        made.validated(1.0)
    assert made(10) == 0.3
