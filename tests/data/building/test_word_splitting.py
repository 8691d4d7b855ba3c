"""Words of a chunk's texts, the different ones apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data.building.reading import Reading
from transformer_xl.data.building.word_splitting import split_texts

BLANKS = [chr(code) for code in range(0x110000) if chr(code).isspace()]


@given(
    texts=st.lists(st.text(st.sampled_from([*"abB.\u00e9\U0001f600\x00\u200b", *BLANKS]), max_size=12), min_size=1),
    kind=st.sampled_from(["word", "sentence", "wikitext"]),
    drop_newlines=st.booleans(),
    lower_case=st.booleans(),
    ends=st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_they_are_those_that_a_text_has_alone(
    texts: list[str], kind: str, drop_newlines: bool, lower_case: bool, ends: bool
) -> None:
    reading = Reading(kind=kind, drop_newlines=drop_newlines, lower_case=lower_case)
    alone = [reading.words(text, is_whole=ends or number + 1 < len(texts)) for number, text in enumerate(texts)]
    found = split_texts(reading, texts, ends=ends)
    words = [word for some in alone for word in some]
    assert [found.different[number] for number in found.numbers] == words
    assert found.different == list(dict.fromkeys(words))
    assert found.counts == [words.count(word) for word in found.different]
    assert found.lengths == list(map(len, alone))


@pytest.mark.parametrize("blank", BLANKS)
def test_every_kind_of_white_space_parts_words(blank: str) -> None:
    found = split_texts(Reading(kind="word", drop_newlines=True), [f"a{blank}b"], ends=True)
    assert found.different == f"a{blank}b".split() == ["a", "b"]
