"""Models of the published code and its ports: `transformers`' TransfoXL in and out, NVIDIA's and the published in.

All have the published code's names of settings and tensors, but for a prefix. Its pickled vocabularies are read too.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_xl.data.tokenizer import UNK, Tokenizer
from transformer_xl.data.words import EOS, WikitextTokenizer, WordTokenizer
from transformer_xl.errors import UserError, atomic_write, first_line
from transformer_xl.interop.native import (
    Record,
    current_config,
    naming,
    with_weights,
    write_json,
    write_tensors,
    write_vocabulary,
)
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model_config import TransformerConfig
from transformer_xl.settings import parse_kind

MODEL_TYPE = "transfo-xl"
_SAME = ("n_layer", "d_model", "n_head", "d_head", "d_inner", "d_embed", "div_val", "cutoffs", "mem_len", "same_length")
"""Settings that are called here as there."""
_NEEDED = (*_SAME, "tie_projs", "pre_lnorm", "clamp_len")
_DEFAULTS = {"untie_r": False, "dropout": 0.0, "dropatt": 0.0, "init_std": 0.02, "proj_init_std": 0.01}
_FIXED: dict[str, tuple[Any, ...]] = {
    "attn_type": (0,),
    "layer_norm_epsilon": (1e-5,),
    "ext_len": (0, None),
    "sample_softmax": (-1, 0),
}
"""What has one value here; a value that a source does not give is taken to be that one."""
_NAMES = (
    ("word_emb.emb_layers.#.weight", "embedding.weights.#"),
    ("word_emb.emb_projs.#", "embedding.projections.#"),
    ("crit.out_layers.#.weight", "softmax.weights.#"),
    ("crit.out_layers.#.bias", "softmax.biases.#"),
    ("crit.out_projs.#", "softmax.projections.#"),
    ("crit.cluster_", "softmax.cluster_"),
    ("dec_attn.r_net.", "attention.position."),
    ("dec_attn.o_net.", "attention.output."),
    ("dec_attn.layer_norm.", "attention_norm."),
    ("pos_ff.CoreNet.", "feed_forward."),
    ("pos_ff.layer_norm.", "feed_forward_norm."),
    ("crit.out_layers_weights.#", "softmax.weights.#"),  # this and the next are NVIDIA's
    ("crit.out_layers_biases.#", "softmax.biases.#"),
)
"""Parts of tensors' names there and here; # is a number."""
_BIASES = {"content_bias": "r_w_bias", "position_bias": "r_r_bias"}
_QUERY, _KEY_VALUE, _JOINED = "attention.query.weight", "attention.key_value.weight", "dec_attn.qkv_net.weight"
_UNUSED = re.compile(r"pos_emb\.inv_freq|crit\.shared_out_projs\.\d+")
"""The frequencies of the sinusoids, which follow from D, and NVIDIA's copies of the projections."""


def from_checkpoint(path: Path, contents: Mapping[str, Any]) -> LanguageModel:
    """Return the model of a checkpoint of NVIDIA's DeepLearningExamples, or of weights that `EXPORT` wrote.

    NVIDIA's `same_length` lets each token see `mem_len` + 1 keys, one more than the paper's, which is then `mem_len`.

    Args:
        path: for messages.
        contents: of the file.

    Raises:
        UserError: its parts do not fit, or ask for what this program does not have.
    """
    if "model_config" not in contents:
        return from_tensors(path, contents, contents["state_dict"], last_tail_first=True)
    values = dict(contents["model_config"])
    values["mem_len"] += bool(values["same_length"])
    model = from_tensors(path, values, contents["model_state"], last_tail_first=True)
    if isinstance(contents.get("vocab"), Record):
        model.vocabulary = _vocabulary(vars(contents["vocab"]), moses=False)
    return model


def from_tensors(
    source: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], *, last_tail_first: bool
) -> LanguageModel:
    """Return the model of settings and weights under the published code's names, or those of a port.

    Args:
        source: for messages.
        values: as in the `config.json` of `transformers`, say.
        tensors: tied copies may be missing.
        last_tail_first: whether column -c of the shortlist's softmax stands for tail c, as in the published code;
            in TensorFlow's and transformers' column c does.

    Raises:
        UserError: they do not fit, or ask for what this program does not have.
    """
    vocab_size = values.get("vocab_size", values.get("n_token"))
    with naming(source):
        if type(vocab_size) is not int:
            raise UserError(f"vocab_size is {vocab_size!r}, and must be a whole number")
        config = _config(values)
    with torch.device("meta"):
        names = make_model(config, vocab_size=vocab_size).state_dict().keys()
    weights = _to_native(tensors, names, config=config, last_tail_first=last_tail_first)
    return with_weights(source, config, vocab_size=vocab_size, weights=weights)


