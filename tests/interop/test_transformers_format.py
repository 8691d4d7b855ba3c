"""Folders of `transformers`' TransfoXL, in and out.

`data/` was recorded from transformers 4.37.2: what its `save_pretrained` wrote at toy size, and what it predicted.
`shared` ties all it can, `one_table` has one narrow matrix for all clusters, `own` ties no matrices.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.interop.test_refusals import Hostile
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import save_model
from transformer_xl.interop.transformers_format import save_transformers
from transformer_xl.model.base import make_model

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parents[1] / "oracles" / "golden"
RECORDED = [DATA / name for name in ("shared", "one_table", "own")]
FOLDERS = [*RECORDED, *sorted(GOLDEN.iterdir())]


def copied(source: Path, target: Path, *, without: tuple[str, ...] = (), **config: Any) -> Path:
    """A copy of a folder with another configuration; a value that is ... is left out."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("io.*", "grads.*", *without))
    values = {**json.loads((target / "config.json").read_text()), **config}
    kept = {name: value for name, value in values.items() if value is not ...}
    (target / "config.json").write_text(json.dumps(kept))
    return target


def change_tensors(folder: Path, **tensors: Tensor | None) -> None:
    path = folder / "model.safetensors"
    changed = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor.clone() for name, tensor in changed.items() if tensor is not None}, path)


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(UserError, match=re.escape(str(folder))) as caught:
        load_model(folder)
    for word in words:
        assert word in str(caught.value)


