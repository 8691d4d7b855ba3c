"""Model files of our own: checkpoints, and folders of `config.json` and `model.safetensors`.

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

from transformer_xl.data.tokenizer import Tokenizer, tokenizer_from_json
from transformer_xl.errors import DamagedError, UserError, atomic_write, first_line
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model_config import ModelConfig
from transformer_xl.settings import parse_kind, plain, replace

CHECKPOINT_FORMAT = 3
_READABLE_FORMATS = (2, 3)
"""Of which a model can be loaded; a run of format 2 cannot go on."""
FORMAT = "transformer_xl"
_FORMAT_VERSION = 2
MODEL_PREFIX = "model."
EXPORT = """\
import os, sys, torch; sys.path += [".", "utils"]; os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
model = torch.load("model.pt", map_location="cpu"); emb, crit, layer = model.word_emb, model.crit, model.layers[0]
names = "n_token n_layer n_head d_model d_head d_embed mem_len ext_len clamp_len same_length attn_type".split()
kept = dict(
    d_inner=layer.pos_ff.d_inner, div_val=emb.div_val, cutoffs=crit.cutoffs[:-1], pre_lnorm=layer.dec_attn.pre_lnorm,
    dropout=model.drop.p, dropatt=layer.dec_attn.dropatt.p, tie_projs=[any(p is q for q in emb.emb_projs)
    for p in crit.out_projs], tie_weight=crit.out_layers[0].weight is emb.emb_layers[0].weight)
kept.update({name: getattr(model, name) for name in names}, state_dict=model.state_dict())
torch.save(kept, "weights.pt")
"""
"""What a person runs where the published code can be imported."""


class Record:
    """Stands for a foreign class whose objects are only attributes; its own code is never imported."""


_RECORDS: list[Any] = [(Record, "argparse.Namespace"), (Record, "utils.vocabulary.Vocab")]
"""Of NVIDIA's checkpoints: `args` and `vocab`."""
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
    write_tensors(target / "model.safetensors", model.state_dict())
    write_vocabulary(target, model.vocabulary)
    write_json(target / "config.json", description)


def current_config(model: LanguageModel) -> ModelConfig:
    """Return what the model was made from, with the lengths that it has now."""
    return replace(model.config, mem_len=model.mem_len, clamp_len=model.clamp_len, same_length=model.same_length)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint's plain containers and tensors; nothing in it can run code.

    Raises:
        UserError: it is not a checkpoint of ours, or damaged, or of another format.
    """
    return _checked(path, read_torch(path))


def _checked(path: Path, contents: Any) -> dict[str, Any]:
    checkpoint: dict[str, Any] = contents if isinstance(contents, dict) else {}
    version = checkpoint.get("format_version")
    if version not in _READABLE_FORMATS:
        raise UserError(f"{path} has checkpoint format {version!r}, and this version reads 2 and 3")
    missing = [name for name in ("config", "vocabulary", "state_dict") if not isinstance(checkpoint.get(name), dict)]
    if missing:
        raise UserError(f"{path} is not a whole checkpoint: it lacks {', '.join(missing)}")
    return checkpoint


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


_OLDER_TRANSFORMERS: dict[str, tuple[str, str | None]] = {
    "transformer_xl": ("relative", None),
    "shaw": ("shaw", "max_distance"),
    "vaswani": ("sinusoid", None),
    "al_rfou": ("learned", "n_positions"),
    "transformer_rope": ("rotary", "rope_base"),
}
"""Kinds of networks before there was one transformer: its position encoding, and that one's own setting."""


def parse_saved_model(value: Any) -> ModelConfig:
    """Return the settings of a network as a file has them, which may be older than there was one transformer."""
    if isinstance(value, Mapping) and value.get("kind") in _OLDER_TRANSFORMERS:
        (position, own), is_rotary = _OLDER_TRANSFORMERS[value["kind"]], value["kind"] == "transformer_rope"
        value = {
            "pre_norm": is_rotary,
            "norm": "rms" if is_rotary else "layer",
            "feed_forward": "swiglu" if is_rotary else "relu",
            "untie_r": False,
            "attention": "auto",
            "position": {"kind": position} | ({own: value.get(own)} if own else {}),
            **{name: setting for name, setting in value.items() if name != own},
            "kind": "transformer",
        }
    config: ModelConfig = parse_kind("model", value)
    return config


