"""One way in for every model that can be read: whatever wrote it, wherever it lies."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from transformer_xl.errors import UserError
from transformer_xl.hub import Repository
from transformer_xl.interop import native, published, transformers_format
from transformer_xl.interop.native import read_json, read_torch
from transformer_xl.interop.vocabularies import FILES as VOCABULARIES
from transformer_xl.model.base import LanguageModel

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
    return _from_folder(_fetch(hub_name["name"], hub_name["revision"]), checkpoint)


def may_be_on_hub(name: str) -> bool:
    """Return whether a text that is no path here may name a model on the Hub."""
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
        return _described(folder)
    if (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} is not a whole model: it lacks config.json")
    if checkpoint not in ("best", "last"):
        raise UserError(f"checkpoint is {checkpoint!r}, and must be 'best' or 'last'")
    names = ["best.ckpt", "last.ckpt"] if checkpoint == "best" else [f"{checkpoint}.ckpt"]
    for file in [*(folder / "checkpoints" / name for name in names), *(folder / name for name in _SINGLE_FILES)]:
        if file.is_file():
            return _from_file(file)
    raise UserError(_nothing(folder))


def _described(folder: Path) -> LanguageModel:
    description = read_json(folder / "config.json")
    kind = description if isinstance(description, dict) else {}
    if kind.get("format") == native.FORMAT:
        return native.from_folder(folder, description)
    if kind.get("model_type") == transformers_format.MODEL_TYPE:
        return transformers_format.from_folder(folder, description)
    raise UserError(
        f"{folder / 'config.json'} has format {kind.get('format')!r} and model_type {kind.get('model_type')!r}, "
        f"and must have format {native.FORMAT!r} or model_type {transformers_format.MODEL_TYPE!r}"
    )


def _fetch(name: str, revision: str | None) -> Path:
    """Return the folder of the Hub's cache that holds a model's configuration, weights and vocabulary."""
    repository = Repository(name, revision, probe="config.json")
    config = repository.find("config.json")
    if config is None:
        raise repository.mistake("it has no config.json")
    weights = next(filter(None, map(repository.find, transformers_format.WEIGHTS)), None)
    if weights is None:
        raise repository.mistake(f"it has neither {' nor '.join(transformers_format.WEIGHTS)}")
    vocabulary = next(filter(None, map(repository.find, VOCABULARIES)), None)
    if any(file is not None and file.parent != config.parent for file in (weights, vocabulary)):
        raise repository.mistake("it changed there while it was fetched, so load it again")
    return config.parent


def _nothing(source: Path) -> str:
    return (
        f"{source} is not a model: it must be a run folder with checkpoints/last.ckpt, a checkpoint file, a folder "
        "with config.json and weights, or a name owner/name on the Hub"
    )
