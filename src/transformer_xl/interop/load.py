"""The way in for every model that can be read, whatever wrote it, wherever it lies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from transformer_xl import hub
from transformer_xl.data.tokenizer import load_vocabulary
from transformer_xl.errors import UserError
from transformer_xl.interop import native, published
from transformer_xl.model.base import LanguageModel

_FILES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors", ".json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_VOCABULARIES = ("vocabulary.json", "vocab.pkl")


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
    if not source.exists() and may_be_on_hub(str(path)):
        source = _fetch(str(path))
    if (source / "config.json").is_file():
        return _from_folder(source)
    names = ["best.ckpt", "last.ckpt"] if checkpoint == "best" else [f"{checkpoint}.ckpt"]
    files = [source, *(source / "checkpoints" / name for name in names)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(
            f"{source} is not a model: it must be a run folder with checkpoints/last.ckpt, a checkpoint file, a folder "
            "with config.json and weights, or a name owner/name on the Hub"
        )
    contents = native.read_torch(file)
    keys = contents.keys() if isinstance(contents, dict) else ()
    if "model_config" in keys or ("state_dict" in keys and "attn_type" in keys):
        return published.from_checkpoint(file, contents)
    return native.from_checkpoint(file, contents)


def may_be_on_hub(name: str) -> bool:
    """Return whether a text that is no path here may name a model on the Hub."""
    return hub.NAME.fullmatch(name) is not None and Path(name).suffix not in _FILES


def _from_folder(folder: Path) -> LanguageModel:
    description = native.read_json(folder / "config.json")
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise UserError(f"{folder} is not a whole model: it lacks {' and '.join(_WEIGHTS)}")
    tensors = native.read_tensors(weights)
    if description.get("format") == native.FORMAT:
        model = native.from_folder(folder, description, tensors)
    elif description.get("model_type") == published.MODEL_TYPE:
        model = published.from_tensors(weights, description, tensors, last_tail_first=False)
    else:
        raise UserError(
            f"{folder / 'config.json'} has model_type {description.get('model_type')!r}, and must have "
            f"{published.MODEL_TYPE!r}, or be written by save_model"
        )
    for name, read in zip(_VOCABULARIES, (load_vocabulary, published.read_vocabulary), strict=True):
        if model.vocabulary is None and (folder / name).is_file():
            model.vocabulary = read(folder / name)
    if model.vocabulary is not None and model.vocabulary.size != model.vocab_size:
        raise UserError(
            f"the vocabulary of {folder} has {model.vocabulary.size} symbols, and its model has {model.vocab_size}"
        )
    return model


def _fetch(name: str) -> Path:
    """Return the folder of the Hub's cache that holds a model's configuration, weights and vocabulary."""
    first, second = _WEIGHTS
    folder = hub.fetch(name, ["config.json", first, *_VOCABULARIES])
    return folder if (folder / first).exists() else hub.fetch(name, ["config.json", second, *_VOCABULARIES])
