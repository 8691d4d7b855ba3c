"""Measure the comparisons of docs/performance.md: `python -m tests.benchmarks --help`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import ROWS

ABOUT = """\
Measure training, evaluation and generation on this machine's CPU, beside other libraries, which are installed below
outputs/benchmarks/ at the first call. Each side runs in a process of its own, in turn with the others. Writes table.md
and numbers.json into --out after every row.

Sides: transformers, x-transformers, ours (the published model), rope (our transformer_rope).
"""


def main() -> None:
    """Run the rows that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = ",".join(ROWS)
    parser.add_argument("--rows", default=known, help=f"which, between commas (default: {known})")
    parser.add_argument("--sides", help="which sides, between commas (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side has its turn (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, at the least (default: 2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--attention", help="model.attention of ours (default: the configuration's)")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that it runs; its times mean nothing")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/benchmarks/results"), help="folder (default: %(default)s)"
    )
    given = parser.parse_args()
    rows = given.rows.split(",")
    if unknown := sorted(set(rows) - set(ROWS)):
        parser.error(f"--rows has {', '.join(unknown)}, and may have {known}")
    bench = Bench(
        folder=given.out,
        environments=Path("outputs/benchmarks"),
        rounds=given.rounds,
        seconds=given.seconds,
        threads=given.threads,
        quick=given.quick,
        attention=given.attention,
        sides=given.sides and given.sides.split(","),
        command=shlex.join(["python", "-m", "tests.benchmarks", *sys.argv[1:]]),
    )
    for row in rows:
        print(f"{row}: {(ROWS[row].__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
        ROWS[row](bench)


if __name__ == "__main__":
    main()
