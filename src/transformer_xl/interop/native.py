"""Our own formats: run folders, checkpoints, and folders of `config.json` and `model.safetensors`. No pickle."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transformer_xl.config import ModelConfig
from transformer_xl.data.tokenizer import load_vocabulary, vocabulary_from_json
from transformer_xl.errors import UserError
from transformer_xl.model.interface import LanguageModel
from transformer_xl.model.registry import make_model
from transformer_xl.parsing import parse

CHECKPOINT_FORMAT = 1
_FORMAT = "transformer_xl"
_FORMAT_VERSION = 1
MODEL_PREFIX = "model."


def load_model(path: str | os.PathLike[str], checkpoint: Literal["best", "last"] = "best") -> LanguageModel:
    """Load a model in evaluation mode, on the CPU.

    Args:
        path: a run folder, a `.ckpt` file, or a folder written by `save_model`.
        checkpoint: which of a run folder's: `best` falls back to `last` where there is none.

    Returns:
        The model; its `vocabulary` is set where the source has one.

    Raises:
        UserError: nothing loadable is there.
    """
    source = Path(path).expanduser()
    if source.is_file():
        return _from_checkpoint(source)
    if (source / "model.safetensors").is_file():
        return _from_folder(source)
    names = ["best", "last"] if checkpoint == "best" else [checkpoint]
    for name in names:
        file = source / "checkpoints" / f"{name}.ckpt"
        if file.is_file():
            return _from_checkpoint(file)
    raise UserError(
        f"{source} is not a model: it must be a run folder with checkpoints/last.ckpt, a .ckpt file, or a folder with "
        "config.json and model.safetensors"
    )


def save_model(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write `config.json`, `model.safetensors` and, where the model has one, `vocabulary.json`."""
    target = Path(folder).expanduser()
    target.mkdir(parents=True, exist_ok=True)
    description = {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "vocab_size": model.vocab_size,
        "model": {
            **dataclasses.asdict(model.config),
            "mem_len": model.mem_len,
            "clamp_len": model.clamp_len,
            "same_length": model.same_length,
        },
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    temporary = target / "model.safetensors.tmp"
    safetensors.torch.save_file(weights, temporary)
    os.replace(temporary, target / "model.safetensors")
    if model.vocabulary is None:
        (target / "vocabulary.json").unlink(missing_ok=True)
    else:
        model.vocabulary.save(target / "vocabulary.json")
    temporary = target / "config.json.tmp"
    temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, target / "config.json")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint's plain containers and tensors; nothing in it can run code.

    Raises:
        UserError: it is not a checkpoint of ours, or damaged, or of a newer format.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the restricted unpickler raises whatever a damaged stream makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise UserError(f"{path} is damaged, or no checkpoint of plain tensors and containers") from error
    if not isinstance(checkpoint, dict) or "format_version" not in checkpoint:
        raise UserError(f"{path} is not a checkpoint of this program: it has no format_version")
    if checkpoint["format_version"] != CHECKPOINT_FORMAT:
        raise UserError(
            f"{path} has checkpoint format {checkpoint['format_version']}, and this version reads {CHECKPOINT_FORMAT}"
        )
    missing = [name for name in ("config", "vocabulary", "state_dict") if not isinstance(checkpoint.get(name), dict)]
    if missing:
        raise UserError(f"{path} is not a whole checkpoint: it lacks {', '.join(missing)}")
    return checkpoint


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Give the network's weights from a checkpoint, under the network's own names."""
    return {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(MODEL_PREFIX)
    }


def _from_checkpoint(path: Path) -> LanguageModel:
    checkpoint = read_checkpoint(path)
    with _naming(path):
        vocabulary = vocabulary_from_json(checkpoint["vocabulary"])
        config = parse(ModelConfig, checkpoint["config"].get("model"), "model")
    model = _with_weights(path, config, vocab_size=vocabulary.size, weights=model_weights(checkpoint))
    model.vocabulary = vocabulary
    return model


def _from_folder(folder: Path) -> LanguageModel:
    try:
        description = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = safetensors.torch.load_file(folder / "model.safetensors")
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not a whole model: it lacks {Path(error.filename).name}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder} holds a damaged model: {_first_line(error)}") from error
    if not isinstance(description, dict) or description.get("format") != _FORMAT:
        raise UserError(f"{folder / 'config.json'} does not describe a model of this program")
    if description.get("format_version") != _FORMAT_VERSION:
        raise UserError(
            f"{folder} has model format {description.get('format_version')}, and this version reads {_FORMAT_VERSION}"
        )
    vocab_size = description.get("vocab_size")
    if type(vocab_size) is not int or vocab_size < 1:
        raise UserError(f"{folder / 'config.json'} has vocab_size {vocab_size!r}, and must have a whole number above 0")
    with _naming(folder / "config.json"):
        config = parse(ModelConfig, description.get("model"), "model")
    model = _with_weights(folder, config, vocab_size=vocab_size, weights=weights)
    if (folder / "vocabulary.json").is_file():
        model.vocabulary = load_vocabulary(folder / "vocabulary.json")
        if model.vocabulary.size != vocab_size:
            raise UserError(
                f"{folder / 'vocabulary.json'} has {model.vocabulary.size} symbols, and config.json says {vocab_size}"
            )
    return model


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name before a mistake found in it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _with_weights(
    source: Path, config: ModelConfig, *, vocab_size: int, weights: Mapping[str, Tensor]
) -> LanguageModel:
    with torch.device("meta"):
        model = make_model(config, vocab_size=vocab_size)
    try:
        model.load_state_dict(dict(weights), assign=True)
    except RuntimeError as error:
        raise UserError(f"the weights of {source} do not fit its configuration: {_first_line(error)}") from error
    return model.eval()


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
