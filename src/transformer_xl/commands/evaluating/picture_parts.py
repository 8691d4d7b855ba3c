"""What the pictures of evaluations have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from transformer_xl.commands.tables import printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = ("-", "--", ":", "-.")
_COLOURS = tuple(f"C{number}" for number in range(10))


class Look(TypedDict):
    """How a line is told from the others."""

    color: str
    linestyle: str


def line_look(number: int) -> Look:
    """Give the look of the line of a number, from 0; 40 are all different."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linestyle": _STYLES[number // len(_COLOURS) % len(_STYLES)],
    }


def log_axis(axes: Axes, places: Iterable[float], *, name: str) -> None:
    """Let powers of two stand at even distances, in plain numbers."""
    found = [place for place in places if place > 0] or [1.0]
    axes.set_xscale("log", base=2)
    first, last = math.floor(math.log2(min(found))), math.ceil(math.log2(max(found)))
    every = max(1, (last - first) // 9)
    axes.set_xticks([2.0**power for power in range(first, last + 1, every)])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: _number(value))
    axes.set_xlabel(name)


def _number(value: float) -> str:
    if value >= 1 << 20:
        return f"{value / (1 << 20):g}Mi"
    return f"{value / 1024:g}Ki" if value >= 8192 else f"{value:,.4g}"


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], *, columns: int) -> None:
    """Explain the lines below all panels."""
    figure.legend(
        handles, [written(label) for label in labels], loc="outside lower center", ncols=columns, fontsize="small"
    )


def written(text: str) -> str:
    """Write a text that matplotlib shall take neither for a formula nor for something to leave out."""
    plain = printable(text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def save(figure: Figure, path: Path) -> Path:
    """Write a picture; a letter that its font lacks is a box, of which nothing need be said."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, dpi=120)
    return path
