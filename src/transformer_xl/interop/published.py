"""Checkpoints in one file: NVIDIA's, and what the published code's own environment exports of its `model.pt`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_xl.errors import UserError
from transformer_xl.interop.native import Record, naming, with_weights
from transformer_xl.interop.reference import Reference, read_config
from transformer_xl.interop.vocabularies import make_vocabulary, require_size, symbols_of
from transformer_xl.model.base import LanguageModel

_NVIDIA = ("model_config", "model_state")
_UNTOLD = ("pre_lnorm", "mem_len", "clamp_len", "same_length")
"""What changes the model's function and leaves no trace in the weights."""


def from_nvidia(path: Path, contents: Mapping[str, Any]) -> LanguageModel:
    """Make the model of a checkpoint of NVIDIA's DeepLearningExamples.

    Its `same_length` lets each token see `mem_len` + 1 keys, one more than the paper's, which is then `mem_len` here.

    Args:
        path: for messages.
        contents: the dictionary that the file held.

    Raises:
        UserError: a part is missing or does not fit, or asks for what this program does not have.
    """
    with naming(path):
        described, tensors = contents["model_config"], _tensors(contents["model_state"])
        if not isinstance(described, dict):
            raise UserError("model_config must be a dictionary")
        vocab_size = described.get("n_token")
        if type(vocab_size) is not int or vocab_size < 1:
            raise UserError(f"model_config.n_token is {vocab_size!r}, and must be a whole number above 0")
        values = {**described, "untie_r": False, **_initial(contents.get("args"))}
        if values.get("same_length") is True and type(values.get("mem_len")) is int:
            values["mem_len"] += 1
        config = read_config(values, vocab_size=vocab_size)
        shared = {name: name for name in tensors if name.startswith("crit.shared_out_projs.")}
        reference = Reference(
            config,
            vocab_size=vocab_size,
            spell=_spell_nvidia,
            last_tail_first=True,
            more_copies={name: name.replace("crit.shared_out_projs.", "word_emb.emb_projs.") for name in shared},
        )
        weights = reference.to_native(tensors)
    model = with_weights(path, config, vocab_size=vocab_size, weights=weights)
    vocabulary = contents.get("vocab")
    if isinstance(vocabulary, Record) and "idx2sym" in vars(vocabulary):
        with naming(path):
            symbols = symbols_of(vars(vocabulary))
            require_size(len(symbols), vocab_size=vocab_size)
            model.vocabulary = make_vocabulary(symbols, vars(vocabulary), source=path, moses=False)
    return model


def from_export(path: Path, contents: Mapping[str, Any]) -> LanguageModel:
    """Make the model of the published code from its state dictionary and the few attributes that it does not tell.

    Args:
        path: for messages.
        contents: `state_dict`, the attributes, and perhaps `symbols`, the vocabulary's `idx2sym`.

    Raises:
        UserError: a part is missing or does not fit, or asks for what this program does not have.
    """
    with naming(path):
        missing = [name for name in _UNTOLD if name not in contents]
        if missing:
            raise UserError(f"weights do not tell {', '.join(missing)}, which must stand beside state_dict")
        tensors = _tensors(contents["state_dict"])
        told = {name: value for name, value in contents.items() if name != "state_dict"}
        values = {**told, **_sizes(tensors, cutoffs=told.get("cutoffs"))}
        vocab_size = sum(len(table) for table in _numbered(tensors, "word_emb.emb_layers.{}.weight"))
        config = read_config(values, vocab_size=vocab_size)
        reference = Reference(config, vocab_size=vocab_size, spell=str, last_tail_first=True)
        weights = reference.to_native(tensors)
    model = with_weights(path, config, vocab_size=vocab_size, weights=weights)
    if "symbols" in contents:
        with naming(path):
            symbols = symbols_of({"idx2sym": contents["symbols"]})
            require_size(len(symbols), vocab_size=vocab_size)
            model.vocabulary = make_vocabulary(symbols, contents, source=path, moses=False)
    return model


def is_nvidia(contents: Mapping[str, Any]) -> bool:
    """Tell whether a file's dictionary is a checkpoint of NVIDIA's."""
    return all(name in contents for name in _NVIDIA)


def is_export(contents: Mapping[str, Any]) -> bool:
    """Tell whether a file's dictionary has weights of the published code, with whatever beside them."""
    return isinstance(contents.get("state_dict"), dict) and "word_emb.emb_layers.0.weight" in contents["state_dict"]


