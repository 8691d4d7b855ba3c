"""The published code's configuration and tensors, whose names its ports share, and ours.

Letters: L layers, D width, N heads, H head width, C tails of the adaptive softmax, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from transformer_xl.errors import UserError
from transformer_xl.model.base import make_model
from transformer_xl.model.embedding import make_clusters
from transformer_xl.model_config import TransformerConfig, parse_model

_SIZES = ("n_layer", "d_model", "n_head", "d_head", "d_inner", "div_val")
_FLAGS = ("pre_lnorm", "same_length", "untie_r")
_FIXED: dict[str, tuple[Any, ...]] = {
    "attn_type": (0,),
    "layer_norm_epsilon": (1e-5,),
    "ext_len": (0, None),
}
"""What has one value here; a value that a source does not give is taken to be that one."""
_LAYER = {
    "attention.position.weight": "dec_attn.r_net.weight",
    "attention.output.weight": "dec_attn.o_net.weight",
    "attention_norm.weight": "dec_attn.layer_norm.weight",
    "attention_norm.bias": "dec_attn.layer_norm.bias",
    "feed_forward.0.weight": "pos_ff.CoreNet.0.weight",
    "feed_forward.0.bias": "pos_ff.CoreNet.0.bias",
    "feed_forward.3.weight": "pos_ff.CoreNet.3.weight",
    "feed_forward.3.bias": "pos_ff.CoreNet.3.bias",
    "feed_forward_norm.weight": "pos_ff.layer_norm.weight",
    "feed_forward_norm.bias": "pos_ff.layer_norm.bias",
}
_BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias"}
DERIVED = "pos_emb.inv_freq"
"""The frequencies of the sinusoids, which follow from D."""


def read_config(values: Mapping[str, Any], *, vocab_size: int) -> TransformerConfig:
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
    return parse_model(  # type: ignore[return-value]
        {
            "kind": "transformer",
            "position": {"kind": "relative"},
            "norm": "layer",
            "feed_forward": "relu",
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


def is_published(config: TransformerConfig) -> bool:
    """Return whether it is the published network: relative positions, LayerNorm, ReLU."""
    return (config.position.kind, config.norm, config.feed_forward) == ("relative", "layer", "relu")


def write_config(config: TransformerConfig, *, vocab_size: int) -> dict[str, Any]:
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


class _Link(NamedTuple):
    """Tensors here and there that hold the same numbers.

    `flipped`: there the last tail comes first. `joined`: their queries, keys and values are one matrix.
    `stacked`: their biases of each layer are tensors of their own.
    """

    how: Literal["same", "flipped", "joined", "stacked"]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


class Reference:
    """One configuration's tensors as a port of the published code names them.

    Attributes:
        shapes: of each tensor, once.
        copies: further names of tied tensors, and the name above that each must equal.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        vocab_size: int,
        spell: Callable[[str], str],
        last_tail_first: bool,
        more_copies: Mapping[str, str] | None = None,
    ) -> None:
        """Lay the names of a configuration side by side.

        Args:
            config: of the model.
            vocab_size: V.
            spell: gives the port's name for a name of the published code.
            last_tail_first: whether the port takes column -c of the shortlist's softmax for tail c, as the published
                code does; TensorFlow's and transformers' take column c.
            more_copies: names that only the port has, and the published code's names of what each must equal.
        """
        links = _links(config, vocab_size=vocab_size, last_tail_first=last_tail_first)
        self._links = [link._replace(theirs=tuple(map(spell, link.theirs))) for link in links]
        with torch.device("meta"):
            model = make_model(config, vocab_size=vocab_size)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.from_native(model.state_dict()).items()}
        copies = {**_copies(config, vocab_size=vocab_size), **(more_copies or {})}
        self.copies = {spell(copy): spell(original) for copy, original in copies.items()}
        self._derived = spell(DERIVED)

    def to_native(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the weights of our model, or their gradients.

        Args:
            tensors: under the port's names; tied copies may be missing, whichever of their names is kept.

        Raises:
            UserError: a tensor is missing, extra, of a wrong shape, or a tied copy differs.
        """
        whole = self._gathered(tensors)
        weights: dict[str, Tensor] = {}
        for how, ours, theirs in self._links:
            parts = [whole[name] for name in theirs]
            if how == "stacked":
                weights[ours[0]] = torch.stack(parts)
            elif how == "joined":
                rows = len(parts[0]) // 3
                weights[ours[0]], weights[ours[1]] = parts[0][:rows].clone(), parts[0][rows:].clone()
            else:
                weights[ours[0]] = parts[0].flip(0) if how == "flipped" else parts[0]
        return weights

    def from_native(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give each tensor once, under the port's names, from the weights of our model."""
        tensors: dict[str, Tensor] = {}
        for how, ours, theirs in self._links:
            if how == "stacked":
                tensors.update(zip(theirs, weights[ours[0]].unbind(), strict=True))
            elif how == "joined":
                tensors[theirs[0]] = torch.cat([weights[name] for name in ours])
            else:
                tensors[theirs[0]] = weights[ours[0]].flip(0) if how == "flipped" else weights[ours[0]]
        return tensors

    def _gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give each tensor once, whatever names it stands under."""
        whole: dict[str, Tensor] = {}
        kept_as: dict[str, str] = {}
        problems = []
        for name, tensor in tensors.items():
            original = self.copies.get(name, name)
            if original == self._derived:
                continue
            if original not in self.shapes:
                problems.append(f"the tensor {name} of shape {tuple(tensor.shape)} has no place in this configuration")
            elif tuple(tensor.shape) != self.shapes[original]:
                problems.append(
                    f"the tensor {name} has shape {tuple(tensor.shape)}, and must have {self.shapes[original]}"
                )
            elif original not in whole:
                whole[original], kept_as[original] = tensor, name
            elif not torch.equal(whole[original], tensor):
                problems.append(f"the tensors {kept_as[original]} and {name} are tied, and must be equal")
        seen = {self.copies.get(name, name) for name in tensors}
        problems += [
            f"the tensor {name} of shape {shape} is missing" for name, shape in self.shapes.items() if name not in seen
        ]
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise UserError("; ".join(problems[:3]) + more)
        return whole


def frequencies(d_model: int) -> Tensor:
    """Give the frequencies of the sinusoids, (D / 2,), to the same bits as the published code."""
    return 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))


def _links(config: TransformerConfig, *, vocab_size: int, last_tail_first: bool) -> list[_Link]:
    clusters = make_clusters(config, vocab_size=vocab_size)
    same = {}
    for table, _ in enumerate(clusters.table_shapes):
        same[f"embedding.weights.{table}"] = f"word_emb.emb_layers.{table}.weight"
        same[f"softmax.biases.{table}"] = f"crit.out_layers.{table}.bias"
        if not config.tie_weights:
            same[f"softmax.weights.{table}"] = f"crit.out_layers.{table}.weight"
        if clusters.projected:
            same[f"embedding.projections.{table}"] = f"word_emb.emb_projs.{table}"
    for cluster, tied in enumerate(clusters.tied_projections):
        if clusters.projected and not tied:
            same[f"softmax.projections.{cluster}"] = f"crit.out_projs.{cluster}"
    for layer in range(config.n_layer):
        same.update({f"layers.{layer}.{ours}": f"layers.{layer}.{theirs}" for ours, theirs in _LAYER.items()})
    links = [_Link("same", (ours,), (theirs,)) for ours, theirs in same.items()]
    for layer in range(config.n_layer):
        ours = (f"layers.{layer}.attention.query.weight", f"layers.{layer}.attention.key_value.weight")
        links.append(_Link("joined", ours, (f"layers.{layer}.dec_attn.qkv_net.weight",)))
    for bias, theirs in _BIASES.items():
        of_layers = tuple(f"layers.{layer}.dec_attn.{theirs}" for layer in range(config.n_layer))
        links.append(_Link("stacked", (bias,), of_layers if config.untie_r else (theirs,)))
    if clusters.tails:
        how: Literal["flipped", "same"] = "flipped" if last_tail_first else "same"
        links += [_Link(how, (f"softmax.{name}",), (f"crit.{name}",)) for name in ("cluster_weight", "cluster_bias")]
    return links


def _copies(config: TransformerConfig, *, vocab_size: int) -> dict[str, str]:
    clusters = make_clusters(config, vocab_size=vocab_size)
    copies = {}
    if config.tie_weights:
        for table, _ in enumerate(clusters.table_shapes):
            copies[f"crit.out_layers.{table}.weight"] = f"word_emb.emb_layers.{table}.weight"
    for cluster, tied in enumerate(clusters.tied_projections):
        if clusters.projected and tied:
            copies[f"crit.out_projs.{cluster}"] = f"word_emb.emb_projs.{0 if clusters.one_table else cluster}"
    if not config.untie_r:
        for layer in range(config.n_layer):
            copies.update({f"layers.{layer}.dec_attn.{name}": name for name in _BIASES.values()})
    return copies
