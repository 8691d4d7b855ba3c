"""Pictures of what a model looks at: attention by distance, and how far back outputs depend on the text."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.commands.evaluating.picture_parts import save
from transformer_xl.inference.looking import AttentionByDistance
from transformer_xl.inference.reach import Reach

_COLUMNS = 4
_BINS_AN_OCTAVE = 4
_SMALLEST_SHOWN = 1e-6
_GREEN, _GREY = "#2ca02c", "#b0b0b0"
_MANY_LAYERS = (6, 16)
_DRAWN_A_QUERY = (4, 3, 2)
_DRAWN_BORDERS = 12


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


def draw_reach(reach: Reach, path: Path, *, title: str) -> None:
    """Draw what the last output depends on, as the articles do: lines from it down through the layers.

    Green lines read memory, grey ones the segment. Only some outputs are drawn; those at the left edge stand where the
    measured distances put them.

    Args:
        reach: what was measured.
        path: of the picture.
        title: which model.
    """
    pyplot = _pyplot()
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import MaxNLocator

    layers = len(reach.distances)
    figure, axes = pyplot.subplots(figsize=(10, max(3.2, 1.6 + 0.45 * layers)), layout="constrained")
    nodes = _nodes(reach)
    for color, lines in _lines(reach, nodes).items():
        axes.add_collection(LineCollection(lines, colors=color, linewidths=0.6, alpha=0.7, zorder=1))
    for layer, places in enumerate(nodes):
        axes.scatter(places, [layer] * len(places), s=14, color="white", edgecolor="black", linewidth=0.7, zorder=2)
    furthest = reach.distances[-1]
    width = max(furthest, 1)
    borders = max(1, math.ceil(furthest / reach.segment_len / _DRAWN_BORDERS))
    for start in range(_segment_start(0, reach.segment_len), -furthest - 1, -borders * reach.segment_len):
        axes.axvline(start - 0.5, color="tab:blue", linewidth=0.6, linestyle=":", alpha=0.6, zorder=0)
    for layer, distance in enumerate(reach.distances, start=1):
        axes.annotate(
            f"layer {layer}: {distance:,} back", (0.03 * width, layer), va="center", fontsize=9, annotation_clip=False
        )
    axes.annotate("tokens", (0.03 * width, 0), va="center", fontsize=9, annotation_clip=False)
    axes.annotate(
        f"{furthest:,} tokens back",
        (-furthest, 0),
        xytext=(0, -14),
        textcoords="offset points",
        ha="left",
        va="top",
        fontsize=9,
        color=_GREEN,
        annotation_clip=False,
    )
    axes.set(xlim=(-1.03 * width, 0.24 * width), ylim=(-1.0, layers + 0.4), yticks=[])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xticks([tick for tick in axes.get_xticks() if -width <= tick <= 0])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    dotted = "borders of segments" if borders == 1 else f"one in {borders} borders of segments"
    axes.set_xlabel(f"place of a token, from the last output on back; dotted: {dotted}")
    same = ", same_length" if reach.same_length else ""
    green = "green lines read memory, grey ones the segment" if reach.mem_len else "all lines stay in the segment"
    axes.set_title(f"{title}\nsegment {reach.segment_len}, memory {reach.mem_len}{same}: {green}", fontsize=10)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    save(figure, path)
    pyplot.close(figure)


def _segment_start(place: int, segment_len: int) -> int:
    """Give where the segment of a place begins; the last output, at place 0, ends one."""
    return -(-place // segment_len + 1) * segment_len + 1


def _nodes(reach: Reach) -> list[list[int]]:
    """Give the places of the outputs that are drawn, for each layer; of tokens at 0."""
    layers = len(reach.distances)
    # the outputs of layer l that the last output sees lie as far back as an output of layer L - l sees tokens
    furthest = [reach.distances[layers - layer - 1] if layer < layers else 0 for layer in range(layers + 1)]
    # not further apart than that a query sees several
    step = max(1, reach.distances[0] // _DRAWN_A_QUERY[sum(layers > most for most in _MANY_LAYERS)])
    return [[-back, *(place for place in range(0, -back, -step) if place + back >= step / 2)] for back in furthest]


def _lines(reach: Reach, nodes: list[list[int]]) -> dict[str, list[list[tuple[int, int]]]]:
    """Join each output with those of the layer below that it reads, by color."""
    lines: dict[str, list[list[tuple[int, int]]]] = {_GREY: [], _GREEN: []}
    for layer in range(1, len(nodes)):
        for above in nodes[layer]:
            start = _segment_start(above, reach.segment_len)
            oldest = above - reach.mem_len + 1 if reach.same_length else start - reach.mem_len
            for below in nodes[layer - 1]:
                if oldest <= below <= above:
                    lines[_GREEN if below < start else _GREY].append([(above, layer), (below, layer - 1)])
    return lines


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
