"""One way in for every model that can be read: whatever wrote it, wherever it lies."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from transformer_xl.errors import UserError
from transformer_xl.interop import native, published, transformers_format
from transformer_xl.interop.files import read_json_object, read_torch
from transformer_xl.interop.hub import fetch
from transformer_xl.model.interface import LanguageModel

_HUB_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[^@\s]+))?", re.ASCII)
_FORMER_NAMES = {"transfo-xl-wt103": "transfo-xl/transfo-xl-wt103"}
"""What the Hub called models before it had owners."""
_SINGLE_FILES = ("weights.pt", "checkpoint_best.pt", "model.pt")
"""Checkpoints that the programs read here leave in a folder, the better ones first."""
_FILES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors", ".json")


def load_model(path: str | os.PathLike[str], checkpoint: Literal["best", "last"] = "best") -> LanguageModel:
    """Load a model in evaluation mode, on the CPU; nothing in its files is run.

    Args:
        path: a run folder, a `.ckpt` file, a folder written by `save_model`, a folder of `transformers`' TransfoXL, a
            checkpoint of NVIDIA's, what the published code's weights were exported to, or a text `owner/name` or
            `owner/name@revision` that names such a folder on the Hub. What exists as a path is taken as one.
        checkpoint: which of a run folder's: `best` falls back to `last` where there is none.

    Returns:
        The model; its `vocabulary` is set where the source has one.

    Raises:
        UserError: nothing loadable is there.
    """
    source = Path(os.path.expanduser(path))
    if source.is_file():
        return _from_file(source)
    if source.exists():
        return _from_folder(source, checkpoint)
    path = _FORMER_NAMES.get(path, path) if isinstance(path, str) else path
    hub_name = _HUB_NAME.fullmatch(path) if isinstance(path, str) else None
    if hub_name is None or source.suffix in _FILES:
        raise UserError(_nothing(source))
    return _from_folder(fetch(hub_name["name"], hub_name["revision"]), checkpoint)


def may_be_on_hub(name: str) -> bool:
    """Say whether a text that is no path here may name a model on the Hub."""
    return name in _FORMER_NAMES or (_HUB_NAME.fullmatch(name) is not None and Path(name).suffix not in _FILES)


def _from_file(path: Path) -> LanguageModel:
    if path.suffix in (".safetensors", ".json"):
        raise UserError(f"{path} is a part of a model: give the folder that it lies in")
    contents = read_torch(path)
    if native.is_checkpoint(contents):
        return native.from_checkpoint(path, contents)
    if isinstance(contents, dict) and published.is_nvidia(contents):
        return published.from_nvidia(path, contents)
    if isinstance(contents, dict) and published.is_export(contents):
        return published.from_export(path, contents)
    raise UserError(
        f"{path} is not a checkpoint that this program knows: it has no format_version (its own), no model_config and "
        "model_state (NVIDIA's), and no state_dict of the published code"
    )


def _from_folder(folder: Path, checkpoint: str) -> LanguageModel:
    if (folder / "config.json").is_file():
        description = read_json_object(folder / "config.json")
        if description.get("format") == native.FORMAT:
            return native.from_folder(folder, description)
        if description.get("model_type") == transformers_format.MODEL_TYPE:
            return transformers_format.from_folder(folder, description)
        raise UserError(
            f"{folder / 'config.json'} has format {description.get('format')!r} and model_type "
            f"{description.get('model_type')!r}, and must have format {native.FORMAT!r} or model_type "
            f"{transformers_format.MODEL_TYPE!r}"
        )
    if (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} is not a whole model: it lacks config.json")
    if checkpoint not in ("best", "last"):
        raise UserError(f"checkpoint is {checkpoint!r}, and must be 'best' or 'last'")
    for name in ["best", "last"] if checkpoint == "best" else [checkpoint]:
        file = folder / "checkpoints" / f"{name}.ckpt"
        if file.is_file():
            return _from_file(file)
    for name in _SINGLE_FILES:
        if (folder / name).is_file():
            return _from_file(folder / name)
    raise UserError(_nothing(folder))


def _nothing(source: Path) -> str:
    return (
        f"{source} is not a model: it must be a run folder with checkpoints/last.ckpt, a checkpoint file, a folder "
        "with config.json and weights, or a name owner/name on the Hub"
    )
