"""Pictures of evaluations: where losses lie, what a longer memory gives, and how far back attention looks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.inference.attention import AttentionByDistance
from transformer_xl.inference.evaluate import ClassMeans
from transformer_xl.scores import PERPLEXITY, Unit, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("-", "--", ":", "-.")
_POINTS = 64
_LEGEND_INSIDE = 6
_SMALLEST_SPAN = 0.1
"""Of an axis of scores, as a share of them: a difference looks as large as it is."""
_ATTENTION_COLUMNS = 4
_BINS_PER_OCTAVE = 4
_SMALLEST_WEIGHT = 1e-6


@dataclass(frozen=True, kw_only=True)
class LossLine:
    """The losses of one reading, by class.

    Attributes:
        label: what it stands for.
        losses: mean loss of each class.
        unit: in which losses are drawn; None: nats.
        difference: mean difference to the first line's loss of the same tokens; None: it is the first, or read others.
    """

    label: str
    losses: ClassMeans
    unit: Unit | None
    difference: ClassMeans | None


@dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """The scores of one model at several lengths of memory, in rising order.

    Attributes:
        label: what it stands for.
        memory: lengths; empty: the model has no memory of a length, and one score.
        losses: mean losses in nats.
        errors: standard errors of their differences to the last one.
        unit: in which losses are drawn; None: nats.
    """

    label: str
    memory: Sequence[int]
    losses: Sequence[float]
    errors: Sequence[float]
    unit: Unit | None


def draw_losses(lines: Sequence[LossLine], path: Path, *, axis: str, title: str) -> None:
    """Draw losses by class; beside them the differences to the first line, where others read the same tokens.

    Bands are two standard errors. Of several lines they belong to the differences: those of the losses themselves say
    how hard the tokens are, which is the same for all.

    Args:
        lines: at least one.
        path: of the picture.
        axis: what the classes are.
        title: what was read.
    """
    paired = [line for line in lines if line.difference is not None]
    figure, panels = _canvas(2 if paired else 1)
    for number, line in enumerate(lines):
        found = _thinned(line.losses)
        to_unit = float if line.unit is None else line.unit.of
        _draw_line(panels[0], found, number, to_unit, band=not paired, label=line.label)
    panels[0].set_ylabel(_axis_label(lines[0].unit))
    if paired:
        in_bits = all(line.unit is not None and line.unit.name != PERPLEXITY for line in lines)
        scale = lines[0].unit.of(1.0) if in_bits and lines[0].unit is not None else 1.0
        panels[1].axhline(0, color="C0", linewidth=1.2)
        for number, line in enumerate(lines):
            if line.difference is not None:
                _draw_line(panels[1], _thinned(line.difference), number, lambda value: scale * value, band=True)
        panels[1].set_ylabel(f"difference to {_written(lines[0].label)} ({'bits' if in_bits else 'nats'} per token)")
    for panel in panels:
        _log_axis(panel, (place for line in lines for place in line.losses.labels[line.losses.counts > 0]), name=axis)
    note = "bands: two standard errors"
    _finish(figure, panels[0], path, title=f"{title}; {f'{note} of the difference' if paired else note}")


def draw_by_memory(lines: Sequence[MemoryLine], path: Path, *, title: str) -> None:
    """Draw scores against the length of memory; 0 stands at the left of a logarithmic axis.

    A score that has no length of memory is a dotted line. Bars are two standard errors of the difference to the
    line's longest memory.
    """
    figure, (axes,) = _canvas(1)
    shown = []
    for number, line in enumerate(lines):
        to_unit = float if line.unit is None else line.unit.of
        values = [to_unit(loss) for loss in line.losses]
        shown += values
        look: Any = _look(number)
        if not line.memory:
            axes.axhline(values[0], label=_written(line.label), **{**look, "linestyle": ":"})
            continue
        errors = np.nan_to_num(line.errors).tolist()
        bars = [to_unit(loss + 2 * error) - to_unit(loss) for loss, error in zip(line.losses, errors, strict=True)]
        axes.errorbar(line.memory, values, bars, marker=".", capsize=3, label=_written(line.label), **look)
    lengths = sorted({length for line in lines for length in line.memory})
    shortest = min((length for length in lengths if length > 0), default=1)
    axes.set_xscale("symlog", base=2, linthresh=shortest)
    apart = [place for place, after in pairwise([*lengths, math.inf]) if not place or after > 1.25 * place]
    axes.set_xticks(apart)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(left=-0.05 * shortest)
    axes.set_xlabel("memory (tokens before the segment)")
    axes.set_ylabel(_axis_label(lines[0].unit))
    finite = [value for value in shown if math.isfinite(value)]
    if finite:
        middle, low, high = (min(finite) + max(finite)) / 2, *axes.get_ylim()
        half = max((high - low) / 2, _SMALLEST_SPAN / 2 * middle)
        axes.set_ylim(middle - half, middle + half)
    _finish(figure, axes, path, title=f"{title}; bars: two standard errors of the difference to the longest memory")


def draw_attention(result: AttentionByDistance, path: Path, *, title: str) -> None:
    """Draw weight against distance, a panel for each layer and a line for each head, and the share that memory has.

    Both axes are logarithmic but for the distance 0, the query's own token, which stands at the left edge. A line
    averages over ever more distances, and over the predictions that see them.
    """
    import matplotlib
    from matplotlib.figure import Figure

    layers, heads, _ = result.weight.shape
    columns = min(_ATTENTION_COLUMNS, layers)
    rows = math.ceil(layers / columns)
    figure = Figure(figsize=(max(7.0, 3.2 * columns), 2.3 * rows + 3.2), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2.3 * rows + 0.5, 2.7])
    above, below = parts
    panels = above.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, heads))
    distance, weight = attention_bins(result.weight_where_seen)
    named = {0, heads // 2, heads - 1}
    for number, panel in enumerate(panels):
        if number >= layers:
            panel.set_axis_off()
            continue
        for head in range(heads):
            label = f"head {head + 1}" if head in named else None
            panel.plot(distance, weight[number, head], color=colors[head], linewidth=0.9, alpha=0.8, label=label)
        panel.plot(distance, weight[number].mean(axis=0), color="black", linewidth=1.6, label="mean of the heads")
        if result.mem_len:
            far = {"color": "tab:orange", "alpha": 0.12, "linewidth": 0, "label": "beyond the segment: memory"}
            panel.axvspan(result.segment_len, distance[-1], **far)
        panel.set_title(f"layer {number + 1}", fontsize=9)
        panel.grid(alpha=0.25)
    panels[0].set_xscale("symlog", linthresh=1, linscale=0.4)
    panels[0].xaxis.set_major_formatter("{x:,.0f}")
    panels[0].set_yscale("log")
    panels[0].set_xlim(0, distance[-1])
    panels[0].set_ylim(max(_SMALLEST_WEIGHT, np.nanmin(weight)), min(1.0, 1.5 * np.nanmax(weight)))
    above.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=5, fontsize=8)
    above.supxlabel("distance in tokens; 0 is the token itself", fontsize=9)
    above.supylabel("mean weight", fontsize=9)
    above.suptitle(_written(title), x=0.01, ha="left", fontsize=10)
    _draw_memory_share(below.subplots(), result, colors)
    _save(figure, path)


def _draw_memory_share(axes: Axes, result: AttentionByDistance, colors: Any) -> None:
    layers, heads = result.memory_share.shape
    place = np.arange(1, layers + 1)
    axes.bar(place, result.memory_share.mean(axis=1), color="tab:orange", alpha=0.35, width=0.8)
    for head in range(heads):
        beside = place + (0.5 * (head - (heads - 1) / 2) / max(heads - 1, 1))
        axes.scatter(beside, result.memory_share[:, head], color=colors[head], s=8, linewidths=0)
    axes.set(xlabel="layer", ylabel="share of weight on memory", ylim=(0, 1), xlim=(0.4, layers + 0.6), xticks=place)
    axes.set_title(
        f"memory {result.mem_len}, segment {result.segment_len}: bars are means, dots are heads; over "
        f"{result.predictions:,} predictions in {result.lanes} lane{'s' if result.lanes > 1 else ''}",
        fontsize=9,
    )
    axes.grid(axis="y", alpha=0.25)


def attention_bins(weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the middle of each of a number of bins that grow with distance (last axis), and the mean over each."""
    seen = int(np.flatnonzero(~np.isnan(weight[0, 0]))[-1]) + 1
    exponents = np.arange(0, math.log2(max(seen, 2)) + 1, 1 / _BINS_PER_OCTAVE)
    edges = np.unique([0, *np.floor(2.0**exponents).astype(int).clip(max=seen), seen])
    parts = list(pairwise(edges))
    middle = np.array([(start + stop - 1) / 2 for start, stop in parts])
    mean = np.stack([np.nanmean(weight[..., start:stop], axis=-1) for start, stop in parts], axis=-1)
    return middle, mean


