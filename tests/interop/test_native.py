"""Our own folders and checkpoints; what cannot be loaded ends in an error that names the path, and runs no code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer_xl
from tests.conftest import tiny_model_config
from tests.interop.conftest import SYMBOLS, Hostile, checkpoint_of, refused, write_checkpoint
from transformer_xl.data.characters import CharTokenizer
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import (
    CHECKPOINT_FORMAT,
    model_weights,
    parse_saved_model,
    read_checkpoint,
    save_model,
)
from transformer_xl.interop.published import save_transformers
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model_config import ModelConfig
from transformer_xl.settings import plain


def assert_same(loaded: LanguageModel, model: LanguageModel) -> None:
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert list(theirs) == list(ours)
    for name, tensor in ours.items():
        assert theirs[name].dtype == tensor.dtype
        assert torch.equal(theirs[name], tensor), name
    assert loaded.config == model.config
    assert not any(module.training for module in loaded.modules())
    tokens_BT = torch.arange(10).view(2, 5)
    expected = model.eval().log_probs(tokens_BT, model.empty_memory(2)).log_probs_BTV
    assert torch.equal(loaded.log_probs(tokens_BT, loaded.empty_memory(2)).log_probs_BTV, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_saved_model_comes_back_bit_for_bit_with_its_vocabulary(
    model: LanguageModel, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "model"
    transformer_xl.save_model(model.to(dtype), folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "vocabulary.json"}
    loaded = transformer_xl.load_model(str(folder))
    assert_same(loaded, model)
    assert loaded.vocabulary.decode(loaded.vocabulary.encode("täß\n語\0")) == "täß\n語\0"
    tokens_BT = torch.arange(10).view(2, 5)
    loaded.train().nll(tokens_BT, tokens_BT, loaded.empty_memory(2)).nll_BT.sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())
    model.vocabulary = None
    save_model(model, folder)
    assert load_model(folder).vocabulary is None


ATTENTION = {"n_head": 2, "d_head": 8, "d_inner": 32, "dropatt": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "shaw": {**ATTENTION, "pre_norm": False, "max_distance": 5},
    "vaswani": {**ATTENTION, "pre_norm": True},
    "al_rfou": {**ATTENTION, "pre_norm": False, "n_positions": 9},
    "transformer_rope": {**ATTENTION, "rope_base": 10000.0},
    "rnn": {},
    "gru": {},
    "lstm": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_comes_back(kind: str, tmp_path: Path) -> None:
    common = set(ModelConfig.model_fields)
    values = {name: value for name, value in plain(tiny_model_config()).items() if name in common}
    clusters = {"cutoffs": [4, 9], "div_val": 2, "tie_projs": [False, True, False]}
    config = parse_saved_model({**values, **clusters, **KINDS[kind], "kind": kind})
    model = make_model(config, vocab_size=len(SYMBOLS)).eval()
    save_model(model, tmp_path)
    assert_same(load_model(tmp_path), model)
    with pytest.raises(UserError, match="only the published network"):
        save_transformers(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_gives_its_model_and_vocabulary(model: LanguageModel, tmp_path: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state["metric.total"] = torch.zeros(1)
    path = write_checkpoint(tmp_path / "step=7, gut.ckpt", model, state_dict=state)
    assert model_weights(read_checkpoint(path)).keys() == model.state_dict().keys()
    loaded = load_model(path)
    assert_same(loaded, model)
    assert loaded.vocabulary.to_json() == model.vocabulary.to_json()


def test_a_run_folder_gives_its_best_checkpoint_or_the_one_asked_for(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worse = make_model(model.config, vocab_size=model.vocab_size)
    worse.vocabulary = model.vocabulary
    folder, checkpoints = tmp_path / "run", tmp_path / "run" / "checkpoints"
    write_checkpoint(checkpoints / "last.ckpt", worse)
    assert_same(load_model(folder), worse)
    write_checkpoint(checkpoints / "best.ckpt", model)
    assert_same(load_model(folder), model)
    assert_same(load_model(folder, checkpoint="last"), worse)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_same(load_model("~/run"), model)
    (checkpoints / "last.ckpt").unlink()
    with pytest.raises(UserError, match=r"run is not a model.*last\.ckpt"):
        load_model(folder, checkpoint="last")


@pytest.mark.parametrize("archive", [True, False])
def test_code_hidden_in_a_checkpoint_is_refused_and_not_run(
    model: LanguageModel, tmp_path: Path, archive: bool
) -> None:
    path, marker = tmp_path / "last.ckpt", tmp_path / "it ran"
    if archive:
        torch.save(checkpoint_of(model, callbacks=Hostile(marker)), path)
        torch.load(path, weights_only=False)
    else:
        path.write_bytes(pickle.dumps({"format_version": CHECKPOINT_FORMAT, "vocabulary": Hostile(marker)}, protocol=2))
        pickle.loads(path.read_bytes())
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    refused(path)
    assert not marker.exists()


def test_a_checkpoint_cut_off_or_changed_anywhere_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "last.ckpt", model)
    whole = path.read_bytes()
    for length in (0, 1, 2, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path, "damaged")
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    refused(path, "damaged")


OTHERS = [b"Not a checkpoint at all.\n", b"\x80\x02.", b"\x80\x02}q\x00.", b"PK\x03\x04" + bytes(200), bytes(1000)]


@pytest.mark.parametrize("contents", [*OTHERS, b"(((((", b"\x80\x02X\xff\xff\xff\x7f", b"{}\n"], ids=repr)
def test_a_file_of_another_kind_is_refused(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(contents)
    refused(tmp_path / "last.ckpt")


@pytest.mark.parametrize("contents", [[1, 2], {"state_dict": {}}, torch.zeros(3)], ids=["list", "foreign", "tensor"])
def test_a_checkpoint_of_another_program_is_refused(contents: Any, tmp_path: Path) -> None:
    torch.save(contents, tmp_path / "other.ckpt")
    refused(tmp_path / "other.ckpt", "checkpoint format None")


def test_a_checkpoint_that_lacks_a_part_or_has_another_format_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    for part in ("config", "vocabulary", "state_dict"):
        refused(write_checkpoint(tmp_path / "last.ckpt", model, **{part: None}), part)
    path = write_checkpoint(tmp_path / "last.ckpt", model, format_version=CHECKPOINT_FORMAT + 1)
    refused(path, str(CHECKPOINT_FORMAT + 1), "reads 2 and 3")


@pytest.mark.parametrize("change", ["shape", "missing", "unknown"])
def test_weights_that_do_not_fit_are_refused_by_name(model: LanguageModel, tmp_path: Path, change: str) -> None:
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    name = "model.layers.1.attention.query.weight"
    if change == "shape":
        weights[name] = weights[name][:3].clone()
    elif change == "missing":
        del weights[name]
    else:
        weights["model.layers.2.attention.query.weight"] = weights[name].clone()
    refused(write_checkpoint(tmp_path / "last.ckpt", model, state_dict=weights), "query.weight")


def test_a_vocabulary_of_another_size_does_not_fit_its_weights(model: LanguageModel, tmp_path: Path) -> None:
    other = CharTokenizer(list("abc"))
    refused(write_checkpoint(tmp_path / "last.ckpt", model, vocabulary=other.to_json()), "embedding.weights.0")
    save_model(model, tmp_path / "model")
    other.save(tmp_path / "model" / "vocabulary.json")
    refused(tmp_path / "model", "3", str(model.vocab_size))


def test_what_is_no_model_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    refused(tmp_path, "run folder")
    refused(tmp_path / "nowhere", "run folder")
    save_model(model, tmp_path)
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "config.json")


def test_a_saved_folder_cut_off_anywhere_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "vocabulary.json"):
        save_model(model, tmp_path)
        whole = (tmp_path / name).read_bytes()
        for length in (0, 7, 20, len(whole) // 2, len(whole) - 3):
            (tmp_path / name).write_bytes(whole[:length])
            refused(tmp_path)


Change = Callable[[dict[str, Any]], Any]
DESCRIPTIONS: dict[str, Change] = {
    "a list": lambda description: [description],
    "another program's": lambda description: {"model_type": "transfo-xl"},
    "newer": lambda description: {**description, "format_version": 3},
    "no vocab_size": lambda description: {k: v for k, v in description.items() if k != "vocab_size"},
    "no model": lambda description: {k: v for k, v in description.items() if k != "model"},
    "unknown setting": lambda description: {**description, "model": {**description["model"], "ext_len": 0}},
    "setting of a wrong type": lambda description: {**description, "model": {**description["model"], "n_layer": "2"}},
    "too large": lambda description: {**description, "model": {**description["model"], "d_model": 10**30}},
    "another depth": lambda description: {**description, "model": {**description["model"], "n_layer": 3}},
}


@pytest.mark.parametrize("change", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_saved_folder_whose_description_does_not_fit_is_refused(
    model: LanguageModel, tmp_path: Path, change: Change
) -> None:
    save_model(model, tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(change(description)))
    refused(tmp_path)
