"""Folders of `transformers`' TransfoXL, in and out, and their pickled vocabularies.

`data/` was recorded from transformers 4.37.2: what its `save_pretrained` wrote at toy size, and what it predicted.
`shared` ties all it can, `one_table` has one narrow matrix for all clusters, `own` ties no matrices.
"""

from __future__ import annotations

import json
import pickle
import pickletools
import shutil
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.interop.conftest import Hostile, refused
from transformer_xl.data.characters import CharTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.errors import UserError
from transformer_xl.interop import published
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import save_model
from transformer_xl.interop.published import read_vocabulary, save_transformers
from transformer_xl.model.base import make_model

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parents[1] / "oracles" / "golden"
FOLDERS = [*(DATA / name for name in ("shared", "one_table", "own")), *sorted(GOLDEN.iterdir())]
WORDS = ["<eos>", "the", "<unk>", "cat", "@-@"]


def copied(source: Path, target: Path, **config: Any) -> Path:
    """Copy a folder with another configuration; a value that is ... is left out."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("io.*", "grads.*"))
    values = {**json.loads((target / "config.json").read_text()), **config}
    kept = {name: value for name, value in values.items() if value is not ...}
    (target / "config.json").write_text(json.dumps(kept))
    return target


def change_tensors(folder: Path, **tensors: Tensor | None) -> None:
    path = folder / "model.safetensors"
    changed = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor.clone() for name, tensor in changed.items() if tensor is not None}, path)


def assert_predicts(folder: Path, recorded: Path) -> None:
    model, io = load_model(folder), load_file(recorded / "io.safetensors")
    memory = model.zero_memory(io["input_ids"].shape[1])
    with torch.no_grad():
        for tokens_BT, expected in zip(io["input_ids"], io["log_probs"], strict=True):
            log_probs_BTV, memory = model.log_probs(tokens_BT, memory)
            assert (log_probs_BTV - expected).abs().max() < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_there_and_back_keeps_every_bit_every_name_and_all_predictions(folder: Path, tmp_path: Path) -> None:
    assert_predicts(folder, folder)
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


def test_pytorch_model_bin_is_read_where_there_is_no_safetensors(tmp_path: Path) -> None:
    folder, marker = copied(DATA / "shared", tmp_path / "a"), tmp_path / "it ran"
    (folder / "model.safetensors").unlink()
    assert_predicts(folder, DATA / "shared")
    torch.save({"transformer.r_w_bias": Hostile(marker)}, folder / "pytorch_model.bin")
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    refused(folder, "pytorch_model.bin", "runs no code")
    assert not marker.exists()
    (folder / "pytorch_model.bin").unlink()
    refused(folder, "model.safetensors and pytorch_model.bin")


TIED = {
    "crit.out_layers.1.weight": "transformer.word_emb.emb_layers.1.weight",
    "crit.out_projs.2": "transformer.word_emb.emb_projs.2",
    "transformer.layers.1.dec_attn.r_w_bias": "transformer.r_w_bias",
    "transformer.layers.0.dec_attn.r_r_bias": "transformer.r_r_bias",
}


@pytest.mark.parametrize(("copy", "original"), TIED.items(), ids=TIED)
def test_tied_copies_may_be_there_under_either_name(copy: str, original: str, tmp_path: Path) -> None:
    folder = copied(DATA / "shared", tmp_path / "a")
    change_tensors(folder, **{copy: load_file(folder / "model.safetensors")[original]})
    assert_predicts(folder, DATA / "shared")
    change_tensors(folder, **{original: None, "transformer.pos_emb.inv_freq": None})
    assert_predicts(folder, DATA / "shared")


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("transformer.layers.1.dec_attn.r_net.weight", None, ["Missing", "layers.1.attention.position.weight"]),
        ("crit.cluster_weight", None, ["Missing", "softmax.cluster_weight"]),
        ("transformer.layers.2.dec_attn.r_net.weight", torch.zeros(6, 8), ["Unexpected", "layers.2.attention"]),
        ("crit.out_projs.3", torch.zeros(8, 1), ["Unexpected", "projections.3"]),
        ("transformer.layers.0.dec_attn.qkv_net.weight", torch.zeros(17, 8), ["layers.0.attention", "[5, 8]"]),
        ("transformer.r_w_bias", torch.zeros(1, 2, 3), ["content_bias", "[1, 1, 2, 3]"]),
        ("transformer.something", torch.zeros(1), ["Unexpected", "something"]),
    ],
)
def test_a_tensor_that_is_missing_extra_or_of_another_shape_is_named(
    name: str, tensor: Tensor | None, words: list[str], tmp_path: Path
) -> None:
    folder = copied(DATA / "shared", tmp_path / "a")
    change_tensors(folder, **{name: tensor})
    if name == "crit.out_projs.3":  # a projection that no cluster has
        change_tensors(folder, transformer__word_emb__emb_projs__3=tensor)
    refused(folder, *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attn_type": 1}, ["attn_type is 1"]),
        ({"sample_softmax": 10}, ["sample_softmax is 10"]),
        ({"layer_norm_epsilon": 1e-12}, ["layer_norm_epsilon is 1e-12", "1e-05"]),
        ({"ext_len": 3}, ["ext_len is 3"]),
        ({"mem_len": "6"}, ["model.mem_len"]),
        ({"clamp_len": ..., "d_inner": ...}, ["lacks d_inner, clamp_len"]),
        ({"vocab_size": ...}, ["vocab_size is None"]),
        ({"cutoffs": [14, 6]}, ["cutoffs is [14, 6]"]),
        ({"div_val": 9}, ["d_embed is 8", "div_val 9"]),
        ({"tie_projs": [False, True, True, True]}, ["tie_projs is", "3 entries"]),
        ({"dropout": "much"}, ["model.dropout"]),
        ({"model_type": "gpt2"}, ["gpt2", "transfo-xl"]),
    ],
)
def test_a_configuration_that_asks_for_what_is_not_here_is_refused_by_name_and_value(
    change: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    refused(copied(DATA / "shared", tmp_path / "a", **change), *words)


def test_what_older_configurations_call_otherwise_is_understood(tmp_path: Path) -> None:
    old = {"vocab_size": ..., "n_token": 24, "tie_word_embeddings": ..., "tie_weight": False}
    assert_predicts(copied(DATA / "own", tmp_path / "a", **old), DATA / "own")
    for clamp_len in (0, -1, None):
        folder = copied(DATA / "shared", tmp_path / str(clamp_len), clamp_len=clamp_len, mem_len=0)
        assert (load_model(folder).clamp_len, load_model(folder).mem_len) == (None, 0)


def test_lengths_that_were_changed_after_loading_are_the_ones_written(tmp_path: Path) -> None:
    model = load_model(DATA / "one_table")
    model.mem_len, model.clamp_len, model.same_length = 40, None, False
    save_transformers(model, tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.mem_len, loaded.clamp_len, loaded.same_length) == (40, None, False)
    model.clamp_len = 0
    with pytest.raises(UserError, match="clamp_len is 0"):
        save_transformers(model, tmp_path)


def test_a_model_keeps_its_precision_and_only_the_cutoffs_within_its_vocabulary(tmp_path: Path) -> None:
    model = make_model(tiny_model_config(cutoffs=[8, 16, 99], div_val=2), vocab_size=16).bfloat16()
    save_transformers(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == torch.bfloat16
        assert torch.equal(loaded.state_dict()[name], tensor), name
    described = json.loads((tmp_path / "config.json").read_text())
    assert (described["cutoffs"], described["tie_projs"]) == ([8], [False, True])
    assert described["torch_dtype"] == "bfloat16"


# --- vocabularies ---


def attributes(symbols: list[Any], **changes: Any) -> dict[str, Any]:
    """Return what TransfoXLTokenizer's `__dict__` holds, without its own objects."""
    values = {
        "counter": Counter({"the": 3, "cat": 1}),
        "lower_case": False,
        "delimiter": None,
        "idx2sym": symbols,
        "sym2idx": OrderedDict((symbol, number) for number, symbol in enumerate(symbols)),
        "never_split": {"<eos>"},
    }
    return {**values, **changes}


