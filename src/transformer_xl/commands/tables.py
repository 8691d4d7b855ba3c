"""What a sweep knows of its jobs, and tables of them on the screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class JobRecord:
    """What `job.json` holds."""

    sweep: str
    number: int
    overrides: list[str]
    objective: float | None
    exit_code: int
    folder: str


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: drawn on a terminal, in plain columns elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*header)
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Write what a terminal must not be given as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
