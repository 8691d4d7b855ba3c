"""Pictures of evaluations: where losses lie, what a longer memory gives, and how far back attention looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_xl.inference.evaluate import AttentionByDistance, ClassMeans

_SMALLEST_SPAN = 0.1
"""Of an axis of scores, as a share of them: a difference looks as large as it is."""
_ATTENTION_COLUMNS = 4
_SMALLEST_WEIGHT = 1e-6


class Line(NamedTuple):
    """Mean losses of one reading by class, and mean differences to those of the first; None: it read other tokens."""

    label: str
    losses: ClassMeans
    difference: ClassMeans | None = None


def draw_losses(lines: Sequence[Line], path: Path, *, axis: str, unit: str, title: str) -> None:
    """Draw losses by class, named by `axis`; beside them the differences to the first line, where there are any.

    Bands are two standard errors. Of several lines they belong to the differences: those of the losses themselves say
    how hard the tokens are, which is the same for all.
    """
    paired = any(line.difference is not None for line in lines)
    figure = Figure(figsize=(12 if paired else 8, 4.8), layout="constrained")
    panels = figure.subplots(1, 2 if paired else 1, squeeze=False)[0]
    for number, line in enumerate(lines):
        _draw_line(panels[0], line.losses, f"C{number}", band=not paired, label=_written(line.label))
        if line.difference is not None:
            _draw_line(panels[1], line.difference, f"C{number}", band=True)
    low, high = panels[0].get_ylim()
    half = max(high - low, _SMALLEST_SPAN * abs(high + low) / 2) / 2
    panels[0].set(ylabel=unit, ylim=((low + high) / 2 - half, (low + high) / 2 + half))
    if paired:
        panels[1].axhline(0, color="C0", linewidth=1.2)
        panels[1].set_ylabel(f"difference to {_written(lines[0].label)} ({unit})")
    places = np.concatenate([line.losses.labels for line in lines])
    first = min(places[places > 0], default=1)
    for panel in panels:
        panel.set_xscale("symlog", base=2, linthresh=first)
        panel.set(xlabel=axis, xlim=(places.min() - 0.1 * first, 1.1 * places.max()))
        panel.xaxis.set_major_formatter("{x:,.4g}")
        panel.tick_params(axis="x", labelsize="small")
    _finish(figure, path, title=f"{title}; bands: two standard errors{' of the difference' if paired else ''}")


def draw_attention(result: AttentionByDistance, path: Path, *, segment_len: int, title: str) -> None:
    """Draw the weight of a key that is seen against its distance, a panel for each layer and a line for each head.

    Both axes are logarithmic but for the distance 0, the query's own token, which stands at the left edge.
    """
    layers = len(result.weight_by_distance)
    columns = min(_ATTENTION_COLUMNS, layers)
    rows = math.ceil(layers / columns)
    figure = Figure(figsize=(max(7.0, 3.2 * columns), 2.3 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    seen = result.share_seen[: int(np.flatnonzero(result.share_seen)[-1]) + 1]
    weight = result.weight_by_distance[..., : len(seen)] / seen
    for layer, (of_layer, share) in enumerate(zip(weight, result.memory_share, strict=True)):
        panel = panels[layer]
        panel.plot(of_layer.T, color="C0", linewidth=0.7, alpha=0.6)
        panel.plot(of_layer.mean(axis=0), color="black", linewidth=1.6, label="mean of the heads")
        panel.axvspan(segment_len, max(segment_len, len(seen)), color="C1", alpha=0.12, linewidth=0, label="memory")
        panel.set_title(f"layer {layer + 1}: {share.mean():.0%} on memory", fontsize=9)
    panels[0].set(xlim=(0, len(seen)), ylim=(max(_SMALLEST_WEIGHT, weight.min()), min(1.0, 1.5 * weight.max())))
    panels[0].set_xscale("symlog", linthresh=1, linscale=0.4)
    panels[0].set_yscale("log")
    for panel in panels[layers:]:
        panel.set_axis_off()
    panels[0].set(xlabel="distance in tokens", ylabel="mean weight")
    _finish(figure, path, title=f"{title}; attention over {result.predictions:,} predictions")


def draw_by_distance(lines: Mapping[str, Mapping[int, tuple[float, float]]], path: Path, *, title: str) -> None:
    """Draw accuracy against the distance of what is recalled: for each label, distance -> mean and deviation."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    for number, (label, scores) in enumerate(lines.items()):
        distances = sorted(scores)
        means, deviations = np.array([scores[distance] for distance in distances]).reshape(-1, 2).T
        line = f"{'.ox'[number // 10 % 3]}-"  # more lines than colours
        axes.errorbar(distances, means, deviations, fmt=line, color=f"C{number % 10}", capsize=2, label=_written(label))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.4g}")
    axes.set(xlabel="distance in tokens", ylabel="accuracy", ylim=(-0.02, 1.02))
    _finish(figure, path, title=title)


def _draw_line(axes: Axes, found: ClassMeans, color: str, *, band: bool, label: str = "") -> None:
    some = found.counts > 0
    labels, means, margin = found.labels[some], found.means[some], 2 * np.nan_to_num(found.errors[some])
    axes.plot(labels, means, marker=".", linewidth=1.4, color=color, label=label)
    if band:
        axes.fill_between(labels, means - margin, means + margin, color=color, alpha=0.15, linewidth=0)


def _finish(figure: Figure, path: Path, *, title: str) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.suptitle(_written(title), fontsize="medium", wrap=True)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.set_figheight(figure.get_figheight() + 0.22 * math.ceil(len(labels) / 2))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)


def _written(text: str) -> str:
    """Write a text that matplotlib shall take neither for a formula nor for something to leave out."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain
