"""Making a branch: what another run has left, up to its checkpoint, becomes this run's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def copy_run(parent: Path, folder: Path, *, checkpoint: Path) -> None:
    """Copy a run's checkpoints and figures into a new run's folder; the parent's files stay as they are.

    Args:
        parent: folder of the run to branch from.
        folder: of the branch.
        checkpoint: of the parent, which the branch goes on from; it becomes the branch's `last.ckpt`.
    """
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    best = checkpoint.with_name("best.ckpt")
    if best.is_file():
        _copy(best, checkpoints / "best.ckpt")
    metrics = parent / "metrics.jsonl"
    if metrics.is_file():
        _copy(metrics, folder / "metrics.jsonl")
    _copy(checkpoint, checkpoints / "last.ckpt")


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)
