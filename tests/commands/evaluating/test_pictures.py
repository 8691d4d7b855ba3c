"""Pictures of evaluations: what is drawn, whatever the names of runs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.commands.evaluating.test_tables import BASE, changed
from transformer_xl.commands.evaluating.pictures import (
    Line,
    draw_by_distance,
    draw_by_memory,
    draw_by_position,
    memory_lines,
)
from transformer_xl.inference.breakdown import LossByDistance, LossByPosition
from transformer_xl.scores import Score, Unit

NAMES = ["_under $x$ {score}", "\x1b[31mred", *(f"run {number}" for number in range(12))]
BITS = Unit(name="bpc", tokens_per_byte=1.0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is saved."""
    from matplotlib.figure import Figure

    saved: list[Any] = []
    save = Figure.savefig

    def keep(figure: Any, path: Path, **_: Any) -> None:
        saved.append(figure)
        save(figure, path)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def line(label: str, losses: list[float], **changes: Any) -> Line:
    places = np.arange(1, len(losses) + 1, dtype=np.float64)
    values: dict[str, Any] = {
        "label": label,
        "places": places,
        "losses": np.array(losses),
        "counts": np.ones(len(losses), np.int64),
    }
    return Line(**(values | changes))


def test_neighbouring_places_are_drawn_as_one_with_their_mean(figures: list[Any], tmp_path: Path) -> None:
    losses = [float(place % 7) for place in range(1000)]
    counts = np.array([1 + place % 3 for place in range(1000)])
    path = draw_by_position([line("long", losses, counts=counts, unit=BITS)], tmp_path / "a.png", title="of places")
    (drawn,) = figures[0].axes[0].get_lines()
    x, y = drawn.get_xdata(), drawn.get_ydata()
    assert len(x) <= 64
    assert x[0] == 1
    assert y[0] == pytest.approx(0)
    assert y[1] == pytest.approx(1 / math.log(2))
    assert all(0 <= value <= 6 / math.log(2) for value in y)
    assert np.mean(y[-5:]) == pytest.approx(3 / math.log(2), rel=0.1)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert figures[0].axes[0].get_ylabel() == "bpc"


def test_lines_are_made_of_what_was_gathered() -> None:
    by_position, by_distance = LossByPosition(3), LossByDistance(1, stride=None)
    by_position._totals[0] = by_distance._totals[0, :3] = torch.tensor([2, 2, 0])
    by_position._totals[1] = torch.tensor([4, 6, 0])
    positions = Line.of_positions("p", by_position, BITS)
    assert positions.places.tolist() == [1, 2, 3]
    assert positions.losses[:2].tolist() == [2, 3]
    assert Line.of_distances("d", by_distance, None).places[:3].tolist() == [1, 2, 4]


def test_empty_distances_are_left_out_and_every_name_is_in_the_legend(figures: list[Any], tmp_path: Path) -> None:
    lines = [
        line(name, [math.nan, 3.0, 2.0, math.nan], counts=np.array([0, 3, 5, 0]), errors=np.array([0, 0.1, 0.1, 0]))
        for name in NAMES
    ]
    draw_by_distance(lines, tmp_path / "a.png", title="$")
    figure = figures[0]
    assert [drawn.get_xdata().tolist() for drawn in figure.axes[0].get_lines()] == [[2, 3]] * len(NAMES)
    assert len({(drawn.get_color(), drawn.get_linestyle()) for drawn in figure.axes[0].get_lines()}) == len(NAMES)
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(NAMES)
    assert texts[:2] == [r" _under \$x\$ {score}", r"\x1b[31mred"]


def test_scores_stand_at_their_memory_and_0_begins_them(figures: list[Any], tmp_path: Path) -> None:
    rows = [
        changed(mem_len=640, score=Score(2.0, 10)),
        changed(mem_len=0, same_length=False, score=Score(3.0, 10)),
        changed(mem_len=64, score=Score(2.5, 10)),
        changed(stride=4, same_length=False),
        changed(name="other", mem_len=0, same_length=False, kind="vanilla"),
        changed(name="both", mem_len=8),
        changed(name="both", mem_len=8, segment_len=32),
    ]
    lines = memory_lines(rows)
    assert [line.label for line in lines] == [
        "base, segment 64, clamp 400, same length",
        "both, segment 64, clamp 400, same length",
        "both, segment 32, clamp 400, same length",
        "base, segment 64, clamp 400, stride 4",
        "other",
    ]
    assert lines[3].places.tolist() == [0]
    assert lines[0].places.tolist() == [0, 64, 640]
    assert lines[0].losses.tolist() == [3.0, 2.5, 2.0]
    assert lines[0].unit == BASE.unit
    draw_by_memory(lines, tmp_path / "a.png", title="memory")
    axes = figures[0].axes[0]
    assert list(axes.get_xticks()) == [0, 8, 64, 640]
    assert axes.get_lines()[0].get_ydata() == pytest.approx([math.exp(3), math.exp(2.5), math.exp(2)])
    mixed = memory_lines([BASE, dataclasses.replace(BASE, name="b", vocabulary_hash="w")])
    assert [line.unit.name for line in mixed if line.unit] == ["bpb", "bpb"]
