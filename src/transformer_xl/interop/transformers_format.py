"""The format of `transformers`' TransfoXL: `config.json`, weights, and a vocabulary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_xl.errors import UserError
from transformer_xl.interop.native import (
    current_config,
    naming,
    read_safetensors,
    read_torch,
    with_weights,
    write_json,
    write_safetensors,
)
from transformer_xl.interop.reference import DERIVED, Reference, frequencies, is_published, read_config, write_config
from transformer_xl.interop.vocabularies import read_vocabulary, write_vocabulary
from transformer_xl.model.base import LanguageModel
from transformer_xl.model_config import TransformerConfig

MODEL_TYPE = "transfo-xl"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_PREFIX = "transformer."


def from_folder(folder: Path, description: Mapping[str, Any]) -> LanguageModel:
    """Make the model of a folder that `save_pretrained` wrote.

    Args:
        folder: with `model.safetensors`, or else `pytorch_model.bin`, and perhaps a vocabulary.
        description: what its `config.json` holds.

    Raises:
        UserError: the weights are missing, damaged, or do not fit, or ask for what this program does not have.
    """
    with naming(folder / "config.json"):
        vocab_size = _vocab_size(description)
        config = read_description(description)
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        sharded = " (weights in several files are not read)" if list(folder.glob("*.index.json")) else ""
        raise UserError(f"{folder} is not a whole model: it lacks {' and '.join(WEIGHTS)}{sharded}")
    tensors = read_safetensors(file) if file.suffix == ".safetensors" else read_torch(file)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{file} must hold a dictionary of tensors")
    with naming(file):
        weights = to_native(tensors, config, vocab_size=vocab_size)
    model = with_weights(file, config, vocab_size=vocab_size, weights=weights)
    model.vocabulary = read_vocabulary(folder, vocab_size=vocab_size)
    return model


def save_transformers(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write a folder that `transformers` 4.37's `TransfoXLLMHeadModel.from_pretrained` reads.

    Tied tensors are written once, as its own `save_pretrained` does. What only training knows
    (`variational_dropout`) is lost.

    Raises:
        UserError: the model is of a kind that the format does not have.
    """
    config = current_config(model)
    if not isinstance(config, TransformerConfig) or not is_published(config):
        raise UserError(f"the model is {config.label}, and the format of transformers has only the published network")
    values = write_config(config, vocab_size=model.vocab_size)
    tensors = reference(config, vocab_size=model.vocab_size).from_native(model.state_dict())
    dtype = next(iter(tensors.values())).dtype
    description = {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": MODEL_TYPE,
        "transformers_version": "4.37.2",
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vocab_size": model.vocab_size,
        "adaptive": True,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": values.pop("tie_weight"),
        **values,
    }
    target = Path(os.path.expanduser(folder))
    target.mkdir(parents=True, exist_ok=True)
    description["eos_token_id"] = write_vocabulary(model.vocabulary, target)
    tensors[_spell(DERIVED)] = frequencies(config.d_model)  # else it warns of a tensor that it makes itself
    write_safetensors(target / "model.safetensors", tensors, format="pt")
    write_json(target / "config.json", description)


def read_description(description: Mapping[str, Any]) -> TransformerConfig:
    """Turn a `config.json` of TransfoXL into our configuration.

    Raises:
        UserError: a value is missing, impossible, or asks for what this program does not have.
    """
    vocab_size = _vocab_size(description)
    tied = description.get("tie_word_embeddings", description.get("tie_weight", True))  # the latter before 4.0
    values = {**description, "tie_weight": tied}
    if "tie_projs" not in values and isinstance(values.get("cutoffs"), list):
        # as TransfoXLConfig makes it from the one flag
        share = bool(values.get("proj_share_all_but_first", True))
        values["tie_projs"] = [False, *[share] * len(values["cutoffs"])]
    return read_config(values, vocab_size=vocab_size)


def to_native(tensors: Mapping[str, Tensor], config: TransformerConfig, *, vocab_size: int) -> dict[str, Tensor]:
    """Turn weights (or their gradients) under TransfoXL's names into ours.

    Args:
        tensors: tied copies may be missing; where they are present they must be equal.
        config: ours.
        vocab_size: V.

    Raises:
        UserError: a tensor is missing, extra, of a wrong shape, or a tied copy differs.
    """
    return reference(config, vocab_size=vocab_size).to_native(tensors)


def reference(config: TransformerConfig, *, vocab_size: int) -> Reference:
    """Lay TransfoXL's tensors beside ours."""
    return Reference(config, vocab_size=vocab_size, spell=_spell, last_tail_first=False)


def _spell(name: str) -> str:
    return name if name.startswith("crit.") else _PREFIX + name


def _vocab_size(description: Mapping[str, Any]) -> int:
    vocab_size = description.get("vocab_size", description.get("n_token"))
    if type(vocab_size) is not int or vocab_size < 1:
        raise UserError(f"vocab_size is {vocab_size!r}, and must be a whole number above 0")
    return vocab_size
