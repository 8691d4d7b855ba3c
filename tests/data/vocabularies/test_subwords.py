"""Sub-words of tokenizers as they are, and where their texts may be cut."""

from __future__ import annotations

import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from tests.data.vocabularies.tokenizers_of_others import (
    ATOMS,
    SPLITTING,
    byte_level,
    contents,
    like_bert,
    like_llama_2,
    of_whole_pieces,
)
from transformer_xl.data.tokenizer import EOD, SubwordVocabulary, vocabulary_from_json
from transformer_xl.data.vocabularies import subwords
from transformer_xl.errors import UserError

ODD_TEXTS = [
    "",
    "a\r\nb\rc\n\n",
    "tab\tand\x0bmore\x0c",
    "\ufeffbegins with a mark",
    "\U0001f600\U0001f468\u200d\U0001f469 e\u0301 \u00e9 \u4e2d\u6587 \u05d0",
    "nul\x00inside",
    "x" * 1_000_000,
    "lone\rreturn\r",
    ("word " * 20 + "\n") * 3000,
    " " * 3000 + "\n" * 3000,
    " begins and ends with blanks  ",
    "<|endoftext|> </s> <unk> <eod>",
]
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=30).map("".join)


def vocabulary_of(tokenizer: Tokenizer) -> SubwordVocabulary:
    return SubwordVocabulary(contents(tokenizer), end_of_document=None)


KINDS = {name: vocabulary_of(byte_level(splitting)) for name, splitting in SPLITTING.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
def test_any_text_comes_back(text: str, kind: str) -> None:
    vocabulary = KINDS[kind]
    ids = vocabulary.encode(text)
    assert ids.dtype == np.int64
    assert vocabulary.decode(ids) == text
    assert vocabulary.is_lossless(text)


@given(st.lists(TEXTS, max_size=5))
def test_several_texts_at_once_are_those_texts(texts: list[str]) -> None:
    found = KINDS["gpt2"].encode_many(texts)
    assert [ids.tolist() for ids in found] == [KINDS["gpt2"].encode(text).tolist() for text in texts]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200)
@given(text=TEXTS, missing=st.integers(0, 3))
def test_parts_that_are_cut_have_the_ids_of_the_whole(kind: str, text: str, missing: int) -> None:
    vocabulary = KINDS[kind]
    data = text.encode()
    cut = vocabulary.cut(data[: len(data) - missing])
    whole = [*vocabulary.encode(data[:cut].decode()), *vocabulary.encode(data[cut:].decode())]
    assert whole == vocabulary.encode(text).tolist()


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("one two.\nthree\n\n", "one two.\nthree"),
        ("one two three.\r\n\r\n", "one two"),
        ("one\r\n(", "one"),
        ("\u0436\u0438 (\u0436\u0438", "\u0436\u0438"),
        ("\u4ed6\u8bf4\u3002\u5979", "\u4ed6\u8bf4"),
        ("caf\u00e9 .", "caf\u00e9"),
        ("e\u0301 .", ""),
        ("\U0001f600 .", ""),
        ("a.b.c", ""),
        (" word", ""),
        ("", ""),
        ("ab cd" + "." * 20_000, "ab"),
    ],
)
def test_a_text_is_cut_behind_its_last_letter_that_white_space_follows(text: str, cut: str) -> None:
    for kind, vocabulary in KINDS.items():
        assert vocabulary.cut(text.encode()) == len(cut.encode()), kind


