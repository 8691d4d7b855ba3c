"""The table of a comparison: what each row reached with the same data, about as many parameters, as many tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_xl.commands.tables import JobRecord, print_rows
from transformer_xl.scores import BITS_PER_BYTE, BITS_PER_CHARACTER, PERPLEXITY

_ROW = "row="
_HEADER = ("row", "data", "parameters", "tokens", "test", "start of test", "4 x memory", "train tok/s", "eval tok/s")


def print_comparison(records: Sequence[JobRecord]) -> None:
    """Print a table of the jobs that a comparison's rows made (`row=` in their overrides), if there are any.

    Scores are in the unit of each corpus; the beginning of the test split is read with the memory that the row was
    trained with, and with four times as much where it has one.
    """
    rows = [_row(record) for record in records if _choice(record, _ROW) is not None]
    if not rows:
        return
    print()
    print_rows(_HEADER, sorted(rows, key=lambda row: row[1]))
    print(
        "start of test: the first tokens of every lane, with the memory that the row was trained with; 4 x memory: the "
        "same with four times as much; -: the row has no memory whose length matters."
    )


def _row(record: JobRecord) -> list[str]:
    summary = _summary(Path(record.folder))
    metrics = summary.get("metrics", {})
    test, train = metrics.get("test", {}), metrics.get("train", {})
    beginnings = {
        values["mem_len"]: values for name, values in metrics.items() if name.startswith("test_beginning_memory_")
    }
    own = beginnings.get(test.get("mem_len"), {})
    longer = beginnings.get(4 * test["mem_len"], {}) if test.get("mem_len") else {}
    return [
        _choice(record, _ROW) or "",
        _data(record, summary),
        _number(summary.get("parameters")),
        _number(summary.get("tokens")),
        _score(test),
        _score(own),
        _score(longer),
        _number(train.get("tokens_per_second")),
        _number(own.get("tokens_per_second")),
    ]


def _data(record: JobRecord, summary: dict[str, Any]) -> str:
    """Name the corpus, and what must stand beside its scores."""
    read_as = " ".join(f"{name}={value}" for name, value in summary.get("read_as", {}).items())
    return " ".join(filter(None, (_choice(record, "data="), read_as)))


def _summary(folder: Path) -> dict[str, Any]:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _choice(record: JobRecord, key: str) -> str | None:
    return next((line.removeprefix(key) for line in record.overrides if line.startswith(key)), None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _score(values: dict[str, Any]) -> str:
    for unit in (PERPLEXITY, BITS_PER_CHARACTER, BITS_PER_BYTE):  # the vocabulary's own before what all have
        if values.get(unit) is not None:
            return f"{values[unit]:.4f} {unit}"
    return "-"
