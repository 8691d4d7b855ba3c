"""Our own formats: checkpoints, and folders of `config.json` and `model.safetensors`. No pickle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_xl.data.tokenizer import load_vocabulary, vocabulary_from_json
from transformer_xl.errors import UserError, first_line
from transformer_xl.interop.files import (
    naming,
    read_safetensors,
    read_torch,
    write_json,
    write_safetensors,
)
from transformer_xl.model.interface import LanguageModel
from transformer_xl.model.registry import make_model
from transformer_xl.model_checks import checked_model
from transformer_xl.model_config import ModelConfig

CHECKPOINT_FORMAT = 2
FORMAT = "transformer_xl"
_FORMAT_VERSION = 2
MODEL_PREFIX = "model."


def save_model(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write `config.json`, `model.safetensors` and, where the model has one, `vocabulary.json`."""
    target = Path(os.path.expanduser(folder))
    target.mkdir(parents=True, exist_ok=True)
    description = {
        "format": FORMAT,
        "format_version": _FORMAT_VERSION,
        "vocab_size": model.vocab_size,
        "model": dataclasses.asdict(current_config(model)),
    }
    write_safetensors(target / "model.safetensors", model.state_dict())
    if model.vocabulary is None:
        (target / "vocabulary.json").unlink(missing_ok=True)
    else:
        model.vocabulary.save(target / "vocabulary.json")
    write_json(target / "config.json", description)


def current_config(model: LanguageModel) -> ModelConfig:
    """Give what the model was made from, with the lengths that it has now."""
    return dataclasses.replace(
        model.config, mem_len=model.mem_len, clamp_len=model.clamp_len, same_length=model.same_length
    )


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint's plain containers and tensors; nothing in it can run code.

    Raises:
        UserError: it is not a checkpoint of ours, or damaged, or of another format.
    """
    contents = read_torch(path)
    if not is_checkpoint(contents):
        raise UserError(f"{path} is not a checkpoint of this program: it has no format_version")
    return checked_checkpoint(path, contents)


def is_checkpoint(contents: Any) -> bool:
    """Tell whether what a file held is a checkpoint of ours, of whatever format."""
    return isinstance(contents, dict) and "format_version" in contents


def checked_checkpoint(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Give a checkpoint back if it is whole and of this format.

    Raises:
        UserError: with both format numbers, or what is missing.
    """
    version = checkpoint["format_version"]
    if type(version) is not int or version != CHECKPOINT_FORMAT:
        written = " ".join(repr(version).split())[:100]
        raise UserError(f"{path} has checkpoint format {written}, and this version reads {CHECKPOINT_FORMAT}")
    missing = [name for name in ("config", "vocabulary", "state_dict") if not isinstance(checkpoint.get(name), dict)]
    if missing:
        raise UserError(f"{path} is not a whole checkpoint: it lacks {', '.join(missing)}")
    averaged = checkpoint.get("averaged", {"weights": {}})
    tables = {"state_dict": checkpoint["state_dict"]}
    tables["averaged"] = averaged.get("weights") if isinstance(averaged, dict) else None
    for name, table in tables.items():
        if not isinstance(table, dict) or not all(map(_is_weight, table, table.values())):
            raise UserError(f"{path} is damaged: its {name} is no table of names and tensors")
    return checkpoint


def _is_weight(name: object, tensor: object) -> bool:
    """Tell whether an entry is a name and a dense tensor in memory."""
    return (
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_complex()
    )


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Give the network's weights from a checkpoint, under its own names; their average over steps where it has one."""
    weights = {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(MODEL_PREFIX)
    }
    averages = checkpoint["averaged"]["weights"] if "averaged" in checkpoint else {}
    # an average is kept in at least float32, and evaluated in the weights' own type
    return {name: averages.get(name, weight).to(weight.dtype) for name, weight in weights.items()}


def from_checkpoint(path: Path, contents: dict[str, Any]) -> LanguageModel:
    """Make the model of a checkpoint.

    Args:
        path: for messages.
        contents: what the file held.

    Raises:
        UserError: it is not whole, of another format, or its parts do not fit.
    """
    checkpoint = checked_checkpoint(path, contents)
    with naming(path):
        vocabulary = vocabulary_from_json(checkpoint["vocabulary"])
        config = checked_model(checkpoint["config"].get("model"))
    model = with_weights(path, config, vocab_size=vocabulary.size, weights=model_weights(checkpoint))
    model.vocabulary = vocabulary
    return model


def from_folder(folder: Path, description: Mapping[str, Any]) -> LanguageModel:
    """Make the model of a folder that `save_model` wrote.

    Args:
        folder: with `model.safetensors` and perhaps `vocabulary.json`.
        description: what its `config.json` holds.

    Raises:
        UserError: it is of another format, damaged, or its parts do not fit.
    """
    if description.get("format_version") != _FORMAT_VERSION:
        raise UserError(
            f"{folder} has model format {description.get('format_version')}, and this version reads {_FORMAT_VERSION}"
        )
    vocab_size = description.get("vocab_size")
    if type(vocab_size) is not int or not 1 <= vocab_size < 1 << 31:
        raise UserError(f"{folder / 'config.json'} has vocab_size {vocab_size!r}, and must have a whole number above 0")
    with naming(folder / "config.json"):
        config = checked_model(description.get("model"))
    if not (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} is not a whole model: it lacks model.safetensors")
    weights = read_safetensors(folder / "model.safetensors")
    model = with_weights(folder, config, vocab_size=vocab_size, weights=weights)
    if (folder / "vocabulary.json").is_file():
        model.vocabulary = load_vocabulary(folder / "vocabulary.json")
        if model.vocabulary.size != vocab_size:
            raise UserError(
                f"{folder / 'vocabulary.json'} has {model.vocabulary.size} symbols, and config.json says {vocab_size}"
            )
    return model


def with_weights(source: Path, config: ModelConfig, *, vocab_size: int, weights: Mapping[str, Tensor]) -> LanguageModel:
    """Make a model in evaluation mode from its weights, without drawing others first.

    Args:
        source: where they come from, for messages.
        config: of the model.
        vocab_size: V.
        weights: under the network's own names; they become its parameters, not copies.

    Raises:
        UserError: they do not fit.
    """
    try:
        with torch.device("meta"):
            model = make_model(config, vocab_size=vocab_size)
        model.load_state_dict(dict(weights), assign=True)
    except (RuntimeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"the weights of {source} do not fit its configuration: {first_line(error)}") from error
    return model.eval()
