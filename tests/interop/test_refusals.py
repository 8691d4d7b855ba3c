"""What cannot be loaded ends in one sentence that names the path, and runs no code."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.checkpoints import checkpoint_of, write_checkpoint
from transformer_xl.data.characters import CharTokenizer
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import CHECKPOINT_FORMAT, save_model
from transformer_xl.model.base import LanguageModel


def refused(path: Path, *words: str) -> None:
    with pytest.raises(UserError, match=re.escape(str(path))) as caught:
        load_model(path)
    for word in words:
        assert word in str(caught.value)


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("archive", [True, False])
def test_code_hidden_in_a_checkpoint_is_refused_and_not_run(
    model: LanguageModel, tmp_path: Path, archive: bool
) -> None:
    path, marker = tmp_path / "last.ckpt", tmp_path / "it ran"
    contents = checkpoint_of(model, callbacks=Hostile(marker))
    if archive:
        torch.save(contents, path)
        torch.load(path, weights_only=False)
    else:
        path.write_bytes(pickle.dumps({"format_version": CHECKPOINT_FORMAT, "vocabulary": Hostile(marker)}, protocol=2))
        pickle.loads(path.read_bytes())
    assert marker.is_dir(), "the attack must work on a careless reader"
    marker.rmdir()
    refused(path)
    assert not marker.exists()


def test_a_checkpoint_cut_off_anywhere_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "last.ckpt", model)
    whole = path.read_bytes()
    for length in (0, 1, 2, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path)


@pytest.mark.parametrize(
    "contents",
    [
        b"Not a checkpoint at all.\n",
        b"\x80\x02.",
        b"\x80\x02}q\x00.",
        b"PK\x03\x04" + bytes(200),
        bytes(1000),
        b"\xff" * 1000,
        b"c" * 100,
        b"(((((",
        b"0.",
        b"\x80\x02K",
        b"\x80\x02X\xff\xff\xff\x7f",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"{}\n",
    ],
    ids=repr,
)
def test_a_file_of_another_kind_is_refused(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.write_bytes(contents)
    refused(path)


@pytest.mark.parametrize("contents", [[1, 2], {"state_dict": {}}, torch.zeros(3)], ids=["list", "foreign", "tensor"])
def test_a_checkpoint_of_another_program_is_refused(contents: Any, tmp_path: Path) -> None:
    torch.save(contents, tmp_path / "other.ckpt")
    refused(tmp_path / "other.ckpt", "format_version")


@pytest.mark.parametrize("missing", ["config", "vocabulary", "state_dict"])
def test_a_checkpoint_that_lacks_a_part_is_refused(model: LanguageModel, tmp_path: Path, missing: str) -> None:
    contents = checkpoint_of(model)
    del contents[missing]
    torch.save(contents, tmp_path / "last.ckpt")
    refused(tmp_path / "last.ckpt", missing)


@pytest.mark.parametrize("version", [CHECKPOINT_FORMAT + 1, 99, None, "1"])
def test_a_checkpoint_of_another_format_is_refused_with_both_versions(
    model: LanguageModel, tmp_path: Path, version: object
) -> None:
    path = write_checkpoint(tmp_path / "last.ckpt", model, format_version=version)
    refused(path, str(version), f"reads {CHECKPOINT_FORMAT}")


@pytest.mark.parametrize("change", ["shape", "missing", "unknown"])
def test_weights_that_do_not_fit_are_refused(model: LanguageModel, tmp_path: Path, change: str) -> None:
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    name = "model.layers.1.attention.query.weight"
    if change == "shape":
        weights[name] = weights[name][:3].clone()
    elif change == "missing":
        del weights[name]
    else:
        weights["model.layers.2.attention.query.weight"] = weights[name].clone()
    path = write_checkpoint(tmp_path / "last.ckpt", model, state_dict=weights)
    refused(path, "query.weight")


def test_a_vocabulary_of_another_size_does_not_fit_its_weights(model: LanguageModel, tmp_path: Path) -> None:
    other = CharTokenizer(list("abc"))
    refused(write_checkpoint(tmp_path / "last.ckpt", model, vocabulary=other.to_json()), "embedding.weights.0")
    save_model(model, tmp_path / "model")
    other.save(tmp_path / "model" / "vocabulary.json")
    refused(tmp_path / "model", "3", str(model.vocab_size))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "run folder")
    refused(tmp_path / "nowhere", "run folder")
    (tmp_path / "checkpoints").mkdir()
    refused(tmp_path, "run folder")


def test_a_saved_folder_cut_off_anywhere_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "vocabulary.json"):
        save_model(model, tmp_path)
        whole = (tmp_path / name).read_bytes()
        for length in (0, 7, 20, len(whole) // 2, len(whole) - 3):
            (tmp_path / name).write_bytes(whole[:length])
            refused(tmp_path)


def test_a_saved_folder_without_its_description_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "config.json")


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda description: [description],
    "another program's": lambda description: {"model_type": "transfo-xl"},
    "newer": lambda description: {**description, "format_version": 3},
    "older": lambda description: {**description, "format_version": 1},
    "no format_version": lambda description: {k: v for k, v in description.items() if k != "format_version"},
    "no vocab_size": lambda description: {k: v for k, v in description.items() if k != "vocab_size"},
    "vocab_size no number": lambda description: {**description, "vocab_size": "many"},
    "no model": lambda description: {k: v for k, v in description.items() if k != "model"},
    "unknown setting": lambda description: {**description, "model": {**description["model"], "ext_len": 0}},
    "setting of a wrong type": lambda description: {**description, "model": {**description["model"], "n_layer": "2"}},
    "another shape": lambda description: {**description, "model": {**description["model"], "d_model": 32}},
    "another depth": lambda description: {**description, "model": {**description["model"], "n_layer": 3}},
}


@pytest.mark.parametrize("change", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_saved_folder_whose_description_does_not_fit_is_refused(
    model: LanguageModel, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    save_model(model, tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(change(description)))
    refused(tmp_path)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("n_layer", 10**9),
        ("n_layer", 0),
        *((name, 10**30) for name in ("d_model", "n_head", "d_head", "d_inner", "d_embed", "mem_len")),
        ("dropout", -1.0),
        ("dropout", 1.5),
        ("dropatt", float("nan")),
        ("init_std", float("inf")),
        ("init_std", -1.0),
        ("div_val", 0),
        ("d_embed", 0),
        ("tie_projs", []),
        ("cutoffs", [5, 5]),
        ("mem_len", -1),
        ("clamp_len", -1),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_at_once(
    model: LanguageModel, tmp_path: Path, setting: str, value: object
) -> None:
    save_model(model, tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    description["model"][setting] = value
    (tmp_path / "config.json").write_text(json.dumps(description))
    refused(tmp_path, f"model.{setting}")


@pytest.mark.parametrize(
    "weights",
    [
        {3: torch.zeros(2)},
        {"model.content_bias": 3},
        {"model.content_bias": [1.0]},
        {"model.content_bias": torch.zeros(2, dtype=torch.complex64)},
        {"model.content_bias": torch.zeros(2, 2).to_sparse()},
    ],
    ids=["a number for a name", "a number", "a list", "complex", "sparse"],
)
@pytest.mark.parametrize("table", ["state_dict", "averaged"])
def test_weights_that_are_no_table_of_tensors_are_refused(
    model: LanguageModel, tmp_path: Path, weights: dict[Any, Any], table: str
) -> None:
    changes = {"state_dict": weights} if table == "state_dict" else {"averaged": {"count": 1, "weights": weights}}
    refused(write_checkpoint(tmp_path / "last.ckpt", model, **changes), "damaged", table)


def test_a_version_that_is_no_number_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    refused(write_checkpoint(tmp_path / "last.ckpt", model, format_version=torch.ones(3)), "format")


def test_a_home_that_there_is_not_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="~nobody-of-that-name/model"):
        load_model("~nobody-of-that-name/model/folder")
