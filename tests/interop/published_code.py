"""What the published code and NVIDIA's write, made by hand from a model of ours."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from transformer_xl.model.transformer import Transformer


def state_dict_of(model: Transformer) -> dict[str, Tensor]:
    """The model's weights as the published code's `state_dict()` names and orders them, tied ones twice."""
    ours, clusters = model.state_dict(), model.softmax.clusters
    state = {"r_w_bias": ours["content_bias"][0], "r_r_bias": ours["position_bias"][0]}
    for number in range(len(clusters.table_shapes)):
        state[f"word_emb.emb_layers.{number}.weight"] = ours[f"embedding.weights.{number}"]
        own = ours.get(f"softmax.weights.{number}")
        state[f"crit.out_layers.{number}.weight"] = ours[f"embedding.weights.{number}"] if own is None else own
        state[f"crit.out_layers.{number}.bias"] = ours[f"softmax.biases.{number}"]
        if clusters.projected:
            state[f"word_emb.emb_projs.{number}"] = ours[f"embedding.projections.{number}"]
    if clusters.projected:
        for number in range(len(clusters.widths)):
            tied = ours[f"embedding.projections.{0 if clusters.one_table else number}"]
            state[f"crit.out_projs.{number}"] = ours.get(f"softmax.projections.{number}", tied)
    if clusters.tails:
        # there the column of tail c is counted from the end
        state["crit.cluster_weight"] = torch.stack(list(reversed(ours["softmax.cluster_weight"])))
        state["crit.cluster_bias"] = torch.stack(list(reversed(ours["softmax.cluster_bias"])))
    for layer in range(model.config.n_layer):
        here, there = f"layers.{layer}", f"layers.{layer}.dec_attn"
        state[f"{there}.qkv_net.weight"] = torch.cat(
            [ours[f"{here}.attention.query.weight"], ours[f"{here}.attention.key_value.weight"]]
        )
        state[f"{there}.r_net.weight"] = ours[f"{here}.attention.position.weight"]
        state[f"{there}.o_net.weight"] = ours[f"{here}.attention.output.weight"]
        for part in ("weight", "bias"):
            state[f"{there}.layer_norm.{part}"] = ours[f"{here}.attention_norm.{part}"]
            state[f"{here}.pos_ff.layer_norm.{part}"] = ours[f"{here}.feed_forward_norm.{part}"]
            for number in (0, 3):
                state[f"{here}.pos_ff.CoreNet.{number}.{part}"] = ours[f"{here}.feed_forward.{number}.{part}"]
    state["pos_emb.inv_freq"] = torch.zeros(model.config.d_model // 2)  # follows from d_model, and is never read
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def nvidia_checkpoint(model: Transformer, symbols: list[str], **changes: Any) -> dict[str, Any]:
    """A checkpoint of NVIDIA's, with all that its `save_checkpoint` puts in."""
    config, clusters = model.config, model.softmax.clusters
    state = {}
    for name, tensor in state_dict_of(model).items():
        words = name.split(".")
        number = words[2] if name.startswith("crit.out_") else ""
        if name.startswith("crit.out_layers") and words[3] == "bias":
            state[f"crit.out_layers_biases.{number}"] = tensor
        elif name.startswith("crit.out_layers"):
            if not config.tie_weights:
                state[f"crit.out_layers_weights.{number}"] = tensor
        elif name.startswith("crit.out_projs"):
            if not clusters.tied_projections[int(number)]:
                state[name] = tensor
        else:
            state[name] = tensor
        if name.startswith("word_emb.emb_projs"):
            state[name.replace("word_emb.emb_projs", "crit.shared_out_projs")] = tensor
    model_config = {
        "n_token": model.vocab_size,
        **{name: getattr(config, name) for name in ("n_layer", "n_head", "d_model", "d_head", "d_inner", "div_val")},
        **{name: getattr(config, name) for name in ("dropout", "dropatt", "mem_len", "same_length")},
        "dtype": None,
        "tie_weight": config.tie_weights,
        "d_embed": config.d_embed or config.d_model,
        "tie_projs": list(clusters.tied_projections),
        "pre_lnorm": config.pre_norm,
        "tgt_len": 5,
        "ext_len": 0,
        "cutoffs": list(clusters.edges[1:-1]),
        "attn_type": 0,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "sample_softmax": -1,
    }
    return {
        "args": argparse.Namespace(init_std=0.03, proj_init_std=0.02, vocab="word", lr=0.01, restart=None),
        "model_config": {**model_config, **changes},
        "model_state": OrderedDict(state),
        "optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3), "step": 7}}, "param_groups": [{"lr": 0.1}]},
        "scheduler_state": {"T_max": 10, "base_lrs": [0.01], "last_epoch": 7},
        "vocab": vocab_object(symbols),
        "amp_state": {"scale": 65536.0},
        "epoch": 1,
        "batch": 7,
        "last_iter": 35,
        "train_step": 7,
        "best_val_loss": 3.25,
    }


def vocab_object(symbols: list[str], **changes: Any) -> Any:
    """An object of NVIDIA's `utils.vocabulary.Vocab`."""
    with foreign_module("utils.vocabulary", "Vocab") as classes:
        vocab = classes["Vocab"]()
    vocab.counter = Counter({"the": 3, "cat": 1})
    vocab.special, vocab.min_freq, vocab.max_size = ["<eos>"], 0, None
    vocab.lower_case, vocab.delimiter, vocab.vocab_file = False, None, None
    vocab.idx2sym = symbols
    vocab.sym2idx = OrderedDict((symbol, number) for number, symbol in enumerate(symbols))
    vocab.eos_idx = 0
    vars(vocab).update(changes)
    return vocab


@contextmanager
def foreign_module(module: str, *names: str, bases: tuple[type, ...] = (object,)) -> Iterator[Mapping[str, type]]:
    """Make classes that a pickle names as another program's, importable until the end of the block."""
    before = dict(sys.modules)
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:depth])] = ModuleType(".".join(parts[:depth]))
    classes = {name: type(name, bases, {"__module__": module}) for name in names}
    vars(sys.modules[module]).update(classes)
    try:
        yield classes
    finally:
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]


def log_probs_of(hidden_BTD: Tensor, state: Mapping[str, Tensor], cutoffs: list[int]) -> Tensor:
    """The published code's softmax, column by column, from its own tensors."""
    edges = [0, *cutoffs, len(state["crit.out_layers.0.bias"]) if not cutoffs else None]
    one_table = "crit.out_layers.1.weight" not in state

    def logits(number: int, weight: Tensor, bias: Tensor) -> Tensor:
        projection = state.get(f"crit.out_projs.{number}")
        return (hidden_BTD if projection is None else hidden_BTD @ projection) @ weight.T + bias

    def cluster(number: int) -> tuple[Tensor, Tensor]:
        weight, bias = (state[f"crit.out_layers.{0 if one_table else number}.{part}"] for part in ("weight", "bias"))
        rows = slice(edges[number], edges[number + 1]) if one_table else slice(None)
        return weight[rows], bias[rows]

    weight, bias = cluster(0)
    if not cutoffs:
        return logits(0, weight, bias).log_softmax(-1)
    head = logits(
        0, torch.cat([weight, state["crit.cluster_weight"]]), torch.cat([bias, state["crit.cluster_bias"]])
    ).log_softmax(-1)
    parts = [head[..., : cutoffs[0]]]
    for number in range(1, len(cutoffs) + 1):
        parts.append(head[..., [-number]] + logits(number, *cluster(number)).log_softmax(-1))
    return torch.cat(parts, dim=-1)