def from_checkpoint(path: Path, contents: Any) -> LanguageModel:
    """Return the model of a checkpoint that was read from `path`.

    Raises:
        UserError: it is not whole, of another format, or its parts do not fit.
    """
    checkpoint = _checked(path, contents)
    with naming(path):
        vocabulary = tokenizer_from_json(checkpoint["vocabulary"])
        config = parse_saved_model(checkpoint["config"].get("model"))
    model = with_weights(path, config, vocab_size=vocabulary.size, weights=model_weights(checkpoint))
    model.vocabulary = vocabulary
    return model


def from_folder(folder: Path, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LanguageModel:
    """Return the model of a folder that `save_model` wrote, whose `config.json` and weights were read."""
    version = description.get("format_version")
    if version != _FORMAT_VERSION:
        raise UserError(f"{folder} has format_version {version!r}, and this version reads {_FORMAT_VERSION}")
    with naming(folder / "config.json"):
        config = parse_saved_model(description.get("model"))
    return with_weights(folder, config, vocab_size=description.get("vocab_size"), weights=tensors)


def with_weights(source: Path, config: ModelConfig, *, vocab_size: Any, weights: Mapping[str, Tensor]) -> LanguageModel:
    """Return a model in evaluation mode whose parameters are the given weights, without drawing others first.

    Args:
        source: where they come from, for messages.
        config: of the model.
        vocab_size: V.
        weights: under the network's own names.

    Raises:
        UserError: they do not fit.
    """
    if getattr(config, "attention", None) == "fused" and not torch.cuda.is_available():
        config = replace(config, attention="auto")  # the same function: it was trained on another machine
    try:
        with torch.device("meta"):
            model = make_model(config, vocab_size=vocab_size)
        model.load_state_dict(dict(weights), assign=True)
    except (RuntimeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"the weights of {source} do not fit its configuration: {first_line(error)}") from error
    return model.eval()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; `UserError` where the file is damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object")
    return value


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file of safetensors, or of `torch.save`; `UserError` where it is damaged."""
    if path.suffix != ".safetensors":
        tensors: dict[str, Tensor] = read_torch(path)
        return tensors
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


def read_torch(path: Path) -> Any:
    """Read what `torch.save` wrote: plain containers, tensors, and foreign records as `Record`; no code runs.

    Raises:
        DamagedError: it is empty, cut off, or has other bytes than were written.
        UserError: it holds code.
    """
    damaged = None
    try:
        if zipfile.is_zipfile(path):  # its checksums are compared, since torch notices no changed bit
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        if damaged is None:
            with torch.serialization.safe_globals(_RECORDS):
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the restricted unpickler raises whatever a damaged stream makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if refused := _CODE.search(str(error)):
            raise UserError(_holds_code(path, refused[1])) from error
        raise DamagedError(f"{path} is damaged, or no checkpoint of plain tensors and containers") from error
    raise DamagedError(f"{path} is damaged: {damaged} does not hold the bytes that were written")


def _holds_code(path: Path, name: str) -> str:
    refusal = f"{path} holds {name}, which is code, and this program runs no code from a file"
    if not name.endswith("MemTransformerLM"):
        return refusal
    lines = EXPORT.replace('"model.pt"', f'"{path.name}"')
    return f"{refusal}; run these lines in the code's own environment and folder, and load weights.pt:\n\n{lines}"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write tensors to a safetensors file."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path, "wb") as file:
        safetensors.torch.save_file(contiguous, file.name, metadata=metadata or None)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_vocabulary(folder: Path, vocabulary: Tokenizer | None) -> None:
    """Write `vocabulary.json`, or remove that of another model."""
    if vocabulary is None:
        (folder / "vocabulary.json").unlink(missing_ok=True)
    else:
        vocabulary.save(folder / "vocabulary.json")


@contextmanager
def naming(source: Path) -> Iterator[None]:
    """Put the name of a file before a mistake found in it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
