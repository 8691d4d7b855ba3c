"""`run.json`: what a run is, beside its settings, from its first process to its last."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_xl.errors import naming_file

_NAME = "run.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What stays the same over all processes of a run.

    Attributes:
        run_id: of its one W&B run.
        choices: group -> choice, as the run was started.
        parent: of a branch: the run that it goes on from, its W&B id, and the step; None: no branch.
    """

    run_id: str
    choices: Mapping[str, str]
    parent: Mapping[str, Any] | None

    @classmethod
    def of_new_run(cls, choices: Mapping[str, str], *, parent: Mapping[str, Any] | None = None) -> RunIdentity:
        """Give a run an id that no other has."""
        return cls(run_id=secrets.token_hex(4), choices=dict(choices), parent=parent)

    def write(self, folder: Path) -> None:
        """Write `run.json` to the run folder, whole or not at all."""
        temporary = folder / f"{_NAME}.tmp"
        with naming_file(temporary):
            temporary.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, folder / _NAME)


def read_identity(folder: Path) -> RunIdentity | None:
    """Read a run folder's `run.json`; None where there is none that can be read."""
    try:
        content = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        run_id, choices, parent = content["run_id"], content["choices"], content["parent"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(run_id, str) or not isinstance(choices, dict) or not isinstance(parent, dict | None):
        return None
    return RunIdentity(run_id=run_id, choices=choices, parent=parent)
