"""The published code's configuration, whose names its ports share, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from transformer_xl.errors import UserError
from transformer_xl.model.clusters import make_clusters
from transformer_xl.model_checks import checked_model
from transformer_xl.model_config import TransformerXLConfig

_SIZES = ("n_layer", "d_model", "n_head", "d_head", "d_inner", "div_val")
_FLAGS = ("pre_lnorm", "same_length", "untie_r")
_FIXED: dict[str, tuple[Any, ...]] = {
    "attn_type": (0,),
    "layer_norm_epsilon": (1e-5,),
    "ext_len": (0, None),
}
"""What has one value here; a value that a source does not give is taken to be that one."""


def read_config(values: Mapping[str, Any], *, vocab_size: int) -> TransformerXLConfig:
    """Turn a configuration of the published code, or of a port of it, into ours.

    Args:
        values: under the published code's names; what does not change the model's function may be missing.
        vocab_size: V.

    Returns:
        The configuration; `d_embed` is None where it equals `d_model`.

    Raises:
        UserError: a value is missing, impossible, or asks for what this program does not have.
    """
    problems = [
        f"{name} is {values[name]!r}, and this program has only {allowed[0]!r}"
        for name, allowed in _FIXED.items()
        if name in values and values[name] not in allowed
    ]
    sampled = values.get("sample_softmax", -1)
    if type(sampled) is not int or sampled > 0:
        problems.append(f"sample_softmax is {sampled!r}, and this program has no sampled softmax, which is -1")
    needed = (*_SIZES, "d_embed", "cutoffs", *_FLAGS, "mem_len", "clamp_len")
    problems += [f"{name} is missing" for name in needed if name not in values]
    problems += [
        f"{name} is {values[name]!r}, and must be a whole number above 0"
        for name in _SIZES
        if name in values and not _is_whole(values[name], at_least=1)
    ]
    problems += [
        f"{name} is {values[name]!r}, and must be true or false"
        for name in _FLAGS
        if name in values and type(values[name]) is not bool
    ]
    if problems:
        raise UserError("; ".join(problems))
    d_embed, cutoffs = _embedding(values, vocab_size=vocab_size)
    mem_len, clamp_len = _lengths(values)
    return checked_model(  # type: ignore[return-value]
        {
            "kind": "transformer_xl",
            "attention": "auto",
            **{name: values[name] for name in _SIZES},
            "d_embed": None if d_embed == values["d_model"] else d_embed,
            "cutoffs": cutoffs,
            "tie_weights": bool(values.get("tie_weight", True)),
            "tie_projs": _tied_projections(values.get("tie_projs") or [], clusters=len(cutoffs) + 1),
            "mem_len": mem_len,
            "clamp_len": clamp_len,
            "same_length": values["same_length"],
            "pre_norm": values["pre_lnorm"],
            "untie_r": values["untie_r"],
            "dropout": values.get("dropout", 0.0),
            "dropatt": values.get("dropatt", 0.0),
            "variational_dropout": False,
            "init_std": values.get("init_std", 0.02),
            "proj_init_std": values.get("proj_init_std", 0.01),
        }
    )


def write_config(config: TransformerXLConfig, *, vocab_size: int) -> dict[str, Any]:
    """Turn our configuration into the published code's names and values.

    Raises:
        UserError: `clamp_len` is 0, which the published code reads as no limit.
    """
    if config.clamp_len == 0:
        raise UserError("model.clamp_len is 0, which the published code and its ports read as no limit")
    clusters = make_clusters(config, vocab_size=vocab_size)
    return {
        **{name: getattr(config, name) for name in _SIZES},
        "d_embed": config.d_embed or config.d_model,
        "cutoffs": list(clusters.edges[1:-1]),
        "tie_weight": config.tie_weights,
        "tie_projs": list(clusters.tied_projections),
        "mem_len": config.mem_len,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "same_length": config.same_length,
        "pre_lnorm": config.pre_norm,
        "untie_r": config.untie_r,
        "dropout": config.dropout,
        "dropatt": config.dropatt,
        "init_std": config.init_std,
        "proj_init_std": config.proj_init_std,
        "attn_type": 0,
        "sample_softmax": -1,
    }


def _embedding(values: Mapping[str, Any], *, vocab_size: int) -> tuple[int, list[int]]:
    """Give the widest embedding's width, and the cutoffs."""
    d_embed = values["d_model"] if values["d_embed"] is None else values["d_embed"]
    cutoffs = values["cutoffs"]
    if not _is_whole(d_embed, at_least=1):
        raise UserError(f"d_embed is {d_embed!r}, and must be a whole number above 0")
    if not isinstance(cutoffs, list | tuple) or not all(_is_whole(cutoff, at_least=1) for cutoff in cutoffs):
        raise UserError(f"cutoffs is {cutoffs!r}, and must be a list of whole numbers above 0")
    if any(later <= earlier for earlier, later in pairwise([*cutoffs, vocab_size])):
        raise UserError(f"cutoffs is {list(cutoffs)}, and must increase and stay below the {vocab_size} symbols")
    if d_embed // values["div_val"] ** len(cutoffs) < 1:
        raise UserError(
            f"d_embed is {d_embed} and div_val is {values['div_val']}: the last of {len(cutoffs) + 1} clusters would "
            "have a width below 1"
        )
    return d_embed, list(cutoffs)


def _lengths(values: Mapping[str, Any]) -> tuple[int, int | None]:
    """Give the memory's length, and the clamp or None."""
    mem_len, clamp_len = values["mem_len"], values["clamp_len"]
    if not _is_whole(mem_len, at_least=0):
        raise UserError(f"mem_len is {mem_len!r}, and must be a whole number of at least 0")
    if clamp_len is not None and type(clamp_len) is not int:
        raise UserError(f"clamp_len is {clamp_len!r}, and must be a whole number")
    if values["same_length"] and mem_len == 0:
        raise UserError("same_length is true with mem_len 0, and needs a mem_len of at least 1")
    return mem_len, None if clamp_len is None or clamp_len <= 0 else clamp_len


def _tied_projections(flags: Sequence[Any], *, clusters: int) -> str | list[bool]:
    """Name which projections are tied; clusters beyond the end of `flags` are not."""
    if not isinstance(flags, list | tuple) or not all(type(flag) is bool for flag in flags):
        raise UserError(f"tie_projs is {flags!r}, and must be a list of true and false")
    if any(flags[clusters:]):
        raise UserError(f"tie_projs is {list(flags)}, and must have one entry for each of the {clusters} clusters")
    tied = [*flags[:clusters], *[False] * (clusters - len(flags))]
    if not any(tied):
        return "none"
    if all(tied):
        return "all"
    return "tails" if tied == [False, *[True] * (clusters - 1)] else tied


def _is_whole(value: Any, *, at_least: int) -> bool:
    return type(value) is int and value >= at_least
