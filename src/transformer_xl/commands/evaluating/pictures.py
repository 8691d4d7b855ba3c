"""Pictures of evaluations: a line for each model or reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from transformer_xl.commands.evaluating.picture_parts import legend_below, line_look, log_axis, save, written
from transformer_xl.commands.evaluating.tables import Evaluated, units_to_compare
from transformer_xl.inference.breakdown import LossByDistance, LossByPosition
from transformer_xl.scores import Unit, in_words

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 64
_LINES_INSIDE = 6


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a picture.

    Attributes:
        label: what it stands for.
        places: along the horizontal axis, rising.
        losses: mean loss at each place in nats; NaN where there is none.
        counts: predictions at each place; None: not known.
        errors: standard error of each loss; None: not known.
        unit: in which the losses are drawn; None: nats.
    """

    label: str
    places: NDArray[np.float64]
    losses: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None
    errors: NDArray[np.float64] | None = None
    unit: Unit | None = None

    @classmethod
    def of_positions(cls, label: str, by: LossByPosition, unit: Unit | None) -> Line:
        """Make a line of losses by the place in the segment, counted from 1."""
        places = np.arange(1, len(by.counts) + 1, dtype=np.float64)
        return cls(label=label, places=places, losses=by.means, counts=by.counts, errors=by.errors, unit=unit)

    @classmethod
    def of_distances(cls, label: str, by: LossByDistance, unit: Unit | None) -> Line:
        """Make a line of losses by the tokens of the document that were read."""
        places = by.shortest.astype(np.float64)
        return cls(label=label, places=places, losses=by.means, counts=by.counts, errors=by.errors, unit=unit)

    def of(self, losses: NDArray[np.float64]) -> list[float]:
        """Give losses in the unit of the line."""
        return [loss if self.unit is None else self.unit.of(loss) for loss in losses.tolist()]


def draw_by_position(lines: Sequence[Line], path: Path, *, title: str) -> Path:
    """Draw losses against the place in the segment.

    Without memory the line falls from a high first place, where a prediction has one token to go by; with it it is
    flat. Neighbouring places are drawn as one, the more the further on.
    """
    figure, axes = _canvas()
    handles = [_plot(axes, _thinned(line), number, marker=".") for number, line in enumerate(lines)]
    log_axis(axes, (place for line in lines for place in line.places), name="place in the segment")
    return _finished(figure, axes, lines, handles, path, title=title)


def draw_by_distance(lines: Sequence[Line], path: Path, *, title: str) -> Path:
    """Draw losses against how much of its document a model has read, in powers of two.

    Shaded is twice the standard error: few predictions are made near a beginning.
    """
    figure, axes = _canvas()
    drawn = [_without_empty(line) for line in lines]
    handles = [_plot(axes, line, number, marker="o") for number, line in enumerate(drawn)]
    log_axis(
        axes,
        (place for line in drawn for place in line.places),
        name="tokens read since the document (without borders: the lane) began, from each number to the next",
    )
    return _finished(figure, axes, lines, handles, path, title=title)


def draw_by_memory(lines: Sequence[Line], path: Path, *, title: str) -> Path:
    """Draw scores against the memory's length; 0 stands at the left of a logarithmic axis.

    A model that was read with one length only is a dotted line beside the others.
    """
    figure, axes = _canvas()
    handles = []
    for number, line in enumerate(lines):
        handles.append(_plot(axes, line, number, marker="o"))
        if len(line.places) == 1:
            axes.axhline(line.of(line.losses)[0], color=line_look(number)["color"], linestyle=":", linewidth=1.2)
    lengths = sorted({int(place) for line in lines for place in line.places})
    shortest = min((length for length in lengths if length > 0), default=1)
    axes.set_xscale("symlog", base=2, linthresh=shortest)
    axes.set_xticks(_apart(lengths))
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(left=-0.05 * shortest)
    axes.set_xlabel("memory (tokens before the segment)")
    return _finished(figure, axes, lines, handles, path, title=title)


def memory_lines(rows: Sequence[Evaluated]) -> list[Line]:
    """Make a line for each model, and for each way to read it other than the memory's length; at least one.

    Memory 0, which no `same_length` can have, begins lines with it too. Windows have no memory, and are a line apart.
    """
    with_units = list(zip(rows, units_to_compare(rows), strict=True))
    groups: dict[tuple[object, ...], list[tuple[Evaluated, Unit | None]]] = {}
    for row, unit in with_units:
        if _memory(row) > 0:
            groups.setdefault((*_apart_from_memory(row), row.lengths.same_length), []).append((row, unit))
    for row, unit in with_units:
        if _memory(row) == 0:
            fitting = [group for key, group in groups.items() if key[:-1] == _apart_from_memory(row)]
            for group in fitting or [groups.setdefault((*_apart_from_memory(row), False), [])]:
                group.append((row, unit))
    several = {row.name for row in rows if sum(key[0] == row.name for key in groups) > 1}
    return [_line_of(group, with_lengths=group[0][0].name in several) for group in groups.values()]