def test_tokenizers_that_look_across_every_cut_have_none() -> None:
    text = b"one two three\nfour"
    across, across_stop = byte_level(SPLITTING["gpt2"]), byte_level(SPLITTING["gpt2"])
    across.add_tokens([AddedToken("two three", special=False)])
    across_stop.add_tokens([AddedToken("\u4ed6\u3002", special=False)])
    prefixed = byte_level(ByteLevel(add_prefix_space=True))
    unsplit = byte_level(SPLITTING["gpt2"])
    description = contents(unsplit) | {"pre_tokenizer": None}
    for vocabulary in (
        vocabulary_of(across),
        vocabulary_of(across_stop),
        vocabulary_of(prefixed),
        vocabulary_of(like_llama_2()),
        SubwordVocabulary(description, end_of_document=None),
    ):
        assert vocabulary.cut(text) == 0
    assert vocabulary_of(like_bert()).cut(text) == len("one two three")
    blanks = byte_level(SPLITTING["gpt2"])
    blanks.add_tokens([AddedToken("   ", special=False), AddedToken("two three", special=True)])
    assert vocabulary_of(blanks).cut(text) == len("one two three")


@pytest.mark.parametrize("tokenizer", [byte_level(SPLITTING["cl100k"]), like_llama_2()], ids=["cut", "whole"])
def test_a_long_text_in_parts_has_the_ids_of_the_whole(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The cat's 12 hats, it's\n\n\n  he said: 'No.' \u4ed6\u8bf4\u3002" * 20
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    for size in (1, 7, 100):
        monkeypatch.setattr(subwords, "PART_BYTES", size)
        assert [ids.tolist() for ids in vocabulary_of(tokenizer).encode_many([text, "", text])] == [whole, [], whole]


def test_nothing_is_put_around_a_text_and_nothing_cut_off() -> None:
    vocabulary = vocabulary_of(like_bert())
    assert vocabulary.encode("The cats sat, the cat sat.").tolist() == [4, 5, 6, 7, 8, 4, 5, 7, 9]
    assert vocabulary.encode("[SEP]").tolist() == [1, 1, 1], "signs and letters, unknown ones"
    assert not vocabulary.is_lossless("The cats sat")
    assert vocabulary.is_lossless("the cats sat")


def test_dropout_is_off() -> None:
    described = contents(byte_level(SPLITTING["gpt2"]))
    described["model"]["dropout"] = 0.9
    expected = KINDS["gpt2"].encode("The old cat's hats").tolist()
    assert SubwordVocabulary(described, end_of_document=None).encode("The old cat's hats").tolist() == expected


def test_a_special_token_in_a_text_is_text() -> None:
    vocabulary = vocabulary_of(byte_level(SPLITTING["gpt2"], special=("<|endoftext|>",)))
    ids = KINDS["gpt2"].encode("a<|endoftext|>b").tolist()
    assert vocabulary.encode("a<|endoftext|>b").tolist() == ids
    for again in (copy.deepcopy(vocabulary), pickle.loads(pickle.dumps(vocabulary)), vocabulary.with_end_of_document()):
        assert again.encode("a<|endoftext|>b").tolist() == ids


def test_a_special_token_ends_documents() -> None:
    vocabulary = vocabulary_of(byte_level(SPLITTING["gpt2"], special=("<s>", "</s>", "<|endoftext|>")))
    ending = vocabulary.with_special(["<|nothing|>", "<|endoftext|>", "</s>"])
    assert (ending.end_of_document, ending.size) == (vocabulary.size - 1, vocabulary.size)
    assert ending.with_end_of_document() is ending
    assert vocabulary.end_of_document is None
    assert ending.decode([65, ending.size - 1, 66]) == f"b{EOD}c"
    again = vocabulary_from_json(json.loads(json.dumps(ending.to_json())))
    assert (again.end_of_document, again.hash()) == (ending.end_of_document, ending.hash())


def test_a_token_that_stands_for_its_name_in_a_text_ends_no_document() -> None:
    vocabulary = vocabulary_of(of_whole_pieces())
    assert 1 in vocabulary.encode("a</s>b")
    ending = vocabulary.with_special(["</s>"]).with_end_of_document()
    assert ending.end_of_document == vocabulary.size


def test_ids_that_a_tokenizer_leaves_out_are_counted_and_stand_for_nothing() -> None:
    described = contents(byte_level(SPLITTING["gpt2"]))
    described["model"]["vocab"]["zzz"] = 1000
    vocabulary = SubwordVocabulary(described, end_of_document=None)
    assert vocabulary.size == 1001
    assert vocabulary.decode([64, 990, 65]) == "ab"
    assert vocabulary.symbol(990) == "#990"


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    vocabulary = KINDS["gpt2"]
    unheard = vocabulary.encode("\U0001f9ea")
    assert len(unheard) > 1
    assert vocabulary.decode(unheard[:-1]).startswith("\ufffd")
    assert vocabulary.decode([]) == ""


def test_half_a_character_is_refused() -> None:
    for half in ("\ud800", "\udcff"):
        with pytest.raises(UserError, match=rf"U\+{ord(half):04X} at place 1"):
            KINDS["gpt2"].encode(f"a{half}")


def test_a_text_that_a_tokenizer_cannot_say_is_refused() -> None:
    described = contents(like_bert())
    del described["model"]["vocab"]["[UNK]"]
    described["added_tokens"] = []
    with pytest.raises(UserError, match=r"the tokenizer cannot say the text: .*UNK"):
        SubwordVocabulary(described, end_of_document=None).encode("dog")


def test_subwords_are_shown_as_text_and_parts_of_characters_as_bytes() -> None:
    vocabulary = KINDS["gpt2"].with_end_of_document()
    shown = [vocabulary.symbol(number) for number in vocabulary.encode(" the\u4e0d\n").tolist()]
    assert "".join(shown).startswith("' ")
    assert vocabulary.symbol(vocabulary.encode("a")[0]) == "a"
    assert vocabulary.symbol(vocabulary.encode(" ")[0]) == "' '"
    for byte in (*range(0x80, 0x100), 0x00, 0x0A, 0x7F):
        letters = {number for number in range(256) if vocabulary.symbol(number) == ascii(bytes([byte]))}
        literal = {number for number in range(256) if vocabulary.symbol(number) == ascii(chr(byte))}
        assert len(letters | literal) == 1
    assert vocabulary.symbol(vocabulary.size - 1) == EOD
    assert vocabulary_of(like_bert()).symbol(6) == "##s"
    marked = vocabulary_of(like_llama_2())
    assert len({marked.symbol(number) for number in range(marked.size)}) == marked.size


@pytest.mark.parametrize("end", [-1, 702])
def test_an_end_of_documents_beyond_the_ids_is_refused(end: int) -> None:
    with pytest.raises(UserError, match=f"{end}.*from 0 to 700"):
        SubwordVocabulary(contents(byte_level(SPLITTING["gpt2"])), end_of_document=end)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAA//8="}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
        ("decoder", {"type": "Unheard"}),
        ("added_tokens", [{"content": "a"}]),
        ("added_tokens", "a"),
        ("model", None),
        ("model", {"type": "BPE", "vocab": {"\ud800": 0}, "merges": []}),
        ("model", {"type": "BPE", "vocab": {"a": -1}, "merges": []}),
        ("model", {"type": "Unigram", "vocab": [["a", float("nan")]], "unk_id": 0}),
        ("model", {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}),
    ],
    ids=range(11),
)
def test_a_damaged_tokenizer_is_refused_in_one_line(part: str, value: object) -> None:
    described = KINDS["gpt2"].to_json()
    assert isinstance(described["tokenizer"], dict)
    with pytest.raises(UserError, match=r"^the tokenizer") as caught:
        vocabulary_from_json(described | {"tokenizer": described["tokenizer"] | {part: value}}).encode("a\u00e9")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_holds_it_without_running_code() -> None:
    vocabulary = KINDS["cl100k"].with_end_of_document()
    file = io.BytesIO()
    torch.save(vocabulary.to_json(), file)
    file.seek(0)
    again = vocabulary_from_json(torch.load(file, weights_only=True))
    assert again.hash() == vocabulary.hash()
    assert again.encode("The old cat's hats").tolist() == vocabulary.encode("The old cat's hats").tolist()
