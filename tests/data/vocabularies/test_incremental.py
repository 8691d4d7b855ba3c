"""Ids written one by one, against decoding all of them."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    RankedByteVocabulary,
    SentenceVocabulary,
    SubwordVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
    train_bpe,
)
from transformer_xl.data.vocabularies.incremental import incremental_decoder

TEXTS = ["plain", "Gr\u00fc\u00dfe, \u4e16\u754c!", "\U0001f600\U0001f468\u200d\U0001f469", "\u0645\u0631 \n\n tab\t."]
MOSES = ["<eos>", "<unk>", "<eod>", "the", '"', "'", "'s", "@-@", "@,@", "@.@", "23", "000", ",", ".", "(", ")", "dogs"]
UNREADABLE = "\ufffd"


@cache
def subwords() -> SubwordVocabulary:
    return train_bpe(["the old man and the sea " * 20, "\u4e16\u754c\u4e16\u754c \U0001f600" * 20], size=300)


@cache
def unigrams() -> SubwordVocabulary:
    """As sentencepiece writes: a mark for blanks, and bytes for characters that are no piece."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    pieces += [(piece, -2.0) for piece in ("\u2581", "\u2581the", "a", "b", "\u2581a", "\u2581\u4e16")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return SubwordVocabulary(json.loads(tokenizer.to_str()), end_of_document=None)


VOCABULARIES = {
    "bytes": lambda: ByteVocabulary(end_of_document=True),
    "ranked bytes": lambda: RankedByteVocabulary([*range(255, -1, -1), 256]),
    "characters": lambda: CharVocabulary(["a", "\n", "\U0001f600", "\u4e16", "<unk>", "<eod>"]),
    "words": lambda: WordVocabulary(["<eos>", "<unk>", "<eod>", "a", "\u4e16\u754c"]),
    "words without lines": lambda: WordVocabulary(["<eos>", "<unk>", "a"], line_ends=False),
    "sentences": lambda: SentenceVocabulary(["<S>", "<UNK>", "a", "b"]),
    "wikitext": lambda: WikitextVocabulary(MOSES),
    "symbols": lambda: SymbolVocabulary(12, end_of_document=True),
    "sub-words": lambda: subwords().with_end_of_document(),
    "unigrams": unigrams,
}


def written(vocabulary: Vocabulary, ids: list[int], *, after: list[int]) -> list[str]:
    decoder = incremental_decoder(vocabulary, after=after)
    return [*map(decoder.feed, ids), decoder.rest()]


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_joined_pieces_are_what_decoding_everything_gives(name: str, data: st.DataObject) -> None:
    vocabulary = VOCABULARIES[name]()
    ids = data.draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=30))
    after = data.draw(st.integers(0, len(ids)))
    before, whole = vocabulary.decode(ids[:after]), vocabulary.decode(ids)
    pieces = written(vocabulary, ids[after:], after=ids[:after])
    is_cut = before.endswith(UNREADABLE) or (name == "unigrams" and UNREADABLE in whole)
    if whole.startswith(before) and not is_cut:
        assert "".join(pieces) == whole[len(before) :]


@pytest.mark.parametrize("name", ["bytes", "ranked bytes", "sub-words", "unigrams"])
@pytest.mark.parametrize("text", TEXTS)
def test_no_part_of_a_character_is_written(name: str, text: str) -> None:
    vocabulary = VOCABULARIES[name]()
    ids = vocabulary.encode(text).tolist()
    pieces = written(vocabulary, ids, after=[])
    assert "".join(pieces) == vocabulary.decode(ids)
    assert pieces[-1] == ""
    assert UNREADABLE not in "".join(pieces)


@pytest.mark.parametrize("name", ["bytes", "sub-words", "unigrams"])
def test_a_character_that_is_never_finished_is_written_as_such_at_the_end(name: str) -> None:
    vocabulary = VOCABULARIES[name]()
    known = "" if name == "unigrams" else "a"
    ids = vocabulary.encode(known + "\U0001f600").tolist()
    assert len(ids) > 1
    pieces = written(vocabulary, ids[:-1], after=[])
    if UNREADABLE in vocabulary.decode(ids[:-1]):
        assert UNREADABLE not in "".join(pieces[:-1])
        assert UNREADABLE in pieces[-1]


def test_a_prompt_that_ends_inside_a_character_is_gone_on_with() -> None:
    ids = np.frombuffer("a\u4e16b".encode(), np.uint8).astype(np.int64).tolist()
    for cut in range(len(ids)):
        pieces = written(ByteVocabulary(), ids[cut:], after=ids[:cut])
        assert "".join(pieces) == ("a\u4e16b" if cut < 1 else "\u4e16b" if cut < 4 else "b")


def test_words_are_written_without_waiting_for_their_line() -> None:
    vocabulary = WikitextVocabulary(MOSES)
    ids = [MOSES.index(word) for word in ("the", "dogs", "23", "@,@", "000", ".", "<eos>", "the")]
    assert written(vocabulary, ids, after=[]) == ["", "the", " dogs", " 23", "", ",000", ".\n", "", "the"]


def test_bytes_that_are_no_text_do_not_wait_for_ever() -> None:
    vocabulary = unigrams()
    byte = 1 + 0xFF
    decoder = incremental_decoder(vocabulary, after=[])
    assert any(decoder.feed(byte) for _ in range(40))