def _config(values: Mapping[str, Any]) -> TransformerConfig:
    for name, allowed in _FIXED.items():
        if values.get(name, allowed[0]) not in allowed:
            raise UserError(f"{name} is {values[name]!r}, and this program has only {allowed[0]!r}")
    if missing := [name for name in _NEEDED if name not in values]:
        raise UserError(f"it lacks {', '.join(missing)}")
    clusters = len(values["cutoffs"]) + 1
    config: TransformerConfig = parse_kind(
        "model",
        {
            "kind": "transformer",
            "position": {"kind": "relative"},
            "norm": "layer",
            "feed_forward": "relu",
            "attention": "auto",
            "variational_dropout": False,
            **{name: values[name] for name in _SAME},
            **{name: values.get(name, default) for name, default in _DEFAULTS.items()},
            "pre_norm": values["pre_lnorm"],
            "tie_weights": values.get("tie_word_embeddings", values.get("tie_weight", True)),
            "tie_projs": [*values["tie_projs"], *[False] * (clusters - len(values["tie_projs"]))],
            "clamp_len": None if values["clamp_len"] in (-1, 0) else values["clamp_len"],
        },
    )
    return config


def _to_native(
    tensors: Mapping[str, Tensor], names: Collection[str], *, config: TransformerConfig, last_tail_first: bool
) -> dict[str, Tensor]:
    """Return weights, or their gradients, under our names; what does not fit keeps a name that is not among these."""
    weights: dict[str, Tensor] = {}
    for theirs, tensor in tensors.items():
        name = _renamed(theirs.removeprefix("transformer."), _NAMES)
        if name.endswith(_JOINED):
            rows = len(tensor) // 3
            weights[name.replace(_JOINED, _QUERY)] = tensor[:rows].clone()
            weights[name.replace(_JOINED, _KEY_VALUE)] = tensor[rows:].clone()
        elif not _UNUSED.fullmatch(name):
            is_flipped = last_tail_first and name.startswith("softmax.cluster_")
            weights[name] = tensor.flip(0) if is_flipped else tensor
    for ours, theirs in _BIASES.items():
        of_layers = [f"layers.{layer}.dec_attn.{theirs}" for layer in range(config.n_layer)]
        kept_as = of_layers if config.untie_r else [theirs, *of_layers]
        biases = [weights.pop(name) for name in kept_as if name in weights]
        if biases:
            weights[ours] = torch.stack(biases if config.untie_r else biases[:1])
    for name in [name for name in weights if name.startswith("softmax.") and name not in names]:
        original = name.replace("softmax.", "embedding.")
        if original not in names and "projections" in name:
            original = "embedding.projections.0"
        weights.setdefault(original, weights.pop(name))
    return weights


