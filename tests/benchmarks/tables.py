"""From measured turns to medians, ratios and Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.benchmarks.contest import Result


class Spread(NamedTuple):
    """A median over rounds, and between what it lay."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise the rounds."""
    return Spread(statistics.median(values), min(values), max(values))


def rate(result: Result) -> Spread:
    """Give tokens a second."""
    return spread([result.tokens / seconds for seconds in result.turns])


def times_faster(result: Result, peer: Result) -> Spread:
    """Give how many times the peer's tokens a second a side has: round by round, in which both ran side by side."""
    pairs = zip(result.turns, peer.turns, strict=True)
    return spread([(result.tokens / own) / (peer.tokens / theirs) for own, theirs in pairs])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table; all columns but the first are numbers."""
    rule = ["---" if column == 0 else "---:" for column in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])


def comparison(
    results: Sequence[Result],
    *,
    peers: Sequence[str],
    mfu: Mapping[str, float],
    gemm_limit: Mapping[str, float],
) -> str:
    """Write each side's speed and memory, and both as ratios to the peers'.

    Args:
        results: of the sides, which were measured in turn.
        peers: names of those to compare with, in the order of the columns.
        mfu: useful operations over the measured peak, of the sides of which it is known.
        gemm_limit: tokens a second of the step's matrix products alone, likewise.
    """
    ratios = [words for peer in peers for words in (f"x {peer}", "memory")]
    head = ["side", "tokens/s", "least to most", "peak memory", *ratios]
    limits = ["mfu", "gemm_limit"] if mfu else []
    return markdown([*head, *limits], [_row(result, results, peers, mfu, gemm_limit) for result in results])


def _row(
    result: Result,
    results: Sequence[Result],
    peers: Sequence[str],
    mfu: Mapping[str, float],
    gemm_limit: Mapping[str, float],
) -> list[str]:
    columns = 3 + 2 * len(peers) + (2 if mfu else 0)
    if result.error is not None:
        return [result.name, f"fails: {result.error.splitlines()[0][:80]}", *[""] * (columns - 1)]
    speed = rate(result)
    cells = [result.name, number(speed.median), f"{number(speed.low)} to {number(speed.high)}", gigabytes(result)]
    for peer in peers:
        other = next((other for other in results if other.name == peer and other.error is None), None)
        if other is None or result.name in peers:
            cells += ["", ""]
        else:
            faster = times_faster(result, other)
            cells += [f"{faster.median:.2f} ({faster.low:.2f} to {faster.high:.2f})", f"{memory_of(result, other):.2f}"]
    if mfu:
        share, limit = mfu.get(result.name), gemm_limit.get(result.name)
        cells += ["" if share is None else f"{share:.0%}", "" if limit is None else number(limit)]
    return cells


def memory_of(result: Result, other: Result) -> float:
    """Give the peak memory of a side as a part of another's."""
    return result.peak_bytes / other.peak_bytes


def gigabytes(result: Result) -> str:
    """Write the peak memory of a side."""
    return f"{result.peak_bytes / 1e9:.2f} GB"


def number(value: float) -> str:
    """Write a number with three digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
