"""Tables on the screen."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

_NARROW = {"bits per byte": "bits\n/ byte", "segment / memory": "segment /\nmemory"}  # 80 columns hold a unit more
_MANY = 5


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, boxed: bool = False) -> None:
    """Print a table whose first column is text: drawn on a terminal or where `boxed`, in plain columns elsewhere."""
    if boxed or sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for number, name in enumerate(header):
            heading = _NARROW.get(name, name) if len(header) > _MANY else name
            table.add_column(heading, justify="right" if number and boxed else "left", no_wrap=bool(number) and boxed)
        for row in rows:
            table.add_row(*map(Text, row))
        # drawn first and printed by us: where nobody reads any more, rich ends the program with status 1
        drawn = io.StringIO()
        Console(highlight=False, file=drawn, width=Console().width, force_terminal=sys.stdout.isatty()).print(table)
        print(drawn.getvalue(), end="")
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Write what a terminal must not be given as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