def _line_of(group: Sequence[tuple[Evaluated, Unit | None]], *, with_lengths: bool) -> Line:
    ordered = sorted((row for row, _ in group), key=_memory)
    longest = ordered[-1]
    return Line(
        label=_label(longest) if with_lengths else longest.name,
        places=np.array(list(map(_memory, ordered)), np.float64),
        losses=np.array([row.score.loss for row in ordered]),
        unit=group[0][1],  # one model has one unit
    )


def _apart_from_memory(row: Evaluated) -> tuple[object, ...]:
    return row.name, row.lengths.segment_len, row.lengths.clamp_len, row.lengths.stride


def _memory(row: Evaluated) -> int:
    """Count the tokens from before a segment that are seen."""
    return row.lengths.mem_len if row.lengths.stride is None else 0


def _label(row: Evaluated) -> str:
    lengths = row.lengths
    parts = [row.name, f"segment {lengths.segment_len}"]
    parts += [] if lengths.clamp_len is None else [f"clamp {lengths.clamp_len}"]
    parts += ["same length"] if lengths.same_length else []
    parts += [] if lengths.stride is None else [f"stride {lengths.stride}"]
    return ", ".join(parts)


def _canvas() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    return figure, figure.subplots()


def _plot(axes: Axes, line: Line, number: int, *, marker: str) -> Artist:
    look = line_look(number)
    (drawn,) = axes.plot(line.places, line.of(line.losses), marker=marker, markersize=4, linewidth=1.6, **look)
    if line.errors is not None:
        low, high = (line.of(line.losses + factor * line.errors) for factor in (-2, 2))
        axes.fill_between(line.places, low, high, color=look["color"], alpha=0.12, linewidth=0)
    return drawn


def _thinned(line: Line) -> Line:
    """Draw neighbours as one, so that no more than so many points are left, evenly on a logarithmic axis."""
    line = _without_empty(line)
    if len(line.places) <= _POINTS or line.counts is None:
        return line
    weights = line.counts.astype(np.float64)
    edges = np.unique(np.geomspace(1, len(weights) + 1, _POINTS + 1).round().astype(np.int64) - 1)[:-1]
    counts = np.add.reduceat(weights, edges)
    errors = None
    if line.errors is not None:
        errors = np.sqrt(np.add.reduceat((np.nan_to_num(line.errors) * weights) ** 2, edges)) / counts
    return replace(
        line,
        places=np.add.reduceat(line.places * weights, edges) / counts,
        losses=np.add.reduceat(line.losses * weights, edges) / counts,
        counts=counts.astype(np.int64),
        errors=errors,
    )


def _without_empty(line: Line) -> Line:
    if line.counts is None:
        return line
    some = line.counts > 0
    return replace(
        line,
        places=line.places[some],
        losses=line.losses[some],
        counts=line.counts[some],
        errors=None if line.errors is None else line.errors[some],
    )


def _apart(lengths: Sequence[int]) -> list[int]:
    """Keep lengths whose numbers would not overlap on the axis."""
    kept: list[int] = []
    for length in lengths:
        if not kept or length == 0 or kept[-1] == 0 or length / kept[-1] > 1.25:
            kept.append(length)
    return kept


def _finished(
    figure: Figure, axes: Axes, lines: Sequence[Line], handles: Sequence[Artist], path: Path, *, title: str
) -> Path:
    unit = lines[0].unit
    axes.set_ylabel("nats a token" if unit is None else in_words(unit.name))
    shaded = "; shaded: two standard errors" if any(line.errors is not None for line in lines) else ""
    axes.set_title(written(f"{title}{shaded}"), fontsize="medium")
    axes.grid(alpha=0.3)
    labels = [line.label for line in lines]
    if len(lines) > _LINES_INSIDE or max(map(len, labels)) > 40:
        figure.set_figheight(4.5 + 0.22 * math.ceil(len(lines) / 2))
        legend_below(figure, handles, labels, columns=2)
    else:
        axes.legend(handles, [written(label) for label in labels], fontsize="small")
    return save(figure, path)
