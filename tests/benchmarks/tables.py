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
    """Write a table; all columns but the first two are numbers."""
    rule = ["---" if column < 2 else "---:" for column in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])


def comparison_head(peers: Sequence[str]) -> list[str]:
    """Give the head of `comparison`'s table."""
    ratios = [words for peer in peers for words in (f"x {peer}", f"memory / {peer}")]
    return ["work", "side", "tokens/s", "least to most", *ratios, "peak memory", "mfu", "gemm_limit"]


def comparison(
    works: Mapping[str, str],
    results: Sequence[Result],
    *,
    peers: Sequence[str],
    mfu: dict[str, float],
    gemm_limit: dict[str, float],
) -> list[list[str]]:
    """Write a work's rows: each side's speed and memory, and both as ratios to the peers'.

    Args:
        works: what each side does, in words, by its name.
        results: of the sides, which were measured in turn.
        peers: names of those to compare with, in the order of the columns.
        mfu: useful operations over the measured peak, of the sides of which it is known.
        gemm_limit: tokens a second of the step's matrix products alone, likewise.
    """
    named = {result.name: result for result in results}
    rows = []
    for result in results:
        if result.error is not None:
            empty = [""] * (2 * len(peers) + 4)
            rows.append([works[result.name], result.name, f"fails: {result.error.splitlines()[0][:80]}", *empty])
            continue
        ratios = []
        for peer in peers:
            other = named.get(peer)
            if other is None or other.error is not None or result.name in peers:
                ratios += ["", ""]
            else:
                faster = times_faster(result, other)
                ratios += [
                    f"{faster.median:.2f} ({faster.low:.2f} to {faster.high:.2f})",
                    f"{result.peak_bytes / other.peak_bytes:.2f}",
                ]
        speed = rate(result)
        share, limit = mfu.get(result.name), gemm_limit.get(result.name)
        rows.append(
            [
                works[result.name],
                result.name,
                number(speed.median),
                f"{number(speed.low)} to {number(speed.high)}",
                *ratios,
                f"{result.peak_bytes / 1e9:.2f} GB",
                "" if share is None else f"{share:.0%}",
                "" if limit is None else number(limit),
            ]
        )
    return rows


def number(value: float) -> str:
    """Write a number with three digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
