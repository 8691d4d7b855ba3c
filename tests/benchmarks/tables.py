"""From measured turns to medians, ratios and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.benchmarks.contest import Result


def times_faster(result: Result, peer: Result) -> list[float]:
    """Return how many times the peer's tokens per second a side has, round by round: in each both ran side by side."""
    pairs = zip(result.turns, peer.turns, strict=True)
    return [(result.tokens / own) / (peer.tokens / theirs) for own, theirs in pairs]


def comparison(results: Sequence[Result], *, peers: Sequence[str]) -> str:
    """Return a table of each side's speed and memory, and of both as ratios to the peers'.

    Args:
        results: of the sides, which were measured in turn.
        peers: names of those to compare with, in the order of the columns.
    """
    ratios = [words for peer in peers for words in (f"x {peer}", "memory")]
    head = ["side", "tokens/s", "least to most", "peak memory", *ratios]
    rule = ["---" if column == 0 else "---:" for column in range(len(head))]
    rows = [head, rule, *(_row(result, results, peers) for result in results)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(result: Result, results: Sequence[Result], peers: Sequence[str]) -> list[str]:
    if result.error is not None:
        return [result.name, f"fails: {result.error.splitlines()[0][:80]}", *[""] * (2 + 2 * len(peers))]
    rates = [result.tokens / seconds for seconds in result.turns]
    cells = [result.name, number(statistics.median(rates)), f"{number(min(rates))} to {number(max(rates))}"]
    cells.append(f"{result.peak_bytes / 1e9:.2f} GB")
    for peer in peers:
        other = next((other for other in results if other.name == peer and other.error is None), None)
        if other is None or result.name in peers:
            cells += ["", ""]
        else:
            faster = times_faster(result, other)
            cells.append(f"{statistics.median(faster):.2f} ({min(faster):.2f} to {max(faster):.2f})")
            cells.append(f"{result.peak_bytes / other.peak_bytes:.2f}")
    return cells


def number(value: float) -> str:
    """Return a number with three digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
