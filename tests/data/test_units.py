from __future__ import annotations

import math

import numpy as np
import pytest

from tests.data.made_up import MadeUp, made_up
from transformer_xl.data.characters import ByteTokenizer, SymbolTokenizer
from transformer_xl.data.lanes import beside_scores, unit_of
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.scores import Unit


class SubWords(SymbolTokenizer):
    unit = "bpb"


WORDS = WordTokenizer(["<eos>", "<unk>", "one", "two"])


def test_each_split_has_its_own_tokens_a_byte() -> None:
    splits = {"train": np.zeros(8), "valid": np.zeros(6), "test": np.zeros(5)}
    corpus = MadeUp(vocabulary=WORDS, splits=splits, text_bytes={"train": 16, "valid": 24, "test": 50})
    assert {split: unit_of(corpus, split) for split in splits} == {
        "train": Unit(name="ppl", tokens_per_byte=0.5),
        "valid": Unit(name="ppl", tokens_per_byte=0.25),
        "test": Unit(name="ppl", tokens_per_byte=0.1),
    }


@pytest.mark.parametrize(
    ("vocabulary", "name"), [(ByteTokenizer(), "bpc"), (SymbolTokenizer(4), "bpc"), (SubWords(4), "ppl")]
)
def test_what_is_no_text_has_no_bits_a_byte(vocabulary: Tokenizer, name: str) -> None:
    assert unit_of(made_up(vocabulary), "test") == Unit(name=name, tokens_per_byte=None)


def test_an_empty_split_of_a_text_has_no_number_of_bits() -> None:
    splits = {"train": np.zeros(8), "valid": np.zeros(0), "test": np.zeros(0)}
    corpus = MadeUp(vocabulary=SubWords(4), splits=splits, text_bytes={"train": 16, "valid": 0, "test": 0})
    assert unit_of(corpus, "train").of(math.log(2)) == 0.5
    assert math.isnan(unit_of(corpus, "test").of(1.0))


def test_what_stands_beside_scores() -> None:
    assert beside_scores(made_up(WORDS)) == ""
    assert beside_scores(made_up(WORDS, read_as={"newline": "drop"})) == " (newline=drop)"
    assert beside_scores(made_up(WORDS, read_as={"newline": "drop", "errors": "replace"})) == (
        " (newline=drop, errors=replace)"
    )
