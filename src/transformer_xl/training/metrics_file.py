"""`metrics.jsonl`: a line a figure, only ever appended to, and cut when a run goes back to a checkpoint."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from transformer_xl.errors import naming_file
from transformer_xl.training import names

_LONGEST_LINE = 65_536  # far above any of ours: what is longer is damage, and need not be held at once


class MetricsFile:
    """The file of one run; only its main process may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, *, step: int, tokens: int, values: Mapping[str, float | None]) -> None:
        """Write values of one step; what is not a finite number is null."""
        with naming_file(self._path), self._path.open("a", encoding="utf-8") as file:
            for name, value in values.items():
                finite = value if value is not None and math.isfinite(value) else None
                file.write(json.dumps({"step": step, "tokens": tokens, "name": name, "value": finite}) + "\n")

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        with naming_file(self._path), self._path.open("ab") as file:
            os.fsync(file.fileno())

    def cut_after(self, step: int, *, validated: bool) -> None:
        """Drop every line that is later than the end of `step`, or its validation unless `validated`, or torn.

        The final test's lines go too, whatever their step: no checkpoint is later than they are.
        """
        if not self._path.exists():
            return
        temporary = self._path.with_name(self._path.name + ".tmp")
        with self._path.open("rb") as old, temporary.open("wb") as new:
            while line := old.readline(_LONGEST_LINE):
                if _belongs_to(line, step, validated=validated):
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, self._path)


def _belongs_to(line: bytes, step: int, *, validated: bool) -> bool:
    try:
        entry = json.loads(line.decode("utf-8"))
        is_test = entry["name"].startswith(f"{names.TEST}/")
        is_late = entry["step"] == step and entry["name"].startswith(f"{names.VALIDATION}/") and not validated
        is_whole = line.endswith(b"\n") and {"tokens", "value"} <= entry.keys()
        return is_whole and entry["step"] <= step and not is_test and not is_late
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False  # torn or damaged
