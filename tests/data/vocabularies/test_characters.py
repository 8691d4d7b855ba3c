"""Characters: some of them unknown, and in lower case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.tokenizer import UNK, CharVocabulary, vocabulary_from_json
from transformer_xl.errors import UserError

LETTERS = st.text(st.sampled_from("aA\u03a3\u03c3\u03c2\u0130\u0301.' \n\u4e2d"))
LOWERED = sorted({character for text in map(chr, range(0x4E2E)) for character in text.lower() if len(text) == 1})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_characters_that_are_not_listed_are_unknown_where_there_is_such_a_symbol(place: int) -> None:
    symbols = ["a", "b"]
    symbols.insert(place, UNK)
    looked = CharVocabulary(symbols).look_up("abz\U0001f600a\x00")
    a, b = symbols.index("a"), symbols.index("b")
    assert looked.ids.tolist() == [a, b, place, place, a, place]
    assert looked.unknown == 3
    assert CharVocabulary(symbols).decode(looked.ids) == "ab<unk><unk>a<unk>"


def test_without_such_a_symbol_they_are_found() -> None:
    looked = CharVocabulary(["a", "b"]).look_up("abza")
    assert (looked.ids.tolist(), looked.unknown) == ([0, 1, -1, 0], 1)


def test_the_word_for_unknown_characters_is_characters_in_a_text() -> None:
    assert CharVocabulary(["<", UNK, ">"]).encode(UNK).tolist() == [0, 1, 1, 1, 2]


@given(LETTERS)
def test_lower_case_is_that_of_the_whole_text(text: str) -> None:
    lower = CharVocabulary(LOWERED, lower_case=True)
    assert lower.decode(lower.encode(text)) == text.lower()


@given(LETTERS, LETTERS, st.sampled_from(" \n"))
def test_lower_case_is_the_same_in_parts_that_end_in_white_space(left: str, right: str, blank: str) -> None:
    lower = CharVocabulary(LOWERED, lower_case=True)
    parts = [*lower.encode(left + blank).tolist(), *lower.encode(right).tolist()]
    assert parts == lower.encode(left + blank + right).tolist()


def test_a_missing_character_is_named_with_its_place_in_the_text_as_it_was() -> None:
    lower = CharVocabulary(["i", "\u0307", "a"], lower_case=True)
    assert lower.encode("A\u0130").tolist() == [2, 0, 1], "this letter becomes two"
    with pytest.raises(UserError, match=r"'z' \(U\+007A\) at place 2"):
        lower.encode("\u0130\u0130Za")


def test_lower_case_is_kept_with_the_vocabulary() -> None:
    lower = CharVocabulary([UNK, "a"], lower_case=True)
    again = vocabulary_from_json(lower.to_json())
    assert isinstance(again, CharVocabulary)
    assert again.extended(["b"]).with_end_of_document().encode("ABC").tolist() == [1, 2, 0]
    assert lower.hash() != CharVocabulary([UNK, "a"]).hash()
    assert "lower_case" not in CharVocabulary(["a"]).to_json()


def test_the_end_of_documents_keeps_its_number_in_a_longer_vocabulary() -> None:
    extended = CharVocabulary(["a"]).with_end_of_document().extended(["b"])
    assert (extended.end_of_document, extended.encode("ab").tolist()) == (1, [0, 2])
