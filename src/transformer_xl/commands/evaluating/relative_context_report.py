"""The table and the picture of relative effective context lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from transformer_xl.commands.evaluating.picture_parts import legend_below, line_look, log_axis, save, written
from transformer_xl.commands.tables import printable
from transformer_xl.inference.relative_context import RelativeContext


def print_relative_context(
    console: Console, results: Sequence[RelativeContext], *, threshold: float, tokens: int
) -> None:
    """Print the length of each model for each share of the hardest positions, and the gains that it follows from.

    Args:
        console: where to.
        results: of a group.
        threshold: of gains.
        tokens: predictions that were made at each context length.
    """
    lengths = results[0].lengths
    title = (
        f"Relative effective context length, of {tokens:,} predictions. r: the share of them that are hardest. "
        "The columns: by how much reading so many tokens lowers the best model's perplexity at the length before"
    )
    table = Table(title=Text(title), title_justify="left")
    table.add_column("model", overflow="fold")
    for heading in ("r", "context", *(f"to {length:,}" for length in lengths[1:])):
        table.add_column(heading.replace("to ", "to\n"), justify="right", no_wrap=True)
    for result in results:
        for number, gains in enumerate(result.shares):
            length = f"{'>= ' if gains.is_least else ''}{gains.length:,}"
            shown = [f"{gain:.1%}" for gain in gains.gains]
            name = "" if number else printable(result.name)
            table.add_row(Text(name), f"{gains.share:g}", length, *shown, end_section=number == len(result.shares) - 1)
    console.print(table)
    if any(gains.is_least for result in results for gains in result.shares):
        console.print(
            f"Where it says >=, {lengths[-1]:,} tokens were still of use (a gain of at least {threshold:.1%}): longer "
            "eval.relative_context_lengths would tell how many are.",
            soft_wrap=True,
        )


def draw_relative_context(results: Sequence[RelativeContext], path: Path, *, threshold: float, title: str) -> Path:
    """Draw what each step to a longer context gains, a panel for each share of the hardest positions, and the losses.

    A ring marks the relative effective context length; it is open to the right where the longest was still of use.
    """
    from matplotlib.figure import Figure

    shares = [gains.share for gains in results[0].shares]
    figure = Figure(figsize=(4.2 * (len(shares) + 1), 4.8), dpi=120, layout="constrained")
    *panels, last = figure.subplots(1, len(shares) + 1, squeeze=False)[0]
    handles = []
    for number, result in enumerate(results):
        look = line_look(number)
        for index, axes in enumerate(panels):
            gains = result.shares[index]
            values = [100 * gain for gain in gains.gains]
            axes.plot(result.lengths[1:], values, marker=".", **look)
            reached = result.lengths.index(gains.length)
            if reached > 0:
                ring = ">" if gains.is_least else "o"
                axes.plot(gains.length, values[reached - 1], ring, markersize=10, fillstyle="none", color=look["color"])
        handles += last.plot(result.lengths, result.losses, marker=".", **look)
    for share, axes in zip(shares, panels, strict=True):
        axes.axhline(100 * threshold, color="grey", linewidth=0.8, linestyle="--")
        axes.set_yscale("symlog", linthresh=100 * threshold)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(0, 150 * max(threshold, *(gain for result in results for gain in _all_gains(result))))
        axes.set_title("all positions" if share == 1 else f"hardest {100 * share:g} %", fontsize="medium")
    panels[0].set_ylabel("perplexity gained over the context before (%)")
    last.set_title("mean loss, all positions", fontsize="medium")
    last.set_ylabel("nats a token")
    for axes in (*panels, last):
        log_axis(axes, (length for result in results for length in result.lengths), name="context (tokens)")
        axes.grid(alpha=0.3)
    figure.suptitle(written(title), fontsize="medium")
    legend_below(figure, handles, [_recl(result) for result in results], columns=2)
    return save(figure, path)


def _all_gains(result: RelativeContext) -> list[float]:
    return [gain for gains in result.shares for gain in gains.gains]


def _recl(result: RelativeContext) -> str:
    lengths = ", ".join(f"{'≥ ' if gains.is_least else ''}{gains.length}" for gains in result.shares)
    shares = ", ".join(f"{gains.share:g}" for gains in result.shares)
    return f"{result.name}: {lengths} (r = {shares})"
