"""What texts cost, against evaluation of the same tokens; and which tokens a text has."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.data.laid_out import evaluation_lanes
from tests.model.kinds import INVARIANT, KINDS, RECURRENT, model_of
from tests.model.tiny import V
from transformer_xl.commands.score import TextScore
from transformer_xl.config import EvalConfig
from transformer_xl.data.characters import ByteTokenizer, CharTokenizer, RankedByteTokenizer, SymbolTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import SentenceTokenizer, WordTokenizer
from transformer_xl.errors import UserError
from transformer_xl.inference.evaluate import context_of, read_split
from transformer_xl.inference.score import Scorer, Text, Unit, encode_text, read_texts
from transformer_xl.model.base import Context, LanguageModel

WORDS = WordTokenizer(["<eos>", "<unk>", "the", "cat", "sat", "."])
CHARS = CharTokenizer(["<unk>", " ", "\n", "a", "b", "c", "é"])


def scorer_of(model: LanguageModel, *, start: int | None = 3, reads_on: bool = False, **changes: Any) -> Scorer:
    values = {"segment_len": 5, "mem_len": 7, "clamp_len": None, "same_length": False}
    return Scorer(model, Context(**(values | changes)), start=start, reads_on=reads_on)


def random_ids(length: int, *, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, V, length)


def evaluated(model: LanguageModel, ids: Sequence[int], **changes: Any) -> float:
    """The sum of losses that evaluation in one lane gives for all tokens but the first."""
    values = {"batch_size": 1, "segment_len": 5, "mem_len": 7, "clamp_len": None, "same_length": False, "stride": None}
    lanes = evaluation_lanes(np.array(ids, np.uint8), batch_size=1, split="test")
    score = read_split(model, lanes, context_of(EvalConfig(**(values | changes))), autocast=nullcontext).score
    return score.loss * score.tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mem_len", [0, 7])
@pytest.mark.parametrize("start", [3, None])
def test_a_text_costs_what_evaluation_of_it_alone_says(kind: str, mem_len: int, start: int | None) -> None:
    model, ids = model_of(kind), random_ids(23)
    nats = scorer_of(model, start=start, mem_len=mem_len).read(ids)
    assert len(nats) == len(ids) - (start is None)
    begun = ids.tolist() if start is None else [start, *ids.tolist()]
    assert nats.sum() == pytest.approx(evaluated(model, begun, mem_len=mem_len), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_text_changes_a_score_by_a_bit(kind: str) -> None:
    model = model_of(kind, dtype=torch.float32)
    lengths = [12, 1, 3, 40, 7, 25]
    some = [random_ids(length, seed=length) for length in lengths]
    scorer = scorer_of(model)
    first = [scorer.read(ids) for ids in some]
    for number in random.Random(1).sample(range(len(some)), len(some)):
        assert np.array_equal(scorer.read(some[number]), first[number])
    assert np.array_equal(scorer_of(model).read(some[3]), first[3])


@pytest.mark.parametrize("kind", INVARIANT)
@pytest.mark.parametrize("start", [3, None])
@pytest.mark.parametrize("changes", [{"mem_len": 80}, {"mem_len": 6, "same_length": True}], ids=str)
def test_texts_that_read_on_cost_what_they_cost_together(kind: str, start: int | None, changes: dict[str, Any]) -> None:
    if kind in RECURRENT and "same_length" in changes:
        pytest.skip("a state sees all")
    model, ids = model_of(kind), random_ids(61)
    scorer = scorer_of(model, start=start, reads_on=True, **changes)
    costs = [scorer.read(part) for part in np.split(ids, [1, 1, 9, 10, 40])]
    begun = ids.tolist() if start is None else [start, *ids.tolist()]
    assert [len(nats) for nats in costs] == [int(start is not None), 0, 8, 1, 30, 21]
    together = evaluated(model, begun, segment_len=61, **changes)
    assert sum(nats.sum() for nats in costs) == pytest.approx(together, rel=1e-9)
    alone = scorer_of(model, start=start, **changes).read(ids[10:40])
    assert alone[-29] != pytest.approx(costs[4][1], rel=1e-3)


def test_nothing_is_said_about_nothing_and_nothing_is_nan() -> None:
    scorer = scorer_of(model_of("transformer_xl"), start=None)
    for length in (0, 1):
        score = TextScore(predictions=len(scorer.read(random_ids(length))), tokens=length, text_bytes=length)
        assert score.predictions == 0
        assert score.means == (None, None, None)
    assert len(scorer.read(random_ids(2))) == 1
    two = TextScore(nats=4.0, predictions=2, tokens=4, text_bytes=6)
    assert two.means == pytest.approx((2, 2 / math.log(2) * 4 / 6, math.exp(2)))
    assert TextScore(nats=1.0, predictions=1, tokens=1).means[1] is None  # no text


def test_a_loss_that_is_no_number_is_refused() -> None:
    model = model_of("transformer_xl", tie_weights=False)
    with torch.no_grad():
        model.embedding.weights[0][5] = torch.nan
    with pytest.raises(UserError, match="a loss that is no number"):
        scorer_of(model).read(np.array([0, 1, 2, 3, 4, 4, 5, 6]))


def texts_of(data: bytes, *, unit: Unit) -> list[bytes]:
    return [text.data for text in read_texts(io.BytesIO(data), unit=unit)]


def test_a_file_is_cut_into_lines_or_documents() -> None:
    assert texts_of(b"", unit="line") == []
    lines = [b"one\n", b"\n", b"two\r\n", b"three"]
    assert texts_of(b"".join(lines), unit="line") == lines
    found = list(read_texts(io.BytesIO(b"\n one\ntwo\n \n\nthree\n\n"), unit="document"))
    assert found == [Text(b" one\ntwo\n", 2), Text(b"three\n", 6)]
    assert texts_of(b" \n\n", unit="document") == []
    assert texts_of(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", unit="line") == [b"one\n", b"\xef\xbb\xbftwo"]


def encoded(
    vocabulary: Tokenizer, data: bytes, *, unit: Unit = "line", reads_on: bool = False, has_line_ends: bool = True
) -> list[tuple[list[int], int]]:
    """The ids of each text, and the bytes that they stand for."""
    encode = partial(encode_text, vocabulary, unit=unit, reads_on=reads_on, has_line_ends=has_line_ends)
    found = read_texts(io.BytesIO(data), unit=unit)
    return [(encoded.ids.tolist(), encoded.text_bytes) for encoded in map(encode, found)]


TEXT = b"the cat sat .\n\n the dog\r\nsat"


def test_words_close_every_line_and_begin_after_the_end_of_one() -> None:
    the, cat, sat, stop = 2, 3, 4, 5
    expected = [([the, cat, sat, stop, 0], 14), ([], 0), ([the, 1, 0], 5), ([sat, 0], 4)]
    assert encoded(WORDS, TEXT) == expected
    carried = encoded(WORDS, TEXT, reads_on=True)
    assert [ids for ids, _ in carried] == [[the, cat, sat, stop, 0], [0], [the, 1, 0], [sat, 0]]
    assert [number for ids, _ in carried for number in ids] == WORDS.encode(TEXT.decode() + "\n").tolist()
    assert sum(size for _, size in carried) == len(TEXT) + 1 - len(" dog\r")
    assert encoded(WORDS, TEXT, unit="document") == [([the, cat, sat, stop, 0], 14), ([the, 1, 0, sat, 0], 9)]
    assert WORDS.start == 0


def test_line_ends_part_texts_alone_and_belong_to_the_line_before_where_texts_read_on() -> None:
    data = b"ab\r\n\nc\xc3\xa9"
    assert encoded(ByteTokenizer(), data) == [([97, 98], 2), ([], 0), ([99, 0xC3, 0xA9], 3)]
    assert encoded(CHARS, b"ab\n\nc\xc3\xa9") == [([3, 4], 2), ([], 0), ([5, 6], 3)]
    carried = encoded(ByteTokenizer(), data, reads_on=True)
    assert carried == [([97, 98, 13, 10], 4), ([10], 1), ([99, 0xC3, 0xA9], 3)]
    assert encoded(ByteTokenizer(), data, reads_on=True, has_line_ends=False) == [
        ([97, 98], 2),
        ([], 0),
        ([99, 0xC3, 0xA9], 3),
    ]
    assert encoded(CharTokenizer(["a", "b"]), b"ab\nb\n", reads_on=True) == [([0, 1], 2), ([1], 1)]


def test_a_document_ends_with_its_own_symbol_where_there_is_one() -> None:
    data, ends = b"a\nb\n\n\nc\n", ByteTokenizer(end_of_document=True)
    assert encoded(ends, data, unit="document") == [([97, 10, 98, 256], 3), ([99, 256], 1)]
    assert encoded(ends, data, unit="document", reads_on=True) == [
        ([97, 10, 98, 10, 256], 4),
        ([99, 10, 256], 2),
    ]
    assert encoded(ends, b"a\n") == [([97], 1)]


def test_sentences_share_their_borders_and_numbers_are_no_text() -> None:
    sentences = SentenceTokenizer(["<S>", "<UNK>", "a", "b"])
    assert encoded(sentences, b"a b\nb\n", reads_on=True) == [([2, 3, 0], 4), ([3, 0], 2)]
    assert encoded(SymbolTokenizer(20), b"12 7\t9\n\n1") == [([12, 7, 9], 0), ([], 0), ([1], 0)]


@pytest.mark.parametrize(
    ("vocabulary", "data", "words"),
    [
        (WORDS, b"the\ncat \xe9\n", "line 8 has the byte 0xe9, which is not UTF-8"),
        (RankedByteTokenizer([97, 98]), b"ab\xff", "line 7 holds the byte 0xff, which the vocabulary of 2 bytes lacks"),
        (SymbolTokenizer(8), b"1 8", "line 7: the text holds '8', and symbols are the numbers 0 to 7"),
    ],
    ids=["word", "ranked", "symbol"],
)
def test_what_cannot_be_read_is_named_with_its_line(vocabulary: Tokenizer, data: bytes, words: str) -> None:
    with pytest.raises(UserError, match=f"^{words}"):
        encode_text(vocabulary, Text(data, line=7), unit="line", reads_on=False)
