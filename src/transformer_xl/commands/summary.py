"""`summary.json`: how a run ended, and its figures with the settings that they were measured at."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformer_xl.config import EvalConfig
from transformer_xl.errors import naming_file
from transformer_xl.scores import Score, Unit
from transformer_xl.settings import plain

_PACKAGES = ("transformer-xl-lightning", "torch", "lightning", "hydra-core", "omegaconf", "wandb", "torchmetrics")


def metric(
    score: Score, *, unit: Unit, split: str, checkpoint: str, lengths: EvalConfig, read_as: Mapping[str, str]
) -> dict[str, Any]:
    """Put a score beside everything that it depends on; bits a byte too, wherever the data is text."""
    return {
        "loss": _finite(score.loss),
        **{name: _finite(value) for name, value in unit.figures(score.loss).items()},
        "tokens": score.tokens,
        "split": split,
        "checkpoint": checkpoint,
        **plain(lengths),
        **read_as,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN and no infinity


@dataclasses.dataclass(kw_only=True)
class Summary:
    """What `summary.json` says; filled as the run goes."""

    command: list[str]
    parent: Mapping[str, Any] | None
    status: str = "failed"
    exit_code: int = 1
    objective: float | None = None
    step: int = 0
    tokens: int = 0
    parameters: int = 0
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    data_checksum: str | None = None
    read_as: dict[str, str] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write `summary.json` to the run folder, whole or not at all."""
        versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
        content = {**dataclasses.asdict(self), "versions": versions}
        temporary = folder / "summary.json.tmp"
        with naming_file(temporary):
            temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, folder / "summary.json")


def was_finished(folder: Path, *, step: int | None = None) -> bool:
    """Say whether the run in a folder ended with its report, at that step: it may have been extended since."""
    summary = _read(folder)
    return summary.get("status") == "finished" and step in (None, summary.get("step"))


def step_at_end(folder: Path) -> int:
    """Give the step at which a process of the run last ended in order, not killed; 0: none has."""
    step = _read(folder).get("step")
    return step if isinstance(step, int) else 0


def exit_code_at_end(folder: Path) -> int:
    """Give the exit code of the process of the run that last ended in order; 1: none has."""
    code = _read(folder).get("exit_code")
    return code if isinstance(code, int) else 1


def data_checksum(folder: Path) -> str | None:
    """Give the checksum of the text that the run read; None where no process of it has ended in order."""
    checksum = _read(folder).get("data_checksum")
    return checksum if isinstance(checksum, str) else None


def _read(folder: Path) -> dict[str, Any]:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}
