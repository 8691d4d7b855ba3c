"""Files read without running anything that is in them, and written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transformer_xl.errors import DamagedError, UserError, first_line
from transformer_xl.interop.whole_modules import explain_unreadable, holds_code
from transformer_xl.sealing import SEALED, check_seal


class Record:
    """Stands for a foreign class whose objects are only attributes; its own code is never imported."""


_RECORDS: list[Any] = [
    (Record, "argparse.Namespace"),  # NVIDIA's `args`
    (Record, "utils.vocabulary.Vocab"),  # NVIDIA's `vocab`
]


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UserError: the file is missing, damaged, or holds something else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} must be a JSON object")
    return value


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not a whole model: it lacks {path.name}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        UserError: it is damaged.
    """
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


def read_torch(path: Path) -> Any:
    """Read what `torch.save` wrote: plain containers, tensors, and foreign records as `Record`; no code runs.

    Raises:
        DamagedError: it is empty, cut off, or has other bytes than were written.
        UserError: it holds code, or something else than `torch.save` writes.
    """
    is_sealed = check_seal(path)
    try:
        with torch.serialization.safe_globals(_RECORDS):
            contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the restricted unpickler raises whatever a damaged stream makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        kind = UserError if is_sealed or holds_code(error) else DamagedError
        raise kind(explain_unreadable(path, error)) from error
    if isinstance(contents, dict) and SEALED in contents and not is_sealed:
        raise DamagedError(f"{path} is damaged: its end is missing")
    return contents


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write tensors to a temporary name, then rename it."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with _renamed(path) as temporary:
        safetensors.torch.save_file(plain, temporary, metadata=metadata or None)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file under a temporary name, then rename it."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    with _renamed(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(source: Path | str) -> Iterator[None]:
    """Put the name of a file before a mistake found in it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
