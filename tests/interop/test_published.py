"""Checkpoints of NVIDIA's, and what the published code's environment exports of its `model.pt`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tests.interop.published_code as code
from tests.conftest import tiny_model_config
from tests.interop.test_refusals import Hostile
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import EXPORT
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
    "no tails": {"d_embed": 10, "tie_projs": "all"},
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


def assert_same(loaded: Any, model: Transformer) -> None:
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    names = ("n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len", "clamp_len", "same_length", "pre_norm")
    assert [getattr(loaded.config, n) for n in names] == [getattr(model.config, n) for n in names]
    assert loaded.softmax.clusters == model.softmax.clusters
    assert loaded.config.dropout == model.config.dropout
    assert not any(module.training for module in loaded.modules())


def assert_published_softmax(loaded: Any, state: dict[str, torch.Tensor], cutoffs: list[int]) -> None:
    tokens_BT = torch.arange(10).view(2, 5)
    with torch.no_grad():
        hidden_BTD = loaded(tokens_BT, loaded.empty_memory(2)).hidden_BTD
        expected = code.log_probs_of(hidden_BTD, state, cutoffs)
        assert (loaded.head_log_probs(hidden_BTD) - expected).abs().max() < 1e-5


def export_of(model: Transformer, **changes: Any) -> dict[str, Any]:
    """What the five lines write."""
    config = model.config
    values = {
        "mem_len": config.mem_len,
        "ext_len": 0,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "same_length": config.same_length,
        "attn_type": 0,
        "pre_lnorm": config.pre_norm,
        "dropout": config.dropout,
        "dropatt": config.dropatt,
        "cutoffs": list(config.cutoffs),
        "state_dict": code.state_dict_of(model),
    }
    return {**values, **changes}


def saved(contents: Any, path: Path) -> Path:
    with code.foreign_module("utils.vocabulary") as _:
        if isinstance(contents, dict) and "vocab" in contents:
            sys.modules["utils.vocabulary"].Vocab = type(contents["vocab"])  # type: ignore[attr-defined]
        torch.save(contents, path)
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(UserError, match=re.escape(str(path))) as caught:
        load_model(path)
    for word in words:
        assert word in str(caught.value)


def test_nvidias_checkpoint_gives_its_model_and_vocabulary(model: Transformer, tmp_path: Path) -> None:
    loaded = load_model(saved(code.nvidia_checkpoint(model, SYMBOLS), tmp_path / "checkpoint_best.pt"))
    assert_same(loaded, model)
    assert (loaded.config.init_std, loaded.config.proj_init_std) == (0.03, 0.02)
    assert loaded.vocabulary.kind == "word"
    assert loaded.vocabulary.symbols == tuple(SYMBOLS)
    assert "utils" not in sys.modules
    assert_published_softmax(loaded, code.state_dict_of(model), model.config.cutoffs)


def test_nvidias_same_length_counts_one_key_more(tmp_path: Path) -> None:
    model = tiny(same_length=True, mem_len=7)
    loaded = load_model(saved(code.nvidia_checkpoint(model, SYMBOLS), tmp_path / "a.pt"))
    assert (loaded.mem_len, loaded.same_length) == (8, True)
    alone = load_model(saved(code.nvidia_checkpoint(model, SYMBOLS, mem_len=0), tmp_path / "b.pt"))
    assert (alone.mem_len, alone.same_length) == (1, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attn_type": 2}, ["attn_type is 2"]),
        ({"sample_softmax": 100}, ["sample_softmax is 100"]),
        ({"ext_len": 4}, ["ext_len is 4"]),
        ({"n_layer": 3}, ["layers.2.", "missing"]),
        ({"n_token": 31}, ["word_emb.emb_layers.0.weight", "(32, 16)", "(31, 16)"]),
        ({"n_token": "many"}, ["n_token", "many"]),
        ({"cutoffs": [40]}, ["cutoffs is [40]", "32"]),
        ({"tie_projs": [0]}, ["tie_projs is [0]"]),
        ({"n_head": 0}, ["n_head is 0"]),
    ],
)
def test_what_nvidias_checkpoint_asks_for_in_vain_is_named(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    refused(saved(code.nvidia_checkpoint(tiny(), SYMBOLS, **change), tmp_path / "checkpoint.pt"), *words)


def test_a_shared_projection_of_nvidias_that_differs_is_refused(tmp_path: Path) -> None:
    contents = code.nvidia_checkpoint(tiny(**SHAPES["narrowing"]), SYMBOLS)
    contents["model_state"]["crit.shared_out_projs.1"] = contents["model_state"]["crit.shared_out_projs.1"] + 1
    refused(saved(contents, tmp_path / "c.pt"), "crit.shared_out_projs.1", "word_emb.emb_projs.1", "equal")


def test_a_vocabulary_of_another_size_than_nvidias_model_is_refused(tmp_path: Path) -> None:
    refused(saved(code.nvidia_checkpoint(tiny(), SYMBOLS[:-1]), tmp_path / "c.pt"), "31", "32")


def test_the_export_gives_its_model_from_shapes(model: Transformer, tmp_path: Path) -> None:
    loaded = load_model(saved(export_of(model), tmp_path / "weights.pt"))
    assert_same(loaded, model)
    assert loaded.vocabulary is None
    assert_published_softmax(loaded, code.state_dict_of(model), model.config.cutoffs)
    if model.config.div_val > 1:  # then the tables tell the cutoffs
        assert_same(load_model(saved(export_of(model, cutoffs=None), tmp_path / "weights.pt")), model)


def test_the_export_gives_its_vocabulary_where_symbols_are_beside_it(tmp_path: Path) -> None:
    loaded = load_model(saved(export_of(tiny(), symbols=SYMBOLS), tmp_path / "weights.pt"))
    assert loaded.vocabulary.symbols == tuple(SYMBOLS)
    refused(saved(export_of(tiny(), symbols=SYMBOLS[1:]), tmp_path / "weights.pt"), "31", "32")


def test_a_state_dictionary_alone_does_not_tell_enough(tmp_path: Path) -> None:
    contents = {"state_dict": code.state_dict_of(tiny()), "mem_len": 7, "same_length": False}
    refused(saved(contents, tmp_path / "weights.pt"), "pre_lnorm, clamp_len")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attn_type": 1}, ["attn_type is 1"]),
        ({"mem_len": 0, "same_length": True}, ["same_length is true with mem_len 0"]),
        ({"pre_lnorm": 1}, ["pre_lnorm is 1"]),
        ({"mem_len": -1}, ["mem_len is -1"]),
        ({"cutoffs": [8]}, ["cutoffs is [8]", "2"]),
        ({"cutoffs": None}, ["cutoffs is None", "2"]),
    ],
)
def test_what_an_export_asks_for_in_vain_is_named(change: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    refused(saved(export_of(tiny(**SHAPES["one table"]), **change), tmp_path / "weights.pt"), *words)


@pytest.mark.parametrize(
    "name", ["word_emb.emb_layers.1.weight", "crit.cluster_bias", "layers.1.dec_attn.r_net.weight"]
)
def test_a_tensor_that_an_export_lacks_is_named(name: str, tmp_path: Path) -> None:
    contents = export_of(tiny(**SHAPES["narrowing"]))
    del contents["state_dict"][name]
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        load_model(saved(contents, tmp_path / "weights.pt"))


MODULE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre_lnorm, self.dropatt = False, nn.Dropout(0.0)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.dec_attn = Attention()

class Crit(nn.Module):
    def __init__(self):
        super().__init__()
        self.cutoffs = [32]

class MemTransformerLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.layers, self.crit = nn.Dropout(0.1), nn.ModuleList([Layer(), Layer()]), Crit()
        self.mem_len, self.ext_len, self.clamp_len, self.same_length, self.attn_type = 7, 0, -1, False, 0
        for name, tensor in torch.load("state.pt").items():
            owner, *path = self, *name.split(".")
            for part in path[:-1]:
                if not hasattr(owner, part):
                    owner.add_module(part, nn.Module())
                owner = getattr(owner, part)
            owner.register_buffer(path[-1], tensor)
print("the module's code ran")
"""


