"""Checkpoints of NVIDIA's, and what the published code's environment exports of its `model.pt`.

Both are made from folders of `transformers`, whose tensors `test_transformers_format.py` holds to recorded ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.interop.conftest import Hostile, refused
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import EXPORT
from transformer_xl.interop.published import save_transformers
from transformer_xl.model.base import make_model
from transformer_xl.model.transformer import Transformer

V = 32
SYMBOLS = ["<eos>", "<unk>", *(f"w{number}" for number in range(V - 2))]
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrowing": {"cutoffs": [8, 16], "div_val": 2, "d_embed": 12, "pre_norm": True, "clamp_len": 4},
    "one table": {"cutoffs": [8, 16], "tie_projs": "none"},
    "one narrow table": {"cutoffs": [8, 16], "d_embed": 10, "tie_projs": [True, False, True]},
    "untied": {"cutoffs": [8], "div_val": 4, "tie_weights": False, "tie_projs": "none"},
    "all tied": {"cutoffs": [8], "div_val": 4, "tie_projs": "all"},
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def model(request: pytest.FixtureRequest) -> Transformer:
    return tiny(**request.param)


def tiny(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    model = make_model(tiny_model_config(dropout=0.1, **changes), vocab_size=V)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    assert isinstance(model, Transformer)
    return model.eval()


def export_of(model: Transformer, folder: Path, **changes: Any) -> dict[str, Any]:
    """Return what the lines of `EXPORT` write: settings, and the published code's `state_dict()` with tied copies."""
    save_transformers(model, folder / "as transformers")
    state = load_file(folder / "as transformers" / "model.safetensors")
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    clusters = model.softmax.clusters
    if clusters.tails:  # there the column of tail c is counted from the end
        state |= {name: state[name].flip(0) for name in ("crit.cluster_weight", "crit.cluster_bias")}
    for number in range(len(clusters.table_shapes)):
        state.setdefault(f"crit.out_layers.{number}.weight", state[f"word_emb.emb_layers.{number}.weight"])
    for number in range(len(clusters.widths) if clusters.projected else 0):
        tied = f"word_emb.emb_projs.{0 if clusters.one_table else number}"
        state.setdefault(f"crit.out_projs.{number}", state[tied])
    described = json.loads((folder / "as transformers" / "config.json").read_text())
    names = "n_layer n_head d_model d_head d_inner d_embed div_val cutoffs mem_len clamp_len same_length attn_type"
    values = {name: described[name] for name in f"{names} pre_lnorm dropout dropatt tie_projs".split()}
    values |= {"n_token": V, "ext_len": 0, "tie_weight": described["tie_word_embeddings"]}
    return {**values, "state_dict": {name: tensor.clone() for name, tensor in state.items()}, **changes}


def nvidia_checkpoint(model: Transformer, folder: Path, symbols: list[str], **changes: Any) -> dict[str, Any]:
    """Return a checkpoint of NVIDIA's, with all that its `save_checkpoint` puts in."""
    described = export_of(model, folder, sample_softmax=-1, tgt_len=5, dtype=None)
    state = {}
    for name, tensor in described.pop("state_dict").items():
        words = name.split(".")
        if name.startswith("crit.out_layers") and words[3] == "bias":
            state[f"crit.out_layers_biases.{words[2]}"] = tensor
        elif name.startswith("crit.out_layers"):
            if not described["tie_weight"]:
                state[f"crit.out_layers_weights.{words[2]}"] = tensor
        elif not name.startswith("crit.out_projs") or not described["tie_projs"][int(words[2])]:
            state[name] = tensor
        if name.startswith("word_emb.emb_projs"):
            state[name.replace("word_emb.emb_projs", "crit.shared_out_projs")] = tensor
    return {
        "args": argparse.Namespace(init_std=0.03, vocab="word", lr=0.01, restart=None),
        "model_config": {**described, **changes},
        "model_state": OrderedDict(state),
        "optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3), "step": 7}}, "param_groups": [{"lr": 0.1}]},
        "vocab": vocab_object(symbols),
        "amp_state": {"scale": 65536.0},
        "train_step": 7,
    }


def vocab_object(symbols: list[str]) -> Any:
    """Return an object of NVIDIA's `utils.vocabulary.Vocab`."""
    with foreign_class("utils.vocabulary", "Vocab") as cls:
        vocab = cls()
    vocab.counter = Counter({"the": 3, "cat": 1})
    vocab.lower_case, vocab.delimiter, vocab.vocab_file = False, None, None
    vocab.idx2sym = symbols
    vocab.sym2idx = OrderedDict((symbol, number) for number, symbol in enumerate(symbols))
    return vocab


@contextmanager
def foreign_class(module: str, name: str) -> Iterator[Any]:
    """Make a class that a pickle names as another program's, importable until the end of the block."""
    parts = module.split(".")
    names = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    for each in names:
        sys.modules[each] = ModuleType(each)
    cls = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, cls)
    try:
        yield cls
    finally:
        for each in names:
            del sys.modules[each]


def saved(contents: Any, path: Path) -> Path:
    with foreign_class("utils.vocabulary", "Vocab") as _:
        if isinstance(contents, dict) and "vocab" in contents:
            sys.modules["utils.vocabulary"].Vocab = type(contents["vocab"])  # type: ignore[attr-defined]
        torch.save(contents, path)
    return path