def _sizes(tensors: Mapping[str, Tensor], *, cutoffs: Any) -> dict[str, Any]:
    """Derive sizes and ties from the shapes and equality of the published code's tensors.

    Args:
        tensors: of the state dictionary.
        cutoffs: as told beside it; of one table the shapes tell only how many there are.
    """
    tables = _numbered(tensors, "word_emb.emb_layers.{}.weight")
    projections = _numbered(tensors, "word_emb.emb_projs.{}")
    attention = _needed(tensors, "layers.0.dec_attn.qkv_net.weight", dimensions=2)
    untie_r = "r_w_bias" not in tensors
    bias = _needed(tensors, "layers.0.dec_attn.r_w_bias" if untie_r else "r_w_bias", dimensions=2)
    if any(table.dim() != 2 for table in tables):
        raise UserError("the tensors word_emb.emb_layers must have 2 dimensions")
    d_model, d_embed = attention.shape[1], tables[0].shape[1]
    tails = len(tensors.get("crit.cluster_bias", ()))
    if len(tables) > 1:
        cutoffs = torch.tensor([len(table) for table in tables]).cumsum(0)[:-1].tolist()
    elif not tails:
        cutoffs = []
    elif not isinstance(cutoffs, list | tuple) or len(cutoffs) != tails:
        raise UserError(
            f"cutoffs is {cutoffs!r}, and must be the list of the {tails} cutoffs, which one table does not tell"
        )
    # one table with a projection that it does not need for its width was made with some div_val above 1
    div_val = _div_val(tables) if len(tables) > 1 else 2 if projections and d_embed == d_model else 1
    return {
        "n_layer": len(_numbered(tensors, "layers.{}.dec_attn.qkv_net.weight")),
        "d_model": d_model,
        "n_head": bias.shape[0],
        "d_head": bias.shape[1],
        "d_inner": len(_needed(tensors, "layers.0.pos_ff.CoreNet.0.weight", dimensions=2)),
        "d_embed": d_embed,
        "cutoffs": list(cutoffs),
        "div_val": div_val,
        "untie_r": untie_r,
        "tie_weight": all(
            _equal(tensors, f"crit.out_layers.{number}.weight", f"word_emb.emb_layers.{number}.weight")
            for number in range(len(tables))
        ),
        "tie_projs": [
            _equal(tensors, f"crit.out_projs.{cluster}", f"word_emb.emb_projs.{cluster if len(tables) > 1 else 0}")
            for cluster in range(len(cutoffs) + 1)
            if projections
        ],
    }


def _div_val(tables: list[Tensor]) -> int:
    """Find the divisor that makes the tables' widths from the first one's; the smallest where several do."""
    widths = [table.shape[1] for table in tables]
    for divisor in range(2, widths[0] + 1):
        if widths == [widths[0] // divisor**cluster for cluster in range(len(widths))]:
            return divisor
    raise UserError(f"the tables of word_emb.emb_layers have widths {widths}, which no div_val gives")


def _equal(tensors: Mapping[str, Tensor], copy: str, original: str) -> bool:
    """Tell whether a tensor that may be tied is; one that was not written is."""
    return copy not in tensors or (original in tensors and torch.equal(tensors[copy], tensors[original]))


def _numbered(tensors: Mapping[str, Tensor], pattern: str) -> list[Tensor]:
    """Give the tensors whose names count up from 0."""
    found: list[Tensor] = []
    while pattern.format(len(found)) in tensors:
        found.append(tensors[pattern.format(len(found))])
    return found


def _needed(tensors: Mapping[str, Tensor], name: str, *, dimensions: int) -> Tensor:
    if name not in tensors:
        raise UserError(f"the tensor {name} is missing")
    if tensors[name].dim() != dimensions:
        raise UserError(f"the tensor {name} has shape {tuple(tensors[name].shape)}, and must have {dimensions} axes")
    return tensors[name]


def _tensors(value: Any) -> dict[str, Tensor]:
    if not isinstance(value, dict) or not all(isinstance(tensor, Tensor) for tensor in value.values()):
        raise UserError("the weights must be a dictionary of tensors")
    return value


def _initial(arguments: Any) -> dict[str, Any]:
    """Give the initial spreads that NVIDIA's `args` hold."""
    names = ("init_std", "proj_init_std")
    return {name: vars(arguments)[name] for name in names if isinstance(arguments, Record) and name in vars(arguments)}


def _spell_nvidia(name: str) -> str:
    return re.sub(r"^crit\.out_layers\.(\d+)\.(weight|bias)$", _plural, name)


def _plural(match: re.Match[str]) -> str:
    return f"crit.out_layers_{match[2]}{'s' if match[2] == 'weight' else 'es'}.{match[1]}"