@pytest.mark.slow
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "as before 1.6"])
def test_a_pickled_module_is_refused_with_the_lines_that_export_it(archive: bool, tmp_path: Path) -> None:
    """The lines run where the module's code can be imported, and what they write is read here."""
    model = tiny()
    (tmp_path / "mem_transformer.py").write_text(MODULE)
    torch.save(code.state_dict_of(model), tmp_path / "state.pt")
    save = "torch.save(mem_transformer.MemTransformerLM(), 'model.pt', _use_new_zipfile_serialization={})"
    run_python(f"import torch, mem_transformer; {save.format(archive)}", tmp_path)
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "model.pt")
    assert "mem_transformer.MemTransformerLM" in str(caught.value)
    assert EXPORT in str(caught.value)
    assert len(EXPORT.splitlines()) == 5
    assert "mem_transformer" not in sys.modules
    run_python(str(caught.value).partition("\n\n")[2], tmp_path)
    assert_same(load_model(tmp_path / "weights.pt"), model)


def run_python(code: str, folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True, timeout=120)


@pytest.mark.parametrize("place", ["args", "vocab", "optimizer_state"])
def test_code_hidden_in_nvidias_checkpoint_is_refused_and_not_run(place: str, tmp_path: Path) -> None:
    path, marker = tmp_path / "checkpoint.pt", tmp_path / "it ran"
    hostile = Hostile(marker)
    torch.save({**code.nvidia_checkpoint(tiny(), SYMBOLS), "vocab": None, place: hostile}, path)
    torch.load(path, weights_only=False)
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    refused(path, f"{os.mkdir.__module__}.mkdir", "runs no code")
    assert not marker.exists()


def test_another_pickled_class_is_refused_by_name(tmp_path: Path) -> None:
    with code.foreign_module("elsewhere", "Network", bases=(nn.Module,)) as classes:
        torch.save(classes["Network"](), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "elsewhere.Network", "runs no code")


def test_a_dictionary_of_another_program_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    refused(saved({"state_dict": {"weight": torch.zeros(2)}}, tmp_path / "a.pt"), "format_version", "model_state")
    refused(saved([1, 2], tmp_path / "b.pt"), "format_version")


def test_a_part_of_a_folder_is_refused_as_a_part(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(tmp_path / "model.safetensors", "give the folder")
