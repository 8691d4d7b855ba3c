"""`evaluation.json`: every score that was measured of a run, with all that it depends on."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformer_xl.data.locking import only_one
from transformer_xl.errors import UserError, naming_file

NAME = "evaluation.json"
_FORMAT = 1


def add_record(folder: Path, *, command: Sequence[str], pictures: Path, results: Sequence[Mapping[str, Any]]) -> Path:
    """Add what a command measured to the folder's `evaluation.json`, whole or not at all.

    Args:
        folder: of the run; it is made if need be, and one process at a time writes into it.
        command: the arguments as typed.
        pictures: folder of its pictures.
        results: plain containers.

    Raises:
        UserError: a file of this name is none of this program's.
    """
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "pictures": str(pictures),
        "results": list(results),
    }
    path = folder / NAME
    waiting = f"waiting for another process, which writes {path}"
    with only_one(folder / f".{NAME}.lock", announce=_tell, waiting=waiting):
        evaluations = [*(_read(path) if path.exists() else []), entry]
        temporary = folder / f"{NAME}.{os.getpid()}.tmp"
        with naming_file(temporary):
            content = {"format": _FORMAT, "evaluations": evaluations}
            temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    return path


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check_record(folder: Path) -> None:
    """Refuse, before anything is measured, a folder whose record could not be added to.

    Raises:
        UserError: a file of this name is none of this program's.
    """
    if (folder / NAME).exists():
        _read(folder / NAME)


def _read(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if (
        not isinstance(content, dict)
        or content.get("format") != _FORMAT
        or not isinstance(content.get("evaluations"), list)
    ):
        raise UserError(f"{path} is damaged, or was not written by this program: move it away")
    evaluations: list[Any] = content["evaluations"]
    return evaluations
