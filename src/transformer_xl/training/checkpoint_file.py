"""How a checkpoint gets to disk and back: whole or not at all, and without code in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from torch import Tensor

from transformer_xl.errors import UserError, atomic_write

LAST = "last.ckpt"
_STEP = re.compile(r"step-(\d+)\.ckpt")


class CheckpointFile(CheckpointIO):
    """Writes to a temporary name and renames; reads plain containers and tensors only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, on disk before it has its name; its folder must be there.

        Raises:
            UserError: it cannot be written; what had its name is as it was.
        """
        target = Path(path)
        try:
            with atomic_write(target, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            reason = error if isinstance(error, OSError) else error.__context__
            if not isinstance(reason, OSError):  # torch wraps what a file raises, without saying it
                raise
            raise UserError(_cannot_be_written(target, reason, checkpoint)) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; nothing in it can run code."""
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """Give a checkpoint a second name, in the place of what had it; no bytes are copied where links are possible."""
    temporary = target.with_name(f".{target.name}.link.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # where both were names of one file already, replacing does nothing


def step_checkpoints(folder: Path) -> dict[int, Path]:
    """Find the `step-N.ckpt` of a folder, by step, the newest first."""
    found = {int(match[1]): path for path in folder.glob("step-*.ckpt") if (match := _STEP.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process had begun to write."""
    for path in folder.glob(".*.ckpt.*.tmp"):
        path.unlink(missing_ok=True)


def _cannot_be_written(target: Path, reason: OSError, checkpoint: dict[str, Any]) -> str:
    before = "the one before it is as it was" if target.is_file() else "there is none before it"
    size = sum({tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in _tensors(checkpoint)}.values())
    return (
        f"{target} cannot be written: {reason.strerror}; "
        f"a checkpoint of this run has {size / 1e6:,.1f} MB, and {before}"
    )


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _tensors(child)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for child in value:
            yield from _tensors(child)