def save_transformers(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write a folder that `transformers` 4.37's `TransfoXLLMHeadModel.from_pretrained` reads.

    Tied tensors are written once, as its own `save_pretrained` does. What only training knows
    (`variational_dropout`) is lost.

    Raises:
        UserError: the model is of a kind that the format does not have.
    """
    config = current_config(model)
    published = ("relative", "layer", "relu")
    if (
        not isinstance(config, TransformerConfig)
        or (config.position.kind, config.norm, config.feed_forward) != published
    ):
        raise UserError(f"the model is {config.label}, and the format of transformers has only the published network")
    if config.clamp_len == 0:
        raise UserError("model.clamp_len is 0, which transformers reads as no limit")
    tensors = _from_native(model.state_dict(), untie_r=config.untie_r)
    clusters: Any = model.softmax.clusters
    target = Path(os.path.expanduser(folder))
    target.mkdir(parents=True, exist_ok=True)
    description = {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": MODEL_TYPE,
        "transformers_version": "4.37.2",
        "torch_dtype": str(next(iter(tensors.values())).dtype).removeprefix("torch."),
        "vocab_size": model.vocab_size,
        "adaptive": True,
        **{name: values[0] for name, values in _FIXED.items() if name != "ext_len"},
        **{name: getattr(config, name) for name in (*_SAME, *_DEFAULTS)},
        "d_embed": config.d_embed or config.d_model,
        "cutoffs": list(clusters.edges[1:-1]),
        "tie_projs": list(clusters.tied_projections),
        "tie_word_embeddings": config.tie_weights,
        "pre_lnorm": config.pre_norm,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "eos_token_id": _write_vocabularies(target, model.vocabulary),
    }
    # else transformers warns of a tensor that it makes itself
    frequencies = 1 / (10000 ** (torch.arange(0.0, config.d_model, 2.0) / config.d_model))
    write_tensors(target / "model.safetensors", {**tensors, "transformer.pos_emb.inv_freq": frequencies}, format="pt")
    write_json(target / "config.json", description)


def _from_native(weights: Mapping[str, Tensor], *, untie_r: bool) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for ours, tensor in weights.items():
        name = _renamed(ours, [(here, there) for there, here in _NAMES])
        if ours in _BIASES and untie_r:
            tensors |= {f"layers.{layer}.dec_attn.{_BIASES[ours]}": bias for layer, bias in enumerate(tensor)}
        elif ours in _BIASES:
            tensors[_BIASES[ours]] = tensor[0]
        elif name.endswith(_QUERY):
            key_value = weights[ours.replace(_QUERY, _KEY_VALUE)]
            tensors[name.replace(_QUERY, _JOINED)] = torch.cat([tensor, key_value])
        elif not name.endswith(_KEY_VALUE):
            tensors[name] = tensor
    return {name if name.startswith("crit.") else f"transformer.{name}": tensor for name, tensor in tensors.items()}


def _renamed(name: str, parts: Iterable[tuple[str, str]]) -> str:
    for before, after in parts:
        if found := re.search(re.escape(before).replace(r"\#", r"(\d+)"), name):
            number = found[1] if "#" in before else ""
            return name[: found.start()] + after.replace("#", number) + name[found.end() :]
    return name


def read_vocabulary(path: Path) -> Tokenizer | None:
    """Read a `vocab.pkl` of TransfoXLTokenizer's, of whose objects none is made and whose names are never imported.

    Returns:
        The vocabulary; None where its symbols are not words among which are `<eos>`, the first, and `<unk>`.

    Raises:
        UserError: the file is damaged.
    """
    try:
        if zipfile.is_zipfile(path):  # written by `torch.save`
            with zipfile.ZipFile(path) as archive:
                name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
                attributes = _Unpickler(BytesIO(archive.read(name))).load()
        else:
            with path.open("rb") as file:
                attributes = _Unpickler(file).load()
                if isinstance(attributes, int):  # `torch.save` as before 1.6: a magic number, a version, sizes
                    attributes = [_Unpickler(file).load() for _ in range(3)][-1]
        return _vocabulary(attributes, moses=True)
    except Exception as error:  # an unpickler raises whatever a damaged stream makes it stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise UserError(f"{path} is damaged: {first_line(error)}") from error


class _Unpickler(pickle.Unpickler):
    """Reads plain containers; each class or function that a pickle names becomes one that keeps and does nothing."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="utf-8")

    def find_class(self, module: str, name: str) -> Any:
        if module == "collections" and name in ("OrderedDict", "Counter"):
            return dict
        return set if name in ("set", "frozenset") else _Inert


class _Inert:
    """An object that keeps nothing; its `__setstate__` also keeps a pickle from setting attributes of the class."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _vocabulary(attributes: Mapping[str, Any], *, moses: bool) -> Tokenizer | None:
    """Return the vocabulary that splits text as its program did: by Moses' rules, or at white space."""
    symbols, lower_case = attributes["idx2sym"], attributes.get("lower_case") is True
    if attributes.get("delimiter") is not None or symbols[0] != EOS or UNK not in symbols:
        return None
    return WikitextTokenizer(symbols) if moses and not lower_case else WordTokenizer(symbols, lower_case=lower_case)


def _write_vocabularies(folder: Path, vocabulary: Tokenizer | None) -> int | None:
    """Write `vocabulary.json`, and for words `vocab.pkl`, which TransfoXLTokenizer reads; return the id of `<eos>`."""
    write_vocabulary(folder, vocabulary)
    (folder / "vocab.pkl").unlink(missing_ok=True)
    description: Mapping[str, Any] = {} if vocabulary is None else vocabulary.to_json()
    symbols = description.get("symbols", [])
    if EOS not in symbols:
        return None
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    attributes = {
        "special": [EOS],
        "lower_case": description.get("lower_case", False),
        "delimiter": None,
        "idx2sym": symbols,
        "sym2idx": ids,
        "eos_idx": ids[EOS],
        "unk_idx": ids.get(UNK),
    }
    with atomic_write(folder / "vocab.pkl", "wb") as file:
        pickle.dump(attributes, file, protocol=2)
    return ids[EOS]