def write_old_torch(value: Any, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def write_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


def write_oldest_pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=0))


WRITERS = [torch.save, write_old_torch, write_pickle, write_oldest_pickle]
Writer = Callable[[Any, Path], None]


def test_what_the_tokenizer_itself_pickled_is_read_without_its_code() -> None:
    """Recorded: it holds objects of sacremoses, tokenizers and transformers beside the words."""
    content = (DATA / "shared" / "vocab.pkl").read_bytes()
    strings = {argument for _, argument, _ in pickletools.genops(content) if isinstance(argument, str)}
    assert {"sacremoses.tokenize", "transformers.tokenization_utils", "re"} <= strings
    before = set(sys.modules)
    vocabulary = load_model(DATA / "shared").vocabulary
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"sacremoses", "transformers"}
    assert vocabulary.kind == "wikitext"
    # the ids that TransfoXLTokenizer gave for it
    expected = [1, 11, 12, 13, 17, 7, 18, 6, 19, 6, 20, 5, 5, 15]
    assert vocabulary.encode("the cat sat on 23,000-year-old 's mat").tolist() == expected


@pytest.mark.parametrize(
    ("symbols", "changes", "expected"),
    [
        (WORDS, {}, {"format": 1, "kind": "wikitext", "symbols": WORDS}),
        (WORDS, {"lower_case": True}, {"format": 1, "kind": "word", "symbols": WORDS, "lower_case": True}),
        (WORDS, {"delimiter": "|"}, None),
        (["<unk>", "<eos>"], {}, None),
    ],
)
@pytest.mark.parametrize("write", WRITERS)
def test_a_pickled_vocabulary_is_one_of_words_or_none(
    write: Writer, symbols: list[str], changes: dict[str, Any], expected: dict[str, Any] | None, tmp_path: Path
) -> None:
    write(attributes(symbols, **changes), tmp_path / "vocab.pkl")
    vocabulary = read_vocabulary(tmp_path / "vocab.pkl")
    assert (vocabulary and vocabulary.to_json()) == expected


