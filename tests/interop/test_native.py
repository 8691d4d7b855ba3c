from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer_xl
from tests.conftest import tiny_model_config
from tests.interop.checkpoints import write_checkpoint
from tests.interop.conftest import SYMBOLS
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import model_weights, read_checkpoint, save_model
from transformer_xl.interop.transformers_format import save_transformers
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model_config import ModelConfig, parse_model
from transformer_xl.settings import plain


def assert_same(loaded: LanguageModel, model: LanguageModel) -> None:
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert list(theirs) == list(ours)
    for name, tensor in ours.items():
        assert theirs[name].dtype == tensor.dtype
        assert torch.equal(theirs[name], tensor), name
    assert loaded.config == model.config
    assert loaded.vocab_size == model.vocab_size
    assert not any(module.training for module in loaded.modules())
    tokens_BT = torch.arange(10).view(2, 5)
    expected = model.eval().log_probs(tokens_BT, model.empty_memory(2)).log_probs_BTV
    assert torch.equal(loaded.log_probs(tokens_BT, loaded.empty_memory(2)).log_probs_BTV, expected)


def test_a_saved_model_comes_back_bit_for_bit_with_its_vocabulary(model: LanguageModel, tmp_path: Path) -> None:
    transformer_xl.save_model(model, tmp_path / "a" / "model")
    loaded = transformer_xl.load_model(str(tmp_path / "a" / "model"))
    assert_same(loaded, model)
    assert loaded.vocabulary.to_json() == model.vocabulary.to_json()
    assert loaded.vocabulary.decode(loaded.vocabulary.encode("täß\n語\0")) == "täß\n語\0"


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


def of_kind(kind: str, **changes: Any) -> LanguageModel:
    """A model of any kind, with clusters and projections."""
    common = set(ModelConfig.model_fields)
    values = {name: value for name, value in plain(tiny_model_config()).items() if name in common}
    clusters = {"cutoffs": [4, 9], "div_val": 2, "tie_projs": [False, True, False]}
    config = parse_model({**values, **clusters, **KINDS[kind], **changes, "kind": kind})
    return make_model(config, vocab_size=len(SYMBOLS)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_comes_back(kind: str, tmp_path: Path) -> None:
    model = of_kind(kind)
    save_model(model, tmp_path)
    assert_same(load_model(tmp_path), model)
    with pytest.raises(UserError, match="only the published network"):
        save_transformers(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_saved_model_keeps_its_precision(model: LanguageModel, tmp_path: Path, dtype: torch.dtype) -> None:
    save_model(model.to(dtype), tmp_path)
    assert_same(load_model(tmp_path), model)


def test_a_saved_folder_holds_no_pickle_and_no_temporary_file(model: LanguageModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "vocabulary.json"}
    assert json.loads((tmp_path / "config.json").read_text())["model"] == plain(model.config)
    json.loads((tmp_path / "vocabulary.json").read_text())
    header = (tmp_path / "model.safetensors").read_bytes()[8:9]
    assert header == b"{"


def test_a_model_without_a_vocabulary_comes_back_without_one(model: LanguageModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    model.vocabulary = None
    save_model(model, tmp_path)
    assert load_model(tmp_path).vocabulary is None


def test_a_loaded_model_can_be_trained(model: LanguageModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    tokens_BT = torch.arange(10).view(2, 5)
    loaded.train().nll(tokens_BT, tokens_BT, loaded.empty_memory(2)).nll_BT.sum().backward()
    assert all(parameter.grad is not None and not parameter.is_meta for parameter in loaded.parameters())


def test_a_checkpoint_gives_its_model_and_vocabulary(model: LanguageModel, tmp_path: Path) -> None:
    loaded = load_model(write_checkpoint(tmp_path / "step=7, gut.ckpt", model))
    assert_same(loaded, model)
    assert loaded.vocabulary.to_json() == model.vocabulary.to_json()


def test_only_the_networks_weights_are_taken_from_a_checkpoint(model: LanguageModel, tmp_path: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    path = write_checkpoint(tmp_path / "last.ckpt", model, state_dict={**state, "metric.total": torch.zeros(1)})
    assert model_weights(read_checkpoint(path)).keys() == model.state_dict().keys()
    assert_same(load_model(path), model)


def test_a_run_folder_gives_its_best_checkpoint_or_the_one_asked_for(model: LanguageModel, tmp_path: Path) -> None:
    worse = make_model(model.config, vocab_size=model.vocab_size)
    worse.vocabulary = model.vocabulary
    write_checkpoint(tmp_path / "checkpoints" / "best.ckpt", model)
    write_checkpoint(tmp_path / "checkpoints" / "last.ckpt", worse)
    assert_same(load_model(tmp_path), model)
    assert_same(load_model(tmp_path, checkpoint="best"), model)
    assert_same(load_model(tmp_path, checkpoint="last"), worse)


def test_best_falls_back_to_last_but_last_never_to_best(model: LanguageModel, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "young" / "checkpoints" / "last.ckpt", model)
    assert_same(load_model(tmp_path / "young"), model)
    write_checkpoint(tmp_path / "odd" / "checkpoints" / "best.ckpt", model)
    with pytest.raises(UserError, match=r"odd is not a model.*last\.ckpt"):
        load_model(tmp_path / "odd", checkpoint="last")


def test_a_path_below_the_home_folder_is_found(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save_model(model, "~/model")
    assert (tmp_path / "model" / "config.json").is_file()
    assert_same(load_model("~/model"), model)
