"""Pictures of evaluations: what is drawn, whatever the names of runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_xl.inference import plots
from transformer_xl.inference.evaluate import AttentionByDistance, ClassMeans
from transformer_xl.inference.plots import Line

NAMES = ["_under $x$ {score}", "\x1b[31mred", "run"]


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


def means(values: list[float], counts: list[int]) -> ClassMeans:
    return ClassMeans(np.arange(1, len(values) + 1), np.array(counts), np.array(values), np.full(len(values), 0.1))


def test_differences_stand_beside_the_losses_with_their_own_errors(figures: list[Any], tmp_path: Path) -> None:
    lines = [Line("one", means([3.0, 2.0], [9, 9]), None)]
    lines += [Line("two", means([2.0, 2.5], [9, 9]), means([-1.0, 0.5], [9, 9]))]
    plots.draw_losses(lines, tmp_path / "a.png", axis="place", unit="bpc", title="two")
    losses, differences = figures[0].axes
    assert not losses.collections  # bands that overlap would hide what is told by the difference
    assert len(differences.collections) == 1
    assert differences.get_ylabel() == "difference to one (bpc)"
    assert differences.get_lines()[0].get_ydata() == pytest.approx([-1, 0.5])


def test_empty_classes_are_left_out_and_every_name_is_in_the_legend(figures: list[Any], tmp_path: Path) -> None:
    lines = [Line(name, means([math.nan, 3.0, 2.0, math.nan], [0, 3, 5, 0]), None) for name in NAMES]
    plots.draw_losses(lines, tmp_path / "a.png", axis="tokens", unit="bpc", title="$")
    drawn = figures[0].axes[0].get_lines()
    assert [one.get_xdata().tolist() for one in drawn] == [[2, 3]] * len(NAMES)
    (legend,) = figures[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(NAMES)
    assert texts[:2] == [r" _under \$x\$ {score}", r"\x1b[31mred"]


def test_an_axis_makes_no_cliff_of_a_small_difference(figures: list[Any], tmp_path: Path) -> None:
    found = ClassMeans(np.array([0, 8, 64]), np.ones(3), np.array([1.01, 1.0, 0.99]), np.full(3, 0.001))
    plots.draw_losses([Line("txl", found)], tmp_path / "a.png", axis="memory", unit="bpc", title="memory")
    (drawn,) = figures[0].axes[0].get_lines()
    assert drawn.get_xdata().tolist() == [0, 8, 64]
    low, high = figures[0].axes[0].get_ylim()
    assert high - low >= 0.099


@pytest.mark.parametrize(("layers", "mem_len"), [(5, 12), (1, 0), (2, 300)])
def test_attention_is_drawn_from_the_predictions_that_see_a_distance(
    figures: list[Any], tmp_path: Path, layers: int, mem_len: int
) -> None:
    distances, segment_len = mem_len + 4, 4
    seen = np.clip((distances - np.arange(distances)) / segment_len, 0, 1)
    found = AttentionByDistance(
        weight_by_distance=np.broadcast_to(seen / 100, (layers, 6, distances)),
        share_seen=seen,
        memory_share=np.full((layers, 6), 0.3),
        predictions=1000,
    )
    plots.draw_attention(found, tmp_path / "a.png", segment_len=segment_len, title="a model")
    panel = figures[0].axes[0]
    assert panel.get_title() == "layer 1: 30% on memory"
    assert len(panel.get_lines()) == 7
    x, y = panel.get_lines()[-1].get_data()
    assert x[0] == 0
    assert y == pytest.approx([0.01] * len(y))
