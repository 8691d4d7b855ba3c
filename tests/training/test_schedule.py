from __future__ import annotations

import math

import pytest

from transformer_xl.config import ConstantConfig, CosineConfig, InverseSquareRootConfig, PlateauConfig
from transformer_xl.training.schedule import Constant, Cosine, InverseSquareRoot, Plateau


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            Constant(peak=2.0, config=ConstantConfig(kind="constant", warmup_steps=4)),
            {1: 0.5, 2: 1.0, 4: 2.0, 5: 2.0, 1000: 2.0},
        ),
        (Constant(peak=2.0, config=ConstantConfig(kind="constant", warmup_steps=0)), {1: 2.0, 7: 2.0}),
        (
            Cosine(peak=1.0, config=CosineConfig(kind="cosine", warmup_steps=0, total_steps=100, min_lr=0.0)),
            {1: 1.0, 26: (1 + math.cos(math.pi / 4)) / 2, 51: 0.5, 101: 0.0, 500: 0.0},
        ),
        (
            Cosine(peak=1.0, config=CosineConfig(kind="cosine", warmup_steps=10, total_steps=100, min_lr=0.1)),
            {1: 0.1, 5: 0.5, 10: 1.0, 51: 0.55, 101: 0.1},
        ),
        (
            InverseSquareRoot(peak=1.0, config=InverseSquareRootConfig(kind="inv_sqrt", warmup_steps=16)),
            {1: 1 / 16, 8: 0.5, 16: 1.0, 64: 0.5, 1600: 0.1},
        ),
        (
            InverseSquareRoot(peak=1.0, config=InverseSquareRootConfig(kind="inv_sqrt", warmup_steps=0)),
            {1: 1.0, 4: 0.5, 100: 0.1},
        ),
    ],
)
def test_learning_rate_by_step(schedule: Constant, expected: dict[int, float]) -> None:
    assert {step: schedule.lr(step) for step in expected} == pytest.approx(expected)


def make_plateau(patience: int = 1, min_lr: float = 0.0) -> Plateau:
    config = PlateauConfig(kind="plateau", warmup_steps=2, factor=0.5, patience=patience, min_lr=min_lr)
    return Plateau(peak=1.0, config=config)


def test_plateau_reduces_after_patience_validations_without_a_new_best() -> None:
    plateau = make_plateau()
    assert plateau.lr(1) == 0.5
    seen = []
    for loss in [3.0, 2.0, 2.0, 2.5, 1.9, 1.95, 1.96, 1.97]:
        plateau.validated(loss)
        seen.append(plateau.lr(10))
    assert seen == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_plateau_goes_on_from_its_state() -> None:
    whole, first = make_plateau(), make_plateau()
    losses = [3.0, 3.0, 3.0, 2.0, 2.5, 2.5]
    for loss in losses:
        whole.validated(loss)
    for loss in losses[:2]:
        first.validated(loss)
    second = make_plateau()
    second.load_state_dict(first.state_dict())
    for loss in losses[2:]:
        second.validated(loss)
    assert second.lr(10) == whole.lr(10) == 0.25


def test_plateau_stays_above_min_lr() -> None:
    plateau = make_plateau(patience=0, min_lr=0.3)
    for _ in range(5):
        plateau.validated(1.0)
    assert plateau.lr(10) == 0.3
