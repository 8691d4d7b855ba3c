"""`txl-convert` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.interop.test_transformers_format import DATA
from transformer_xl.commands.convert import run
from transformer_xl.interop.load import load_model


def test_there_and_back_keeps_every_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native, back = tmp_path / "a folder" / "native", tmp_path / "back"
    assert run([str(DATA / "shared"), str(native)]) == 0
    assert {path.name for path in native.iterdir()} == {"config.json", "model.safetensors", "vocabulary.json"}
    assert json.loads((native / "config.json").read_text())["format"] == "transformer_xl"
    assert run([str(native), str(back), "--to", "transformers"]) == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (DATA / "shared", back))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert load_model(back).vocabulary.to_json() == load_model(DATA / "shared").vocabulary.to_json()
    captured = capsys.readouterr()
    parameters = sum(parameter.numel() for parameter in load_model(back).parameters())
    assert f"{parameters:,} parameters, 24 symbols, its wikitext vocabulary" in captured.out
    assert captured.err == ""


def test_a_mistake_ends_in_one_sentence_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("precious")
    for arguments, words in (
        ([str(tmp_path / "nothing"), str(tmp_path / "target")], ["nothing is not a model"]),
        ([str(DATA / "shared"), str(full)], ["full exists"]),
        ([str(DATA / "shared"), str(full / "file")], ["file exists"]),
        ([str(DATA / "shared"), str(full / "file" / "deeper")], ["deeper", "cannot be used"]),
    ):
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        assert all(word in captured.err for word in words)
    assert (full / "file").read_text() == "precious"
    assert not (tmp_path / "target").exists()