def _canvas(panels: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8 if panels == 1 else 12, 4.8), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0].tolist()


def _look(number: int) -> dict[str, str]:
    """Return the colour and style of a line; 40 are all different."""
    return {"color": f"C{number % 10}", "linestyle": _STYLES[number // 10 % len(_STYLES)]}


def _draw_line(
    axes: Axes, found: ClassMeans, number: int, to_unit: Callable[[float], float], *, band: bool, label: str = ""
) -> None:
    look: Any = _look(number)

    def drawn(values: NDArray[np.float64]) -> list[float]:
        return [to_unit(value) for value in values.tolist()]

    axes.plot(found.labels, drawn(found.means), marker=".", linewidth=1.4, label=_written(label), **look)
    if band:
        margin = 2 * np.nan_to_num(found.errors)
        low, high = drawn(found.means - margin), drawn(found.means + margin)
        axes.fill_between(found.labels, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _thinned(found: ClassMeans) -> ClassMeans:
    """Leave out empty classes, and join neighbours so that few points are left, evenly on a logarithmic axis."""
    some = found.counts > 0
    labels, counts, means, errors = found.labels[some], found.counts[some], found.means[some], found.errors[some]
    if len(labels) <= _POINTS:
        return ClassMeans(labels, counts, means, errors)
    edges = np.unique(np.geomspace(1, len(labels) + 1, _POINTS + 1).round().astype(np.int64) - 1)[:-1]
    together = np.add.reduceat(counts, edges)
    return ClassMeans(
        np.add.reduceat(labels * counts, edges) / together,
        together,
        np.add.reduceat(means * counts, edges) / together,
        np.sqrt(np.add.reduceat((np.nan_to_num(errors) * counts) ** 2, edges)) / together,
    )


def _log_axis(axes: Axes, places: Iterable[float], *, name: str) -> None:
    """Let powers of two stand at even distances, in plain numbers."""
    found = list(places) or [1.0]
    axes.set_xscale("log", base=2)
    first, last = math.floor(math.log2(min(found))), math.ceil(math.log2(max(found)))
    axes.set_xticks([2.0**power for power in range(first, last + 1, max(1, (last - first) // 9))])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g}Ki" if value >= 8192 else f"{value:,.4g}")
    axes.set_xlabel(name)
    axes.grid(alpha=0.3)


def _axis_label(unit: Unit | None) -> str:
    return "nats per token" if unit is None else in_words(unit.name)


def _finish(figure: Figure, axes: Axes, path: Path, *, title: str) -> None:
    axes.grid(alpha=0.3)
    figure.suptitle(_written(title), fontsize="medium")
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _LEGEND_INSIDE or max(map(len, labels)) > 40 or len(figure.axes) > 1:
        figure.set_figheight(4.8 + 0.22 * math.ceil(len(labels) / 2))
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    else:
        axes.legend(fontsize="small")
    _save(figure, path)


def _written(text: str) -> str:
    """Write a text that matplotlib shall take neither for a formula nor for something to leave out."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def _save(figure: Figure, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn, which says it
        figure.savefig(path, dpi=120)
