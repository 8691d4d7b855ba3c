"""Our own formats: checkpoints, and folders of `config.json` and `model.safetensors`.

Files are read without running anything that is in them, and written whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transformer_xl.data.tokenizer import load_vocabulary, tokenizer_from_json
from transformer_xl.errors import DamagedError, UserError, atomic_write, first_line
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model_config import ModelConfig, parse_model
from transformer_xl.settings import plain, replace

CHECKPOINT_FORMAT = 3
_READABLE_FORMATS = (2, 3)
"""Of which a model can be loaded; runs of 2, before the redesign, cannot go on."""
FORMAT = "transformer_xl"
_FORMAT_VERSION = 2
MODEL_PREFIX = "model."
EXPORT = """\
import os, sys, torch; sys.path += [".", "utils"]; os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
model = torch.load("model.pt", map_location="cpu"); attn = model.layers[0].dec_attn
kept = {k: getattr(model, k) for k in ("mem_len", "ext_len", "clamp_len", "same_length", "attn_type")}
kept.update(pre_lnorm=attn.pre_lnorm, dropout=model.drop.p, dropatt=attn.dropatt.p, cutoffs=model.crit.cutoffs[:-1])
torch.save(dict(kept, state_dict=model.state_dict()), "weights.pt")
"""
"""What a person runs where the published code can be imported: weights, and what weights do not tell."""


class Record:
    """Stands for a foreign class whose objects are only attributes; its own code is never imported."""


_RECORDS: list[Any] = [
    (Record, "argparse.Namespace"),  # NVIDIA's `args`
    (Record, "utils.vocabulary.Vocab"),  # NVIDIA's `vocab`
]
_CODE = re.compile(r"GLOBAL ([\w.]+)")
"""How torch's restricted unpickler names the class or function that it refused."""


def save_model(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write `config.json`, `model.safetensors` and, where the model has one, `vocabulary.json`."""
    target = Path(os.path.expanduser(folder))
    target.mkdir(parents=True, exist_ok=True)
    description = {
        "format": FORMAT,
        "format_version": _FORMAT_VERSION,
        "vocab_size": model.vocab_size,
        "model": plain(current_config(model)),
    }
    write_safetensors(target / "model.safetensors", model.state_dict())
    if model.vocabulary is None:
        (target / "vocabulary.json").unlink(missing_ok=True)
    else:
        model.vocabulary.save(target / "vocabulary.json")
    write_json(target / "config.json", description)


def current_config(model: LanguageModel) -> ModelConfig:
    """Return what the model was made from, with the lengths that it has now."""
    return replace(model.config, mem_len=model.mem_len, clamp_len=model.clamp_len, same_length=model.same_length)


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
    """Return whether what a file held is a checkpoint of ours, of whatever format."""
    return isinstance(contents, dict) and "format_version" in contents


def checked_checkpoint(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint if it is whole and of this format.

    Raises:
        UserError: with both format numbers, or what is missing.
    """
    version = checkpoint["format_version"]
    if type(version) is not int or version not in _READABLE_FORMATS:
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
    return (
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_complex()
    )


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the network's weights from a checkpoint under its own names; their average over steps where it has one."""
    weights = {
        name.removeprefix(MODEL_PREFIX): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(MODEL_PREFIX)
    }
    averages = checkpoint["averaged"]["weights"] if "averaged" in checkpoint else {}
    # an average is kept in at least float32, and evaluated in the weights' own type
    return {name: averages.get(name, weight).to(weight.dtype) for name, weight in weights.items()}


def from_checkpoint(path: Path, contents: dict[str, Any]) -> LanguageModel:
    """Make the model of a checkpoint that was read from `path`.

    Raises:
        UserError: it is not whole, of another format, or its parts do not fit.
    """
    checkpoint = checked_checkpoint(path, contents)
    with naming(path):
        vocabulary = tokenizer_from_json(checkpoint["vocabulary"])
        config = parse_model(checkpoint["config"].get("model"))
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
        config = parse_model(description.get("model"))
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
    """Make a model in evaluation mode from its weights, which become its parameters, without drawing others first.

    Args:
        source: where they come from, for messages.
        config: of the model.
        vocab_size: V.
        weights: under the network's own names.

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


def read_json(path: Path) -> Any:
    """Read a JSON file; `UserError` where it is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not a whole model: it lacks {path.name}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file; `UserError` where it is damaged."""
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
    _refuse_damaged(path)
    try:
        with torch.serialization.safe_globals(_RECORDS):
            contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the restricted unpickler raises whatever a damaged stream makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        refused = _CODE.search(str(error))
        if refused is not None:
            raise UserError(_holds_code(path, refused[1])) from error
        raise DamagedError(f"{path} is damaged, or no checkpoint of plain tensors and containers") from error
    return contents


def _refuse_damaged(path: Path) -> None:
    """Compare an archive with its checksums, since torch notices no changed bit; older files have none."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # whatever a damaged header makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise DamagedError(f"{path} is damaged: {first_line(error)}") from error
    if damaged is not None:
        raise DamagedError(f"{path} is damaged: {damaged} does not hold the bytes that were written")


def _holds_code(path: Path, name: str) -> str:
    refusal = f"{path} holds {name}, which is code, and this program runs no code from a file"
    if name.rpartition(".")[2] != "MemTransformerLM":
        return refusal
    lines = EXPORT.replace('"model.pt"', f'"{path.name}"')
    return (
        f"{refusal}; run these five lines in the environment and folder of the code that wrote it, and load "
        f"weights.pt:\n\n{lines}"
    )


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write tensors to a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path, "wb") as file:
        safetensors.torch.save_file(plain, file.name, metadata=metadata or None)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=2) + "\n")


@contextmanager
def naming(source: Path | str) -> Iterator[None]:
    """Put the name of a file before a mistake found in it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
