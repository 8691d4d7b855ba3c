"""Models by name, from a Hub on this machine that logs what it is asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from tests.interop.hub_server import COMMIT, HubServer, hub_on_this_machine
from tests.interop.test_transformers_format import DATA
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import save_model

NAME = "someone/small-model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.chdir(tmp_path)
    with hub_on_this_machine(monkeypatch, tmp_path / "hub") as server:
        yield server


@pytest.fixture
def folder(hub: HubServer, tmp_path: Path) -> Path:
    """The files of the repository `NAME`, with some that no model needs."""
    shutil.copytree(DATA / "shared", tmp_path / "served")
    (tmp_path / "served" / "README.md").write_text("A model.")
    (tmp_path / "served" / "training.py").write_text("raise SystemExit('it ran')")
    hub.repositories[NAME] = tmp_path / "served"
    return tmp_path / "served"


def refused(name: str, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    for word in (name, *words):
        assert word in str(caught.value)


def test_a_name_fetches_configuration_weights_and_vocabulary_and_nothing_else(hub: HubServer, folder: Path) -> None:
    model = load_model(NAME)
    assert sorted(hub.fetched(NAME)) == ["config.json", "model.safetensors", "vocab.pkl"]
    assert model.vocabulary.size == 24
    expected = load_model(folder)
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_second_load_fetches_nothing_again_and_pytorch_model_bin_will_do(hub: HubServer, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    load_model(NAME)
    assert sorted(hub.fetched(NAME)) == ["config.json", "pytorch_model.bin", "vocab.pkl"]
    hub.asked.clear()
    load_model(NAME)
    assert hub.fetched(NAME) == []


def test_a_folder_of_ours_works_from_the_hub_too(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path / "ours")
    hub.repositories[NAME] = tmp_path / "ours"
    assert load_model(NAME).vocabulary.kind == "wikitext"
    assert sorted(hub.fetched(NAME)) == ["config.json", "model.safetensors", "vocabulary.json"]


def test_a_revision_is_asked_for(hub: HubServer, folder: Path) -> None:
    hub.revisions = {"v1.0", COMMIT}
    load_model(f"{NAME}@v1.0")
    load_model(f"{NAME}@{COMMIT}")
    refused(f"{NAME}@v2", "Revision Not Found")


def test_a_path_that_exists_wins_over_a_name(hub: HubServer, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(DATA / "own", tmp_path / NAME)
    assert load_model(NAME).config.tie_weights is False
    for path in ("runs/last.ckpt", "a/b/c", "model", "/a/b", "~/b", "a/model.pt", "a b/c", "../b"):
        with pytest.raises(UserError, match="is not a model"):
            load_model(path)
    assert hub.asked == []


def test_a_repository_that_is_not_there_is_gated_or_holds_no_model_is_said(hub: HubServer, folder: Path) -> None:
    refused("someone/else", "Repository Not Found", hub.endpoint)
    hub.codes[NAME] = "GatedRepo"
    refused(NAME, "gated")
    hub.codes.clear()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"lacks model\.safetensors and pytorch_model\.bin"):
        load_model(NAME)


def test_the_cache_serves_where_the_hub_does_not(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_model(NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert load_model(NAME).vocabulary.size == 24
    refused("someone/else", "Connection refused")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_model(NAME).vocabulary.size == 24
    refused("someone/else", "HF_HUB_OFFLINE")
