"""A `tokenizer.json` from a file, a folder, and the Hub."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.data.vocabularies.tokenizers_of_others import SPLITTING, byte_level, contents, like_bert, of_whole_pieces
from tests.interop.hub_server import HubServer, serving
from transformer_xl.data.tokenizer import load_tokenizer
from transformer_xl.data.vocabularies import foreign
from transformer_xl.errors import UserError

NAME = "someone/small-words"
GPT2 = byte_level(SPLITTING["gpt2"], special=("<|endoftext|>",))
IDS = GPT2.encode("the old hats").ids


def refused(name: str, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_tokenizer(name)
    assert "\n" not in str(caught.value)
    for word in (name, *words):
        assert word in str(caught.value)


def test_a_file_and_a_folder_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GPT2.save(str(tmp_path / "tokenizer.json"))
    GPT2.save(str(tmp_path / "mine.json"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path), str(tmp_path / "tokenizer.json"), "~/mine.json"):
        vocabulary = load_tokenizer(name)
        assert vocabulary.encode("the old hats").tolist() == IDS
        assert vocabulary.size == vocabulary.with_end_of_document().size == 701
        assert vocabulary.end_of_document == 700


@pytest.mark.parametrize(
    ("special", "end"),
    [
        ((), None),
        (("<s>", "<pad>"), None),
        (("<s>", "</s>"), 701),
        (("<|im_end|>", "<|endoftext|>"), 701),
        (("<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"), 701),
        (("<bos>", "<eos>"), 701),
        (("<|im_start|>", "<|im_end|>"), 701),
    ],
)
def test_the_end_of_documents_is_a_special_token_that_has_such_a_name(
    special: tuple[str, ...], end: int | None, tmp_path: Path
) -> None:
    byte_level(SPLITTING["gpt2"], special=special).save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_tokenizer(str(tmp_path))
    assert vocabulary.end_of_document == end
    assert vocabulary.with_end_of_document().end_of_document == (700 + len(special) if end is None else end)


def test_a_token_that_texts_hold_ends_no_document(tmp_path: Path) -> None:
    of_whole_pieces().save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).end_of_document is None


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        "\x00\xff\xfe",
        "#version: 0.2\nt h\n",
        json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}),
        json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}),
        json.dumps({"model": {"type": "Unheard", "vocab": {}}}),
        GPT2.to_str()[:-300],
        GPT2.to_str().replace('"type":"ByteLevel"', '"type":"Split","pattern":{"Regex":"("}'),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_named(written: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(written, encoding="latin-1", errors="replace")
    refused(str(tmp_path), "tokenizer.json")
    refused(str(tmp_path / "tokenizer.json"), "is no tokenizer.json")


def test_a_tokenizer_that_cannot_say_any_text_is_named(tmp_path: Path) -> None:
    described = contents(like_bert())
    del described["model"]["vocab"]["[UNK]"]
    described["added_tokens"] = [described["added_tokens"][0] | {"content": "</s>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    refused(str(tmp_path), "is no tokenizer.json", "UNK")


def test_a_corpus_is_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_LARGEST_BYTES", 1 << 20)
    (tmp_path / "corpus.txt").write_text("a" * ((1 << 20) + 1))
    refused(str(tmp_path / "corpus.txt"), "it has more than 1 MB")


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "Repository", None)  # nobody is asked
    refused(str(tmp_path), "that folder holds no tokenizer.json")
    refused(str(tmp_path / "absent"), "No such file")
    refused("folder/mine.json", "No such file")
    refused("wordpiece", "No such file")
    refused("/dev/null/x", "Not a directory")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.fixture
def served(hub: HubServer, tmp_path: Path) -> Path:
    """The files of the repository `NAME`."""
    folder = tmp_path / "served"
    folder.mkdir()
    GPT2.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.py").write_text("raise SystemExit('it ran')")
    hub.repositories[NAME] = folder
    return folder


@pytest.mark.usefixtures("served")
def test_a_name_fetches_one_file_and_finds_it_again_when_the_hub_is_gone(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_tokenizer(NAME).encode("the old hats").tolist() == IDS
    assert [line for line in hub.asked if line.startswith("GET")] == [f"GET /{NAME}/resolve/main/tokenizer.json"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert load_tokenizer(NAME).encode("the old hats").tolist() == IDS
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load_tokenizer(NAME).encode("the old hats").tolist() == IDS


def test_a_revision_is_asked_for(hub: HubServer, served: Path) -> None:
    hub.revisions.add("v2")
    assert load_tokenizer(f"{NAME}@v2").encode("the old hats").tolist() == IDS
    refused(f"{NAME}@v3", "no such revision")
    assert served.exists()


def test_a_path_goes_before_the_hub(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    GPT2.save(str(tmp_path / NAME / "tokenizer.json"))
    assert load_tokenizer(NAME).size == 701
    assert hub.asked == []


def test_what_the_hub_refuses_is_said_with_its_address(hub: HubServer, served: Path) -> None:
    refused("someone/absent", "no such repository", hub.endpoint, "HF_ENDPOINT")
    hub.codes[NAME] = "GatedRepo"
    refused(NAME, "gated", hub.endpoint)
    hub.codes.clear()
    (served / "tokenizer.json").unlink()
    refused(NAME, "it has no tokenizer.json", hub.endpoint)


def test_a_hub_that_cannot_be_reached_is_said_at_once(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(NAME, "http://127.0.0.1:9", "cannot be reached", "cache does not hold it")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(NAME, "HF_HUB_OFFLINE is set", "cache does not hold it")
    assert hub.asked == []


def test_a_damaged_file_of_the_hub_is_named(hub: HubServer, served: Path) -> None:
    (served / "tokenizer.json").write_text("<html>")
    refused(NAME, "is no tokenizer.json")
    assert hub.asked


def test_the_library_writes_what_is_loaded() -> None:
    assert Tokenizer.from_str(GPT2.to_str()).encode("the old hats").ids == IDS
