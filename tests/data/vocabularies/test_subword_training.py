"""Byte-level BPE learnt from texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.tokenizer import train_bpe, vocabulary_from_json
from transformer_xl.data.vocabularies import subword_training
from transformer_xl.errors import UserError

TEXT = "the cat and the hat, the cat's hat: it's 12 hats.\n\n  \u4ed6\u8bf4\u3002\r\n" * 5


def test_frequent_words_are_learnt() -> None:
    vocabulary = train_bpe([TEXT], size=280)
    assert vocabulary.size == 280
    assert len(vocabulary.encode(" the cat")) == 2
    assert vocabulary.end_of_document is None


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_byte_is_a_symbol_whatever_was_learnt_from(text: str) -> None:
    for vocabulary in (train_bpe([], size=1000), train_bpe([TEXT], size=256)):
        assert vocabulary.size == 256
        assert len(vocabulary.encode(text)) == len(text.encode())
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_the_same_texts_give_the_same_vocabulary() -> None:
    texts = [TEXT[start : start + 10] for start in range(0, len(TEXT), 10)]
    hashes = {train_bpe(iter(texts), size=281).hash() for _ in range(3)}
    assert len(hashes) == 1
    again = vocabulary_from_json(train_bpe(texts, size=281).to_json())
    assert again.hash() in hashes


def test_what_comes_once_is_not_learnt() -> None:
    assert train_bpe(["abcdefgh"], size=1000).size == 256


def test_fewer_symbols_than_bytes_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.bpe_size is 255.*at least 256"):
        train_bpe([TEXT], size=255)


def test_a_mistake_in_the_texts_stays_what_it_is() -> None:
    def texts() -> Iterator[str]:
        yield TEXT
        raise UserError("the file is damaged")

    with pytest.raises(UserError, match=r"^the file is damaged$"):
        train_bpe(texts(), size=300)


@pytest.mark.parametrize("letters", ["ACGT", " ", ".,", "\u4ed6"])
def test_a_text_that_is_one_word_is_learnt_in_short_words(letters: str) -> None:
    text = letters * (10_000 // len(letters))
    parts = list(subword_training._training_parts([text]))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= 256
    assert train_bpe([text], size=260).size == 260


def test_ordinary_text_is_learnt_from_in_parts_that_end_with_words() -> None:
    parts = list(subword_training._training_parts([TEXT * 1000]))
    assert "".join(parts) == TEXT * 1000
    assert len(parts) > 3
    assert max(len(part.encode()) for part in parts) <= subword_training.PART_BYTES
    assert all(part[-1].isalnum() for part in parts[:-1])
