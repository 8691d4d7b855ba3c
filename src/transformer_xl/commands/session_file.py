"""A session between two commands: what a model has read, in a file of tensors."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from transformer_xl.errors import UserError, first_line
from transformer_xl.interop.native import read_safetensors, write_safetensors
from transformer_xl.model.base import LanguageModel

_FORMAT = "transformer_xl.session"
_FORMAT_VERSION = "1"


class SessionFile:
    """A safetensors file, with the marks of the model and the settings that it belongs to.

    Keys and values say nothing to other weights, lengths or another precision, so that they are refused.
    """

    def __init__(self, path: Path, *, model: LanguageModel, settings: Mapping[str, object]) -> None:
        """Take what a session must have been left by.

        Args:
            path: of the file, which need not be there.
            model: as it is placed.
            settings: by their names, as they are given on the command line.
        """
        self.path = path
        self._marks = {
            "format": _FORMAT,
            "version": _FORMAT_VERSION,
            "weights": hash_of_weights(model),
            "vocabulary": "none" if model.vocabulary is None else model.vocabulary.hash(),
        }
        self._settings = {name: _written(value) for name, value in settings.items()}

    def read(self) -> dict[str, Tensor] | None:
        """Give what the file holds; None: there is none.

        Raises:
            UserError: it is damaged, or another model or other settings have left it.
        """
        if not self.path.exists():
            return None
        found = self._read_marks()
        if found.get("format") != _FORMAT:
            raise UserError(f"state={self.path} is no session of this program: another file must be named")
        for name, right in self._marks.items():
            if found.get(name) != right:
                raise UserError(
                    f"state={self.path} was left by a model of other {name} than this one: give the run that it is "
                    "from, or another file"
                    if name != "version"
                    else f"state={self.path} has format {found.get(name)}, and this version reads {right}"
                )
        different = [name for name, value in self._settings.items() if found.get(name) != value]
        if different:
            was = ", ".join(f"{name}={found.get(name)}" for name in different)
            now = ", ".join(f"{name}={self._settings[name]}" for name in different)
            raise UserError(f"state={self.path} was left with {was}, and this command reads with {now}: give the same")
        return read_safetensors(self.path)

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write a session, whole or not at all.

        Raises:
            UserError: the disk is full, say.
        """
        try:
            write_safetensors(self.path, tensors, **self._marks, **self._settings)
        except (OSError, safetensors.SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else first_line(error)
            raise UserError(f"state={self.path} cannot be written: {reason}") from error

    def _read_marks(self) -> dict[str, str]:
        try:
            with safetensors.safe_open(self.path, framework="pt") as file:
                marks: dict[str, str] = file.metadata() or {}
        except safetensors.SafetensorError as error:
            raise UserError(f"state={self.path} is damaged, or no session: {error}") from error
        return marks


def hash_of_weights(model: LanguageModel) -> str:
    """Return the sha256, in hex, of a model's settings, and of its weights as they are."""
    digest = hashlib.sha256(repr(dataclasses.asdict(model.config)).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _written(value: object) -> str:
    return "null" if value is None else str(value).lower()
