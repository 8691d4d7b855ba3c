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
    unfinished = folder / "checkpoints.tmp"  # killed while it is copied, the branch can be begun again
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    best = checkpoint.with_name("best.ckpt")
    if best.is_file():
        shutil.copyfile(best, unfinished / "best.ckpt")
    shutil.copyfile(checkpoint, unfinished / "last.ckpt")
    metrics = parent / "metrics.jsonl"
    if metrics.is_file():
        shutil.copyfile(metrics, folder / "metrics.jsonl")
    os.replace(unfinished, folder / "checkpoints")
