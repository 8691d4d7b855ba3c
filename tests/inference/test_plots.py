"""Pictures of evaluations: what is drawn, whatever the names of runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_xl.inference import plots
from transformer_xl.inference.attention import AttentionByDistance
from transformer_xl.inference.evaluate import ClassMeans
from transformer_xl.inference.plots import LossLine, MemoryLine, attention_bins
from transformer_xl.scores import Unit

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


def means(values: list[float], counts: list[int]) -> ClassMeans:
    return ClassMeans(np.arange(1, len(values) + 1), np.array(counts), np.array(values), np.full(len(values), 0.1))


def line(label: str, values: list[float], counts: list[int], difference: ClassMeans | None = None) -> LossLine:
    return LossLine(label=label, losses=means(values, counts), unit=BITS, difference=difference)


def test_neighbouring_places_are_drawn_as_one_with_their_mean(figures: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    values, counts = [float(place % 7) for place in range(1000)], [1 + place % 3 for place in range(1000)]
    plots.draw_losses([line("long", values, counts)], path, axis="place", title="of places")
    (drawn,) = figures[0].axes[0].get_lines()
    x, y = drawn.get_xdata(), drawn.get_ydata()
    assert len(x) <= 64
    assert (x[0], y[0], y[1]) == (1, pytest.approx(0), pytest.approx(1 / math.log(2)))
    assert np.mean(y[-5:]) == pytest.approx(3 / math.log(2), rel=0.1)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert figures[0].axes[0].get_ylabel() == "bpc"


def test_differences_stand_beside_the_losses_with_their_own_errors(figures: list[Any], tmp_path: Path) -> None:
    lines = [line("one", [3.0, 2.0], [9, 9]), line("two", [2.0, 2.5], [9, 9], means([-1.0, 0.5], [9, 9]))]
    plots.draw_losses(lines, tmp_path / "a.png", axis="place", title="two")
    losses, differences = figures[0].axes
    assert not losses.collections  # bands that overlap would hide what is told by the difference
    assert len(differences.collections) == 1
    assert differences.get_ylabel() == "difference to one (bits per token)"
    assert differences.get_lines()[1].get_ydata() == pytest.approx([-1 / math.log(2), 0.5 / math.log(2)])


def test_empty_classes_are_left_out_and_every_name_is_in_the_legend(figures: list[Any], tmp_path: Path) -> None:
    lines = [line(name, [math.nan, 3.0, 2.0, math.nan], [0, 3, 5, 0]) for name in NAMES]
    plots.draw_losses(lines, tmp_path / "a.png", axis="tokens", title="$")
    drawn = figures[0].axes[0].get_lines()
    assert [one.get_xdata().tolist() for one in drawn] == [[2, 3]] * len(NAMES)
    assert len({(one.get_color(), one.get_linestyle()) for one in drawn}) == len(NAMES)
    (legend,) = figures[0].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(NAMES)
    assert texts[:2] == [r" _under \$x\$ {score}", r"\x1b[31mred"]


def test_scores_stand_at_their_memory_on_an_axis_that_makes_no_cliff_of_them(
    figures: list[Any], tmp_path: Path
) -> None:
    lines = [
        MemoryLine(
            label="txl", memory=[0, 8, 64], losses=[1.01, 1.0, 0.99], errors=[0.001, 0.001, math.nan], unit=BITS
        ),
        MemoryLine(label="lstm", memory=[], losses=[1.0], errors=[math.nan], unit=BITS),
    ]
    plots.draw_by_memory(lines, tmp_path / "a.png", title="memory")
    axes = figures[0].axes[0]
    assert list(axes.get_xticks()) == [0, 8, 64]
    drawn = {one.get_label(): one for one in axes.get_lines()}
    assert drawn["lstm"].get_linestyle() == ":"
    low, high = axes.get_ylim()
    assert high - low >= 0.1 / math.log(2)


def attention(*, layers: int, heads: int, mem_len: int, segment_len: int) -> AttentionByDistance:
    distances = mem_len + segment_len
    weight = np.random.default_rng(0).dirichlet(np.ones(distances), size=(layers, heads))
    return AttentionByDistance(
        weight=weight,
        seen=np.clip((distances - np.arange(distances)) / segment_len, 0, 1),
        memory_share=weight[..., segment_len:].sum(-1),
        predictions=1000,
        lanes=1,
        segment_len=segment_len,
        mem_len=mem_len,
    )


@pytest.mark.parametrize(("layers", "mem_len"), [(5, 12), (1, 0)])
def test_attention_is_drawn_with_the_colours_of_its_heads(
    figures: list[Any], tmp_path: Path, layers: int, mem_len: int
) -> None:
    found = attention(layers=layers, heads=6, mem_len=mem_len, segment_len=4)
    plots.draw_attention(found, tmp_path / "a.png", title="a model")
    panel = figures[0].axes[0]
    (legend,) = figures[0].subfigs[0].legends
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        if text.get_text().startswith("head "):
            head = int(text.get_text().removeprefix("head ")) - 1
            assert (handle.get_color() == panel.get_lines()[head].get_color()).all()


def test_bins_hold_every_distance_that_is_seen_once() -> None:
    weight = np.arange(20, dtype=np.float64)[None, None]
    weight[..., 17:] = np.nan
    middle, mean = attention_bins(weight)
    assert middle[0] == 0
    assert middle[-1] <= 16
    np.testing.assert_allclose(mean[0, 0], middle)  # a straight line stays one
