"""Picture of what a model looks at: attention by distance."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.commands.evaluating.picture_parts import save
from transformer_xl.inference.looking import AttentionByDistance

_COLUMNS = 4
_BINS_AN_OCTAVE = 4
_SMALLEST_SHOWN = 1e-6


def draw_attention(result: AttentionByDistance, path: Path, *, title: str) -> None:
    """Draw weight against distance, a panel for each layer and a line for each head, and the share that memory has.

    Both axes are logarithmic but for the distance 0, the query's own token, which stands at the left edge. A line
    averages over ever more distances, and over the predictions that see them.

    Args:
        result: what was measured.
        path: of the picture.
        title: which model, and how it was read.
    """
    pyplot = _pyplot()
    layers, heads, _ = result.weight.shape
    columns = min(_COLUMNS, layers)
    rows = math.ceil(layers / columns)
    figure = pyplot.figure(figsize=(max(7.0, 3.2 * columns), 2.3 * rows + 3.2), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[2.3 * rows + 0.5, 2.7])
    panels = above.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    colors = pyplot.get_cmap("viridis")(np.linspace(0, 0.9, heads))
    distance, weight = _in_bins(result.weight_where_seen)
    for number, panel in enumerate(panels):
        if number >= layers:
            panel.set_axis_off()
            continue
        for head in range(heads):
            panel.plot(distance, weight[number, head], color=colors[head], linewidth=0.9, alpha=0.8)
        panel.plot(distance, weight[number].mean(axis=0), color="black", linewidth=1.6, label="mean of the heads")
        if result.mem_len:
            panel.axvspan(
                result.segment_len,
                distance[-1],
                color="tab:orange",
                alpha=0.12,
                linewidth=0,
                label="beyond the segment: memory",
            )
        panel.set_title(f"layer {number + 1}", fontsize=9)
        panel.grid(alpha=0.25)
    panels[0].set_xscale("symlog", linthresh=1, linscale=0.4)
    panels[0].xaxis.set_major_formatter("{x:,.0f}")
    panels[0].set_yscale("log")
    panels[0].set_xlim(0, distance[-1])
    panels[0].set_ylim(max(_SMALLEST_SHOWN, np.nanmin(weight)), min(1.0, 1.5 * np.nanmax(weight)))
    handles, labels = panels[0].get_legend_handles_labels()
    head_lines = pyplot.Line2D([], [], color=colors[heads // 2], linewidth=0.9)
    above.legend([head_lines, *handles], ["a head", *labels], loc="outside upper right", ncols=3, fontsize=8)
    above.supxlabel("distance in tokens; 0 is the token itself", fontsize=9)
    above.supylabel("mean weight", fontsize=9)
    above.suptitle(title, x=0.01, ha="left", fontsize=10)
    _draw_share(below.subplots(), result, colors)
    save(figure, path)
    pyplot.close(figure)


def _draw_share(axes: Any, result: AttentionByDistance, colors: Any) -> None:
    layers, heads = result.memory_share.shape
    place = np.arange(1, layers + 1)
    axes.bar(place, result.memory_share.mean(axis=1), color="tab:orange", alpha=0.35, width=0.8)
    for head in range(heads):
        beside = place + (0.5 * (head - (heads - 1) / 2) / max(heads - 1, 1))
        axes.scatter(beside, result.memory_share[:, head], color=colors[head], s=8, linewidths=0)
    axes.set(xlabel="layer", ylabel="share of weight on memory", ylim=(0, 1), xlim=(0.4, layers + 0.6))
    axes.set_xticks(place)
    axes.set_title(
        f"memory {result.mem_len}, segment {result.segment_len}: bars are means, dots are heads; over "
        f"{result.predictions:,} predictions in {result.lanes} lane{'s' if result.lanes > 1 else ''}",
        fontsize=9,
    )
    axes.grid(axis="y", alpha=0.25)


def _in_bins(weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average over distances (last axis) in bins that grow with them; give each bin's middle, and its mean."""
    seen = int(np.flatnonzero(~np.isnan(weight[0, 0]))[-1]) + 1
    exponents = np.arange(0, math.log2(max(seen, 2)) + 1, 1 / _BINS_AN_OCTAVE)
    edges = np.unique([0, *np.floor(2.0**exponents).astype(int).clip(max=seen), seen])
    parts = list(pairwise(edges))
    middle = np.array([(start + stop - 1) / 2 for start, stop in parts])
    mean = np.stack([np.nanmean(weight[..., start:stop], axis=-1) for start, stop in parts], axis=-1)
    return middle, mean


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