def assert_same(loaded: Any, model: Transformer, state: Mapping[str, Tensor]) -> None:
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    names = ("n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len", "clamp_len", "same_length", "pre_norm")
    assert [getattr(loaded.config, n) for n in names] == [getattr(model.config, n) for n in names]
    assert vars(loaded.softmax.clusters) == vars(model.softmax.clusters)
    assert loaded.config.dropout == model.config.dropout
    tokens_BT = torch.arange(10).view(2, 5)
    with torch.no_grad():
        hidden_BTD = loaded(tokens_BT, loaded.empty_memory(2)).hidden_BTD
        expected = log_probs_of(hidden_BTD, state, model.config.cutoffs)
        assert (loaded.softmax.log_probs(hidden_BTD) - expected).abs().max() < 1e-5


def log_probs_of(hidden_BTD: Tensor, state: Mapping[str, Tensor], cutoffs: list[int]) -> Tensor:
    """The published code's softmax, column by column, from its own tensors."""
    edges = [0, *cutoffs, None]
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


def test_nvidias_checkpoint_gives_its_model_and_vocabulary(model: Transformer, tmp_path: Path) -> None:
    loaded = load_model(saved(nvidia_checkpoint(model, tmp_path, SYMBOLS), tmp_path / "checkpoint_best.pt"))
    assert_same(loaded, model, export_of(model, tmp_path)["state_dict"])
    assert loaded.vocabulary.kind == "word"
    assert loaded.vocabulary.symbols == tuple(SYMBOLS)
    assert "utils" not in sys.modules


def test_nvidias_same_length_counts_one_key_more(tmp_path: Path) -> None:
    model = tiny(same_length=True, mem_len=7)
    loaded = load_model(saved(nvidia_checkpoint(model, tmp_path, SYMBOLS), tmp_path / "a.pt"))
    assert (loaded.mem_len, loaded.same_length) == (8, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attn_type": 2}, ["attn_type is 2"]),
        ({"ext_len": 4}, ["ext_len is 4"]),
        ({"n_layer": 3}, ["Missing", "layers.2."]),
        ({"n_token": 31}, ["embedding.weights.0", "[32, 16]", "[31, 16]"]),
        ({"n_token": "many"}, ["vocab_size is 'many'"]),
        ({"n_head": 0}, ["n_head"]),
    ],
)
def test_what_nvidias_checkpoint_asks_for_in_vain_is_named(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    refused(saved(nvidia_checkpoint(tiny(), tmp_path, SYMBOLS, **change), tmp_path / "checkpoint.pt"), *words)


def test_the_export_gives_its_model(model: Transformer, tmp_path: Path) -> None:
    contents = export_of(model, tmp_path)
    loaded = load_model(saved(contents, tmp_path / "weights.pt"))
    assert_same(loaded, model, contents["state_dict"])
    assert loaded.vocabulary is None
    del contents["pre_lnorm"], contents["state_dict"]["layers.1.dec_attn.r_net.weight"]
    refused(saved(contents, tmp_path / "weights.pt"), "pre_lnorm")
    refused(saved({**contents, "pre_lnorm": False}, tmp_path / "weights.pt"), "layers.1.attention.position")


MODULE = """
from torch import nn

class MemTransformerLM(nn.Module):
    pass

def build(state):
    model = MemTransformerLM()
    for name, tensor in state.items():
        owner, *path = model, *name.split(".")
        for part in path[:-1]:
            if not hasattr(owner, part):
                owner.add_module(part, nn.ModuleList() if part.endswith("layers") else nn.Module())
            owner = getattr(owner, part)
        owner.register_buffer(path[-1], tensor)
    model.n_token, model.n_layer, model.n_head, model.d_model, model.d_head, model.d_embed = 32, 2, 2, 16, 8, 16
    model.mem_len, model.ext_len, model.clamp_len, model.same_length, model.attn_type = 7, 0, -1, False, 0
    model.drop, attention = nn.Dropout(0.1), model.layers[0].dec_attn
    attention.pre_lnorm, attention.dropatt, model.layers[0].pos_ff.d_inner = False, nn.Dropout(0.0), 32
    embedding, crit = model.word_emb, model.crit
    embedding.emb_projs, embedding.div_val, crit.out_projs, crit.cutoffs = nn.ParameterList(), 1, [None], [32]
    crit.out_layers[0].weight = embedding.emb_layers[0].weight
    return model
"""


@pytest.mark.slow
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "as before 1.6"])
def test_a_pickled_module_is_refused_with_the_lines_that_export_it(archive: bool, tmp_path: Path) -> None:
    """The lines run where the module's code can be imported, and what they write is read here."""
    model = tiny()
    (tmp_path / "mem_transformer.py").write_text(MODULE)
    state = export_of(model, tmp_path)["state_dict"]
    torch.save(state, tmp_path / "state.pt")
    save = f"torch.save(build(torch.load('state.pt')), 'model.pt', _use_new_zipfile_serialization={archive})"
    run_python(f"import torch; from mem_transformer import build; {save}", tmp_path)
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "model.pt")
    assert "mem_transformer.MemTransformerLM" in str(caught.value)
    assert EXPORT in str(caught.value)
    assert "mem_transformer" not in sys.modules
    run_python(str(caught.value).partition("\n\n")[2], tmp_path)
    assert_same(load_model(tmp_path / "weights.pt"), model, state)


def run_python(code: str, folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True, timeout=120)


@pytest.mark.parametrize("place", ["args", "vocab", "optimizer_state"])
def test_code_hidden_in_nvidias_checkpoint_is_refused_and_not_run(place: str, tmp_path: Path) -> None:
    path, marker = tmp_path / "checkpoint.pt", tmp_path / "it ran"
    contents = {**nvidia_checkpoint(tiny(), tmp_path, SYMBOLS), "vocab": None, place: Hostile(marker)}
    torch.save(contents, path)
    torch.load(path, weights_only=False)
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    refused(path, f"{os.mkdir.__module__}.mkdir", "runs no code")
    assert not marker.exists()
