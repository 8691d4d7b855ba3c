"""Words without line ends, in lower case, with ends of documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.tokenizer import (
    EOD,
    RankedByteVocabulary,
    SentenceVocabulary,
    WikitextVocabulary,
    WordVocabulary,
    split_words,
    vocabulary_from_json,
)

SYMBOLS = ["<eos>", "the", "cat", "<unk>"]
LETTERS = st.text(st.sampled_from("aA\u03a3\u03c3\u0130\u0301.' \n\u00a0"))


def test_line_ends_can_be_blanks_like_others() -> None:
    words = WordVocabulary(SYMBOLS, line_ends=False)
    assert words.encode("the\r\ncat\n\nthe").tolist() == [1, 2, 1]
    assert words.decode([1, 2, 1]) == "the cat the"
    assert words.size == WordVocabulary(SYMBOLS).size


def test_line_ends_are_kept_with_the_vocabulary_only_where_there_are_none() -> None:
    words = WordVocabulary(SYMBOLS, line_ends=False).with_end_of_document().extended(["sat"])
    again = vocabulary_from_json(words.to_json())
    assert isinstance(again, WordVocabulary)
    assert not again.line_ends
    assert again.encode("sat\n").tolist() == [5]
    assert words.to_json()["line_ends"] is False
    assert "line_ends" not in WordVocabulary(SYMBOLS).to_json()
    assert words.hash() != WordVocabulary(words.symbols).hash()


def test_the_end_of_documents_keeps_its_number_in_a_longer_vocabulary() -> None:
    for vocabulary in (WordVocabulary(SYMBOLS), WikitextVocabulary(SYMBOLS), SentenceVocabulary(["<S>", "<UNK>"])):
        ending = vocabulary.with_end_of_document()
        assert ending.extended(["sat"]).end_of_document == vocabulary.size
        assert ending.extended(["sat"]).symbols[-1] == "sat"
    assert RankedByteVocabulary([3]).with_end_of_document().extended([4]).values == (3, 256, 4)


def test_documents_are_parted_in_what_is_decoded() -> None:
    words = WordVocabulary([*SYMBOLS, EOD])
    assert words.decode([1, 2, 0, 4, 1, 2]) == "the cat\n<eod> the cat"
    assert WikitextVocabulary([*SYMBOLS, EOD]).decode([1, 2, 0, 4, 1]) == "the cat\n<eod> the"
    assert RankedByteVocabulary([0x61, 256, 0xC3, 0xA9]).decode([0, 1, 2, 3, 1]) == "a<eod>\u00e9<eod>"


def test_bytes_are_given_as_they_are() -> None:
    ranked = RankedByteVocabulary([0xFF, 256, 0x61])
    assert ranked.bytes_of(np.array([0, 2, 1, 0])) == b"\xffa<eod>\xff"


@given(LETTERS)
def test_lower_case_is_that_of_the_whole_text(text: str) -> None:
    assert split_words(text, lower_case=True, end=None) == text.lower().split()


@given(LETTERS, LETTERS, st.sampled_from(" \n\t\u2028"))
def test_words_in_lower_case_are_the_same_in_parts_that_end_in_white_space(left: str, right: str, blank: str) -> None:
    parts = [word for part in (left + blank, right) for word in split_words(part, lower_case=True)]
    assert parts == split_words(left + blank + right, lower_case=True)