def assert_predicts(folder: Path, recorded: Path) -> None:
    model, io = load_model(folder), load_file(recorded / "io.safetensors")
    memory = model.zero_memory(io["input_ids"].shape[1])
    with torch.no_grad():
        for tokens_BT, expected in zip(io["input_ids"], io["log_probs"], strict=True):
            log_probs_BTV, memory = model.log_probs(tokens_BT, memory)
            assert (log_probs_BTV - expected).abs().max() < 2e-5


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_predicts_what_transformers_predicted(folder: Path) -> None:
    assert_predicts(folder, folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_there_and_back_keeps_every_bit_and_every_name(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path / "native")
    save_transformers(load_model(tmp_path / "native"), tmp_path / "back")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    if folder.parent == DATA:  # golden/ keeps the tied copies, which save_pretrained drops
        assert after.keys() == before.keys()
    assert after.keys() <= before.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name
    described = [json.loads((each / "config.json").read_text()) for each in (folder, tmp_path / "back")]
    assert {name: described[0].get(name, value) for name, value in described[1].items()} == described[1] | {
        "torch_dtype": described[0]["torch_dtype"],
        "eos_token_id": described[0]["eos_token_id"],
    }
    assert load_model(tmp_path / "back").config == load_model(folder).config
    assert_predicts(tmp_path / "back", folder)


def test_a_folder_says_what_the_published_code_calls_otherwise() -> None:
    config = load_model(DATA / "one_table").config
    assert (config.d_embed, config.cutoffs, config.div_val) == (6, [6, 14], 1)
    assert (config.clamp_len, config.same_length, config.untie_r) == (5, True, True)
    assert (config.dropout, config.dropatt) == (0.1, 0.05)
    own = load_model(DATA / "own").config
    assert (own.tie_weights, own.tie_projs, own.pre_norm, own.clamp_len) == (False, [True, False], True, None)


def test_pytorch_model_bin_is_read_where_there_is_no_safetensors(tmp_path: Path) -> None:
    folder = copied(DATA / "shared", tmp_path / "a", without=("model.safetensors",))
    assert_predicts(folder, DATA / "shared")
    (folder / "pytorch_model.bin").write_bytes(b"no weights")
    refused(folder, "pytorch_model.bin")
    (folder / "pytorch_model.bin").unlink()
    refused(folder, "model.safetensors and pytorch_model.bin")


def test_code_hidden_in_pytorch_model_bin_is_refused_and_not_run(tmp_path: Path) -> None:
    folder, marker = copied(DATA / "shared", tmp_path / "a", without=("model.safetensors",)), tmp_path / "it ran"
    torch.save({"transformer.r_w_bias": Hostile(marker)}, folder / "pytorch_model.bin")
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    refused(folder, "pytorch_model.bin", "runs no code")
    assert not marker.exists()


def test_safetensors_is_preferred_to_pytorch_model_bin(tmp_path: Path) -> None:
    folder = copied(DATA / "shared", tmp_path / "a")
    (folder / "pytorch_model.bin").write_bytes(b"no weights")
    assert_predicts(folder, DATA / "shared")


def test_the_frequencies_are_neither_needed_nor_believed(tmp_path: Path) -> None:
    folder = copied(DATA / "own", tmp_path / "a")
    change_tensors(folder, transformer__pos_emb__inv_freq=torch.zeros(99))
    assert_predicts(folder, DATA / "own")
    change_tensors(folder, transformer__pos_emb__inv_freq=None)
    assert_predicts(folder, DATA / "own")


TIED = {
    "crit.out_layers.1.weight": "transformer.word_emb.emb_layers.1.weight",
    "crit.out_projs.2": "transformer.word_emb.emb_projs.2",
    "transformer.layers.1.dec_attn.r_w_bias": "transformer.r_w_bias",
    "transformer.layers.0.dec_attn.r_r_bias": "transformer.r_r_bias",
}


@pytest.mark.parametrize(("copy", "original"), TIED.items(), ids=TIED)
def test_tied_copies_may_be_there_under_either_name_but_must_be_equal(copy: str, original: str, tmp_path: Path) -> None:
    folder = copied(DATA / "shared", tmp_path / "a")
    tensor = load_file(folder / "model.safetensors")[original]
    change_tensors(folder, **{copy: tensor})
    assert_predicts(folder, DATA / "shared")
    change_tensors(folder, **{original: None})
    assert_predicts(folder, DATA / "shared")
    change_tensors(folder, **{original: tensor, copy: tensor.roll(1, 0)})
    refused(folder, copy, original, "equal")


def test_untied_matrices_are_needed_and_may_differ(tmp_path: Path) -> None:
    folder = copied(DATA / "own", tmp_path / "a")
    change_tensors(folder, crit__out_layers__0__weight=None)
    refused(folder, "crit.out_layers.0.weight of shape (6, 10) is missing")


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("transformer.layers.1.dec_attn.r_net.weight", None, ["(6, 8)", "missing"]),
        ("crit.cluster_weight", None, ["(2, 8)", "missing"]),
        ("transformer.layers.2.dec_attn.r_net.weight", torch.zeros(6, 8), ["(6, 8)", "no place"]),
        ("crit.out_projs.3", torch.zeros(8, 1), ["(8, 1)", "no place"]),
        ("transformer.layers.0.dec_attn.qkv_net.weight", torch.zeros(17, 8), ["(17, 8)", "(18, 8)"]),
        ("transformer.r_w_bias", torch.zeros(1, 2, 3), ["(1, 2, 3)", "(2, 3)"]),
    ],
)
def test_a_tensor_that_is_missing_extra_or_of_another_shape_is_named(
    name: str, tensor: Tensor | None, words: list[str], tmp_path: Path
) -> None:
    folder = copied(DATA / "shared", tmp_path / "a")
    change_tensors(folder, **{name: tensor})
    refused(folder, name, *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attn_type": 1}, ["attn_type is 1"]),
        ({"sample_softmax": 10}, ["sample_softmax is 10"]),
        ({"layer_norm_epsilon": 1e-12}, ["layer_norm_epsilon is 1e-12", "1e-05"]),
        ({"ext_len": 3}, ["ext_len is 3"]),
        ({"mem_len": 0, "same_length": True}, ["same_length is true with mem_len 0"]),
        ({"mem_len": "6"}, ["mem_len is '6'"]),
        ({"n_layer": ...}, ["n_layer is missing"]),
        ({"clamp_len": ..., "d_inner": ...}, ["clamp_len is missing", "d_inner is missing"]),
        ({"n_layer": 2.0}, ["n_layer is 2.0"]),
        ({"d_head": True}, ["d_head is True"]),
        ({"vocab_size": 0}, ["vocab_size is 0"]),
        ({"vocab_size": ...}, ["vocab_size is None"]),
        ({"cutoffs": [14, 6]}, ["cutoffs is [14, 6]"]),
        ({"cutoffs": [6, 24]}, ["cutoffs is [6, 24]", "24"]),
        ({"cutoffs": 6}, ["cutoffs is 6"]),
        ({"div_val": 9}, ["d_embed is 8", "div_val is 9"]),
        ({"d_embed": 0}, ["d_embed is 0"]),
        ({"tie_projs": [False, True, True, True]}, ["tie_projs is", "3 clusters"]),
        ({"tie_projs": "all"}, ["tie_projs is 'all'"]),
        ({"dropout": "much"}, ["dropout is 'much'"]),
        ({"model_type": "gpt2"}, ["gpt2", "transfo-xl"]),
        ({"model_type": ...}, ["transfo-xl"]),
    ],
)
def test_a_configuration_that_asks_for_what_is_not_here_is_refused_by_name_and_value(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    refused(copied(DATA / "shared", tmp_path / "a", **change), *words)


def test_what_older_configurations_call_otherwise_is_understood(tmp_path: Path) -> None:
    old = {"tie_projs": ..., "proj_share_all_but_first": True, "vocab_size": ..., "n_token": 24, "tie_weight": True}
    assert_predicts(copied(DATA / "shared", tmp_path / "a", **old), DATA / "shared")
    untied = {"tie_word_embeddings": ..., "tie_weight": False}
    assert_predicts(copied(DATA / "own", tmp_path / "b", **untied), DATA / "own")


def test_a_clamp_below_one_is_no_limit_and_mem_len_0_is_a_model(tmp_path: Path) -> None:
    for number, clamp_len in enumerate((0, -1, None)):
        folder = copied(DATA / "shared", tmp_path / str(number), clamp_len=clamp_len, mem_len=0)
        model = load_model(folder)
        assert (model.clamp_len, model.mem_len) == (None, 0)
    tokens_BT = torch.arange(8).view(2, 4)
    assert model.log_probs(tokens_BT, model.empty_memory(2)).log_probs_BTV.isfinite().all()


def test_the_format_has_only_transformer_xl_with_a_clamp_that_it_can_say(tmp_path: Path) -> None:
    model = load_model(DATA / "one_table")
    model.clamp_len = 0
    with pytest.raises(UserError, match="clamp_len is 0"):
        save_transformers(model, tmp_path / "a")


def test_lengths_that_were_changed_after_loading_are_the_ones_written(tmp_path: Path) -> None:
    model = load_model(DATA / "one_table")
    model.mem_len, model.clamp_len, model.same_length = 40, None, False
    save_transformers(model, tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.mem_len, loaded.clamp_len, loaded.same_length) == (40, None, False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_keeps_its_precision_there_and_back(dtype: torch.dtype, tmp_path: Path) -> None:
    model = load_model(DATA / "shared").to(dtype)
    save_transformers(model, tmp_path)
    loaded = load_model(tmp_path)
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == dtype
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == str(dtype).removeprefix("torch.")


def test_cutoffs_beyond_the_vocabulary_are_not_written(tmp_path: Path) -> None:
    model = make_model(tiny_model_config(cutoffs=[8, 16, 99], div_val=2), vocab_size=16)
    save_transformers(model, tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    assert (described["cutoffs"], described["tie_projs"]) == ([8], [False, True])
    assert load_model(tmp_path).state_dict().keys() == model.state_dict().keys()