@pytest.mark.parametrize("vocabulary", [WordTokenizer(WORDS), CharTokenizer(["a"]), None], ids=["word", "char", "none"])
def test_a_vocabulary_goes_out_and_comes_back(vocabulary: Tokenizer | None, tmp_path: Path) -> None:
    model = make_model(tiny_model_config(), vocab_size=vocabulary.size if vocabulary else 5)
    (tmp_path / "vocab.pkl").write_bytes(b"of the model that was here before")
    model.vocabulary = vocabulary
    save_transformers(model, tmp_path)
    assert (tmp_path / "vocab.pkl").exists() == isinstance(vocabulary, WordTokenizer)
    back = load_model(tmp_path).vocabulary
    assert (back and back.to_json()) == (vocabulary and vocabulary.to_json())
    if isinstance(vocabulary, WordTokenizer):
        content = (tmp_path / "vocab.pkl").read_bytes()
        called = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
        assert not called & {code.name for code, _, _ in pickletools.genops(content)}
        value = pickle.loads(content)
        assert (value["idx2sym"], value["sym2idx"]["cat"], value["unk_idx"]) == (WORDS, 3, 2)
        assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 0


def test_a_vocabulary_that_is_damaged_or_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = copied(DATA / "shared", tmp_path / "a")
    write_pickle(attributes(WORDS), folder / "vocab.pkl")
    refused(folder, "5 symbols", "24")
    number = pickle.dumps({"idx2sym": [*WORDS, 1]})
    for content in (b"", b"{", b"\x80\x04", b"\x80\x04}.", b"PK\x03\x04", b"(((", b"\x80\x04N.", number):
        (folder / "vocab.pkl").write_bytes(content)
        refused(folder, "vocab.pkl")


def careless(path: Path) -> None:
    if zipfile.is_zipfile(path):
        torch.load(path, weights_only=False)
        return
    with path.open("rb") as file:
        if isinstance(pickle.load(file), int):
            torch.load(path, weights_only=False)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("place", ["value", "attribute", "symbol"])
def test_code_hidden_in_a_vocabulary_is_not_run(write: Writer, place: str, tmp_path: Path) -> None:
    path, marker = tmp_path / "vocab.pkl", tmp_path / "it ran"
    hostile = Hostile(marker)
    value = {
        "value": hostile,
        "attribute": attributes(WORDS, moses_tokenizer=hostile),
        "symbol": attributes([*WORDS, hostile]),
    }[place]
    write(value, path)
    careless(path)
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    if place == "attribute":
        vocabulary = read_vocabulary(path)
        assert vocabulary is not None
        assert vocabulary.size == 5
    else:
        with pytest.raises(UserError, match=r"vocab\.pkl"):
            read_vocabulary(path)
    assert not marker.exists()


def test_a_pickle_cannot_change_a_class_that_others_use(tmp_path: Path) -> None:
    """BUILD on a class sets attributes of it: on no class that outlives the file."""
    for name in (b"csacremoses\nX\n", b"ccollections\nCounter\n", b"cbuiltins\nset\n", b"cos\nsystem\n"):
        stream = b"\x80\x02" + name + b"N}X\x04\x00\x00\x00evilK\x01s\x86b."
        (tmp_path / "vocab.pkl").write_bytes(stream)
        with pytest.raises(UserError):
            read_vocabulary(tmp_path / "vocab.pkl")
    assert not any(hasattr(cls, "evil") for cls in (published._Inert, Counter, OrderedDict, dict, set, object))
