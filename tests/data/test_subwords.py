"""Sub-words of other programs' tokenizers, and learnt here."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.data.tokenizers_of_others import (
    ATOMS,
    SPLITTING,
    byte_level,
    contents,
    learnt,
    like_bert,
)
from tests.interop.hub_server import HubServer, hub_on_this_machine
from transformer_xl.data.subwords import SubwordTokenizer, load_pretrained
from transformer_xl.data.tokenizer import EOD, LearnSettings, Part, tokenizer_from_json
from transformer_xl.errors import UserError

ODD_TEXTS = [
    "",
    "a\r\nb\rc\n\n",
    "\ufefftab\tand\x0bmore\x0c\x00",
    "e\u0301 \U0001f468\u200d\U0001f469 \u05d0",
    "x" * 200_000,
]
ODD_TEXTS += ["x" * 200_000, ("word " * 20 + "\n") * 3000, " " * 3000 + "\n" * 3000, "<|endoftext|> </s> <unk> <eod>"]
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=30).map("".join)
ENDS = " \t\r\n\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
BORDERS = st.text(st.sampled_from(f"aZ9._'-\u00e9\u0301\u4ed6\u3000\U0001f600\u00a0{ENDS}"), max_size=40)
NAME = "someone/small-words"
GPT2 = byte_level(SPLITTING["gpt2"], special=("<|endoftext|>",))
IDS = GPT2.encode("the old hats").ids
TEXT = "the cat and the hat, the cat's hat: it's 12 hats.\n\n  \u4ed6\u8bf4\u3002\r\n" * 5


def tokenizer_of(tokenizer: Tokenizer) -> SubwordTokenizer:
    return SubwordTokenizer(contents(tokenizer), end_of_document=None)


KINDS = {name: tokenizer_of(byte_level(splitting)) for name, splitting in SPLITTING.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_comes_back(kind: str) -> None:
    for text in ODD_TEXTS:
        found = KINDS[kind].encode_part(Part(text.encode()))
        assert KINDS[kind].decode(found.ids) == text
        assert found.text_bytes == len(text.encode())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200)
@given(text=TEXTS, missing=st.integers(0, 3))
def test_parts_that_are_cut_have_the_ids_of_the_whole(kind: str, text: str, missing: int) -> None:
    tokenizer, data = KINDS[kind], text.encode()
    cut = tokenizer.split_point(data[: len(data) - missing])
    whole = [*tokenizer.encode(data[:cut].decode()), *tokenizer.encode(data[cut:].decode())]
    assert whole == tokenizer.encode(text).tolist()


@given(text=BORDERS, missing=st.integers(0, 3), behind=st.sampled_from(["", "." * 5000]))
def test_the_last_border_is_behind_a_letter_that_white_space_follows(text: str, missing: int, behind: str) -> None:
    data = (text + behind).encode()
    data = data[: len(data) - missing]
    whole = data.decode(errors="ignore")
    places = [place for place in range(1, len(whole)) if whole[place - 1].isalnum() and whole[place] in ENDS]
    assert KINDS["gpt2"].split_point(data) == len(whole[: places[-1] if places else 0].encode())


def test_nothing_is_put_around_a_text_and_nothing_cut_off() -> None:
    tokenizer = tokenizer_of(like_bert())
    assert tokenizer.encode("The cats sat, the cat sat.").tolist() == [4, 5, 6, 7, 8, 4, 5, 7, 9]
    found = tokenizer.encode_part(Part(b"the [SEP]"))
    assert (found.ids.tolist(), found.unknown, found.text_bytes) == ([4, 1, 1, 1], 3, 3), "signs and letters, unknown"


def test_what_a_tokenizer_drops_is_not_counted() -> None:
    """Byte-level BPE of ASCII alone, as some programs write it, leaves out what it lacks without a word."""
    described = contents(byte_level(SPLITTING["gpt2"], size=256))
    kept = [name for name in described["model"]["vocab"] if name.isascii() or name in "\u0120\u010a"]
    described["model"] |= {"vocab": {name: number for number, name in enumerate(kept)}, "merges": []}
    tokenizer = SubwordTokenizer(described, end_of_document=None)
    assert tokenizer.encode_part(Part("the \u4ed6\u8bf4 cat".encode())).text_bytes == len("the  cat")


def test_dropout_is_off_and_a_special_token_in_a_text_is_text() -> None:
    described = contents(byte_level(SPLITTING["gpt2"], special=("<|endoftext|>",)))
    described["model"]["dropout"] = 0.9
    tokenizer = SubwordTokenizer(described, end_of_document=None)
    for text in ("The old cat's hats", "a<|endoftext|>b"):
        for again in (tokenizer, copy.deepcopy(tokenizer), tokenizer.with_end_of_document()):
            assert again.encode(text).tolist() == KINDS["gpt2"].encode(text).tolist()


def test_ids_that_a_tokenizer_leaves_out_are_counted_and_stand_for_nothing() -> None:
    described = contents(byte_level(SPLITTING["gpt2"]))
    described["model"]["vocab"]["zzz"] = 1000
    tokenizer = SubwordTokenizer(described, end_of_document=None)
    assert (tokenizer.size, tokenizer.decode([64, 990, 65]), tokenizer.symbol(990)) == (1001, "ab", "#990")


def test_subwords_are_shown_as_text() -> None:
    tokenizer = KINDS["gpt2"].with_end_of_document()
    assert [tokenizer.symbol(tokenizer.encode(text)[0]) for text in ("a", " ", "\n")] == ["a", "' '", r"'\n'"]
    assert "\ufffd" not in "".join(map(tokenizer.symbol, range(tokenizer.size))), "parts of characters by name"
    assert tokenizer_of(like_bert()).symbol(6) == "##s"


def test_what_a_tokenizer_cannot_do_is_said() -> None:
    described = contents(like_bert())
    del described["model"]["vocab"]["[UNK]"]
    described["added_tokens"] = []
    with pytest.raises(UserError, match=r"the tokenizer cannot say the text: .*UNK"):
        SubwordTokenizer(described, end_of_document=None).encode("dog")
    with pytest.raises(UserError, match="has 700 sub-words, and 702 ends"):
        SubwordTokenizer(contents(byte_level(SPLITTING["gpt2"])), end_of_document=702)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
        ("decoder", {"type": "Unheard"}),
        ("added_tokens", "a"),
        ("model", None),
        ("model", {"type": "BPE", "vocab": {"\ud800": 0}, "merges": []}),
    ],
    ids=range(5),
)
def test_a_damaged_tokenizer_is_refused_in_one_line(part: str, value: object) -> None:
    described = KINDS["gpt2"].to_json()
    assert isinstance(described["tokenizer"], dict)
    with pytest.raises(UserError) as caught:
        tokenizer_from_json(described | {"tokenizer": described["tokenizer"] | {part: value}})
    assert "\n" not in str(caught.value)


def test_frequent_words_are_learnt_the_same_from_the_same_texts() -> None:
    tokenizer = learnt([TEXT], size=280)
    assert tokenizer.size == 280
    assert len(tokenizer.encode(" the cat")) == 2
    assert learnt([TEXT], size=280).hash() == tokenizer.hash()
    assert learnt(["abcdefgh"], size=1000).size == learnt([], size=1000).size == 256, "what comes once is not learnt"
    long = learnt(["ACGT" * 20_000], size=1000)
    assert max(len(long.decode([number])) for number in range(long.size)) == 256, "a longer word is cut"


def test_a_mistake_in_the_texts_stays_what_it_is() -> None:
    def parts() -> Iterator[Part]:
        yield Part(TEXT.encode())
        raise UserError("the file is damaged")

    with pytest.raises(UserError, match=r"^the file is damaged$"):
        SubwordTokenizer.learn(parts(), LearnSettings(bpe_size=300))


def refused(name: str, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_pretrained(name)
    assert "\n" not in str(caught.value)
    for word in (name, *words):
        assert word in str(caught.value)


def test_a_file_and_a_folder_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GPT2.save(str(tmp_path / "tokenizer.json"))
    GPT2.save(str(tmp_path / "mine.json"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path), str(tmp_path / "tokenizer.json"), "~/mine.json"):
        tokenizer = load_pretrained(name)
        assert tokenizer.encode("the old hats").tolist() == IDS
        assert (tokenizer.size, tokenizer.end_of_document) == (701, 700)


@pytest.mark.parametrize(
    ("special", "end"),
    [
        (("<s>", "<pad>"), None),
        (("<s>", "</s>"), 701),
        (("<|im_end|>", "<|endoftext|>"), 701),
        (("<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"), 701),
    ],
)
def test_the_end_of_documents_is_a_special_token_that_has_such_a_name(
    special: tuple[str, ...], end: int | None, tmp_path: Path
) -> None:
    byte_level(SPLITTING["gpt2"], special=special).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_pretrained(str(tmp_path))
    assert tokenizer.end_of_document == end
    ending = tokenizer.with_end_of_document()
    assert ending.end_of_document == (700 + len(special) if end is None else end)
    assert ending.decode([65, ending.end_of_document, 66]) == f"b{EOD}c"
    assert tokenizer_from_json(json.loads(json.dumps(ending.to_json()))).end_of_document == ending.end_of_document


@pytest.mark.parametrize("written", ["", "[]", "{}", "[" * 100_000, "#version: 0.2\n", GPT2.to_str()[:-300]])
def test_a_damaged_file_is_named(written: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(written)
    refused(str(tmp_path), "gives no tokenizer.json")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "absent"), "folder/mine.json", "wordpiece"):
        refused(name, "No such file")
    refused("/dev/null/x", "Not a directory")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with the repository `NAME`, which holds a tokenizer and code."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "served"
    folder.mkdir()
    GPT2.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.py").write_text("raise SystemExit('it ran')")
    with hub_on_this_machine(monkeypatch, tmp_path / "hub") as server:
        server.repositories[NAME] = folder
        yield server


def test_a_name_fetches_one_file_and_finds_it_again_when_the_hub_is_gone(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.revisions.add("v2")
    assert load_pretrained(NAME).encode("the old hats").tolist() == IDS
    assert hub.fetched(NAME) == ["tokenizer.json"]
    assert load_pretrained(f"{NAME}@v2").encode("the old hats").tolist() == IDS
    refused(f"{NAME}@v3", "Revision Not Found")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert load_pretrained(NAME).encode("the old hats").tolist() == IDS
    refused("someone/else", "Connection refused")


def test_a_path_goes_before_the_hub(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    GPT2.save(str(tmp_path / NAME / "tokenizer.json"))
    assert load_pretrained(NAME).size == 701
    assert hub.asked == []


def test_what_the_hub_refuses_is_said(hub: HubServer, tmp_path: Path) -> None:
    refused("someone/absent", "Repository Not Found", hub.endpoint)
    (tmp_path / "served" / "tokenizer.json").unlink()
    refused(NAME, "No such file")
