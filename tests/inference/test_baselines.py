"""What the compressors are given is the text."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from tests.data.made_up import MadeUp
from transformer_xl.data.characters import ByteTokenizer, CharTokenizer, RankedByteTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.inference.evaluate import compressed_bits, unigram_score


def gzip_bits(vocabulary: Tokenizer, ids: list[int]) -> float:
    data = MadeUp(vocabulary=vocabulary, splits={"test": np.array(ids)})
    bits, tokens = compressed_bits(data, max_tokens=10**6)
    return bits["gzip"] * tokens


def of_text(text: bytes) -> int:
    return len(gzip.compress(text, 9)) * 8


NO_UTF8 = b"\xff\xfe caf\xc3" * 20


@pytest.mark.parametrize(
    ("vocabulary", "ids", "text"),
    [
        (ByteTokenizer(), [*NO_UTF8, 0], NO_UTF8),
        (RankedByteTokenizer([98, 97, 200]), [1, 0, 2, 1, 0], b"ab\xc8a"),
        (CharTokenizer(["é", "x"]), [0, 1, 0, 0], "éxé".encode()),
        (WordTokenizer(["<eos>", "<unk>", "one"]), [2, 0, 2, 1, 0, 2], b"one\none <unk>\n"),
    ],
)
def test_the_text_of_all_tokens_but_the_last(vocabulary: Tokenizer, ids: list[int], text: bytes) -> None:
    assert gzip_bits(vocabulary, ids) == pytest.approx(of_text(text))


WITH_END = ByteTokenizer().with_end_of_document()  # 256


def test_the_end_of_a_document_is_no_text_but_a_token() -> None:
    ids = [*b"one", 256, *b"two", 256, 0]
    data = MadeUp(vocabulary=WITH_END, splits={"test": np.array(ids)})
    bits, tokens = compressed_bits(data, max_tokens=10**6)
    assert tokens == 8
    assert bits["gzip"] * tokens == pytest.approx(of_text(b"onetwo"))


def test_unigrams_count_the_end_of_a_document() -> None:
    splits = {"train": np.array([0, 256, 256, 256]), "test": np.array([0, 256, 256])}
    score = unigram_score(MadeUp(vocabulary=WITH_END, splits=splits))
    assert score.tokens == 2
    assert score.loss == pytest.approx(-np.log(4 / 260))
