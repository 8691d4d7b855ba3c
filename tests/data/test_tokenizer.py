import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.tokenizer import (
    EOD,
    UNK,
    ByteVocabulary,
    CharVocabulary,
    RankedByteVocabulary,
    SentenceVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WikitextVocabulary,
    WordVocabulary,
    load_vocabulary,
    train_bpe,
    vocabulary_from_json,
)
from transformer_xl.errors import UserError

ODD_TEXTS = [
    "",
    "a\r\nb\rc\n\n",
    "tab\tand\x0bmore\x0c",
    "\ufeffbegins with a mark",
    "\U0001f600 e\u0301 \u00e9 \u4e2d\u6587 \u05d0",
    "nul\x00inside",
    "x" * 100_000,
]
WORDS = WordVocabulary(["<eos>", "the", "cat", "<unk>"])
HASHES = {
    "byte": "cd086bdf",
    "ranked_byte": "b14652c6",
    "char": "f34b1514",
    "word": "ebe10c39",
    "wikitext": "af24221e",
    "sentence": "651490de",
    "symbol": "0e9d96ff",
}
SENTENCES = SentenceVocabulary(["the", "<S>", "cat", "<UNK>"])
EVERY_KIND: list[Vocabulary] = [
    ByteVocabulary(),
    RankedByteVocabulary([0x65, 0xA9, 0xC3, 0x0A]),
    CharVocabulary(["a", "\U0001f600", "\n"]),
    WORDS,
    WikitextVocabulary(["<eos>", "the", "cat", "<unk>"]),
    SENTENCES,
    SymbolVocabulary(8),
    train_bpe(["the cat and the cat"] * 3, size=270),
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_bytes_and_characters_say_any_text(text: str) -> None:
    characters = CharVocabulary(sorted(set(text)) or ["a"])
    assert ByteVocabulary().decode(ByteVocabulary().encode(text)) == text
    assert characters.decode(characters.encode(text)) == text
    assert len(characters.encode(text)) == len(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_ids_are_the_utf8(text: str) -> None:
    assert bytes(ByteVocabulary().encode(text).tolist()) == text.encode()


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert ByteVocabulary().decode([0x61, 0xFF, 0x62]) == "a\ufffdb"


def test_undecodable_bytes_of_a_command_line_stay_the_bytes_they_were() -> None:
    assert ByteVocabulary().encode("a\udcffb").tolist() == [0x61, 0xFF, 0x62]
    with pytest.raises(UserError, match="U\\+D800 at place 1"):
        ByteVocabulary().encode("a\ud800")


@pytest.mark.parametrize("character", ["c", "\u4e2d", "\U0001f600", "\ud800"])
def test_a_missing_character_is_named_with_its_place(character: str) -> None:
    for known in (CharVocabulary(["a", "b"]), CharVocabulary(["a", "b", EOD])):
        with pytest.raises(UserError, match=f"U\\+{ord(character):04X}.* place 2.* only the 2 characters"):
            known.encode(f"ab{character}b{character}")


def test_words_end_lines_with_eos_blank_lines_too() -> None:
    assert WORDS.encode("the cat\n\n the\tcat \r\nthe\rcat").tolist() == [1, 2, 0, 0, 1, 2, 0, 1, 0, 2]


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\u00a0"])
def test_other_separators_part_words_but_end_no_line(separator: str) -> None:
    assert WORDS.encode(f"the{separator}cat\n").tolist() == [1, 2, 0]


def test_case_is_kept_and_unknown_words_become_unk() -> None:
    assert WORDS.encode("The cat <unk>").tolist() == [3, 2, 3]
    looked = WORDS.look_up(["The", "cat", "<unk>"])
    assert (looked.ids.tolist(), looked.unknown) == ([3, 2, 3], 1)


@given(st.lists(st.lists(st.sampled_from(["the", "cat"]))))
def test_words_decode_to_lines_of_words(lines: list[list[str]]) -> None:
    text = "\n".join(" ".join(line) for line in lines)
    assert WORDS.decode(WORDS.encode(text)) == text


def test_symbols_are_numbers() -> None:
    symbols = SymbolVocabulary(8)
    assert symbols.encode("7 0\n3").tolist() == [7, 0, 3]
    assert symbols.decode([7, 0, 3]) == "7 0 3"
    for word in ("8", "-1", "x", "9" * 5000, "\u0663", "\u00b2"):
        with pytest.raises(UserError, match="0 to 7"):
            symbols.encode(f"1 {word}")


def test_scores_have_their_names() -> None:
    assert [vocabulary.unit for vocabulary in EVERY_KIND] == ["bpc"] * 3 + ["ppl"] * 3 + ["bpc", "bpb"]
    assert [vocabulary.size for vocabulary in EVERY_KIND[:-1]] == [256, 4, 3, 4, 4, 4, 8]


def test_numbers_follow_the_frequency_where_symbols_were_counted() -> None:
    assert [vocabulary.kind for vocabulary in EVERY_KIND if not vocabulary.by_frequency] == ["byte", "symbol", "bpe"]


def test_the_hashes_of_former_versions_hold() -> None:
    for vocabulary in EVERY_KIND:
        assert vocabulary.hash()[:8] == HASHES.get(vocabulary.kind, vocabulary.hash()[:8])
    assert WordVocabulary(["<eos>", "the", "<unk>"], lower_case=True).hash()[:8] == "21c229f2"


def test_ranked_bytes_are_the_utf8() -> None:
    ranked = RankedByteVocabulary([0x65, 0xA9, 0xC3, 0x0A])
    assert ranked.encode("e\u00e9\n").tolist() == [0, 2, 1, 3]
    assert ranked.decode([0, 2, 1, 3]) == "e\u00e9\n"
    assert ranked.decode([0, 2]) == "e\ufffd"
    for known in (ranked, ranked.with_end_of_document()):
        with pytest.raises(UserError, match=r"byte 0x61 at place 3.*only the 4 bytes"):
            known.encode("e\u00e9a")


def test_sentences_have_a_mark_on_both_sides() -> None:
    assert SENTENCES.encode("the cat\nthe dog\r\n\n").tolist() == [1, 0, 2, 1, 0, 3, 1, 1]
    assert SENTENCES.encode("the").tolist() == [1, 0], "a prompt stops inside a sentence"
    assert SENTENCES.decode([1, 0, 2, 1, 0, 3, 1]) == "the cat\nthe <UNK>\n"
    assert SENTENCES.decode([2, 1, 0]) == "cat\nthe"


def test_words_in_lower_case_say_so() -> None:
    lower = WordVocabulary(["<eos>", "the", "<unk>"], lower_case=True)
    assert lower.encode("THE the Cat\n").tolist() == [1, 1, 2, 0]
    again = vocabulary_from_json(lower.to_json())
    assert isinstance(again, WordVocabulary)
    assert again.lower_case
    assert lower.hash() != WordVocabulary(lower.symbols).hash()
    assert lower.extended(["cat"]).encode("Cat").tolist() == [3]


@pytest.mark.parametrize("vocabulary", EVERY_KIND, ids=lambda vocabulary: vocabulary.kind)
def test_a_saved_vocabulary_is_the_same(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = load_vocabulary(tmp_path / "vocabulary.json")
    assert type(loaded) is type(vocabulary)
    assert loaded.to_json() == vocabulary.to_json()
    assert loaded.hash() == vocabulary.hash()
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.json"]
    np.testing.assert_array_equal(loaded.encode(loaded.decode([2, 1])), vocabulary.encode(vocabulary.decode([2, 1])))


def test_the_hash_tells_order_and_kind_apart() -> None:
    vocabularies = [*EVERY_KIND, CharVocabulary(["\U0001f600", "a", "\n"]), SymbolVocabulary(9)]
    assert len({vocabulary.hash() for vocabulary in vocabularies}) == len(vocabularies)


@pytest.mark.parametrize("vocabulary", EVERY_KIND, ids=lambda vocabulary: vocabulary.kind)
def test_a_symbol_that_ends_documents_is_the_last_one(vocabulary: Vocabulary) -> None:
    ending = vocabulary.with_end_of_document()
    assert vocabulary.end_of_document is None
    assert ending.end_of_document == vocabulary.size == ending.size - 1
    assert type(ending) is type(vocabulary)
    assert ending.with_end_of_document().hash() == ending.hash() != vocabulary.hash()
    assert ending.symbol(vocabulary.size) == EOD
    again = vocabulary_from_json(json.loads(json.dumps(ending.to_json())))
    assert (again.end_of_document, again.size, again.hash()) == (vocabulary.size, ending.size, ending.hash())
    for known in (vocabulary, ending):
        assert known.decode([1, 2]) == vocabulary.decode([1, 2])
        assert [known.symbol(number) for number in range(3)] == [vocabulary.symbol(number) for number in range(3)]


@pytest.mark.parametrize("vocabulary", EVERY_KIND, ids=lambda vocabulary: vocabulary.kind)
def test_the_end_of_a_document_is_written_and_parts_what_is_around_it(vocabulary: Vocabulary) -> None:
    ending = vocabulary.with_end_of_document()
    ids = [2, vocabulary.size, vocabulary.size, 2]
    assert ending.decode(ids).replace(" ", "") == f"{vocabulary.decode([2])}{EOD}{EOD}{vocabulary.decode([2])}"
    assert ending.decode(np.array(ids)[1:2]).strip() == EOD


@pytest.mark.parametrize("vocabulary", EVERY_KIND, ids=lambda vocabulary: vocabulary.kind)
def test_a_text_says_the_end_of_a_document_only_as_a_word(vocabulary: Vocabulary) -> None:
    text = {"symbol": "7 0", "char": "a\n", "ranked_byte": "e\n"}.get(vocabulary.kind, f"the {EOD} cat{EOD}")
    ids = vocabulary.with_end_of_document().encode(text).tolist()
    assert (vocabulary.size in ids) == (vocabulary.kind in ("word", "sentence"))
    if vocabulary.kind not in ("word", "sentence"):
        assert ids == vocabulary.encode(text).tolist()


def test_symbols_are_shown_on_one_line() -> None:
    shown = [(0x41, "A"), (0x20, "' '"), (0x0A, r"'\n'"), (0x00, r"'\x00'"), (0xE9, r"b'\xe9'"), (256, EOD)]
    for byte, symbol in shown:
        assert ByteVocabulary(end_of_document=True).symbol(byte) == symbol
        assert RankedByteVocabulary([byte, 0x31]).symbol(0) == symbol
    characters = CharVocabulary(["\u4e2d", " ", "\n", "\u0301", "\u200b", UNK])
    symbols = [characters.symbol(number) for number in range(6)]
    assert symbols == ["\u4e2d", "' '", r"'\n'", r"'\u0301'", r"'\u200b'", UNK]
    assert [WORDS.symbol(number) for number in range(4)] == ["<eos>", "the", "cat", "<unk>"]
    assert WordVocabulary(["<eos>", "a\x00", "<unk>"]).symbol(1) == r"'a\x00'"
    assert SymbolVocabulary(8).symbol(7) == "7"
    assert WordVocabulary(["<eos>", "a" * 100_000, "<unk>"]).symbol(1) == "a" * 37 + "..."
    assert len(WordVocabulary(["<eos>", "\U0001f600\u200d" * 100, "<unk>"]).symbol(1)) == 40


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        "\xff",
        '{"format": 1}',
        '{"format": 2, "kind": "byte"}',
        '{"format": 1, "kind": "pickle"}',
        '{"format": 1, "kind": "char"}',
        '{"format": 1, "kind": "char", "symbols": []}',
        '{"format": 1, "kind": "char", "symbols": ["a", 1]}',
        '{"format": 1, "kind": "char", "symbols": ["a", "a"]}',
        '{"format": 1, "kind": "char", "symbols": ["ab"]}',
        '{"format": 1, "kind": "char", "symbols": ["\\ud800"]}',
        '{"format": 1, "kind": "word", "symbols": ["a", "<eos>", "<unk>"]}',
        '{"format": 1, "kind": "word", "symbols": ["<eos>", "a"]}',
        '{"format": 1, "kind": ["char"]}',
        '{"format": 1, "kind": "wikitext", "symbols": ["a", "<eos>", "<unk>"]}',
        '{"format": 1, "kind": "wikitext", "symbols": ["<eos>"]}',
        '{"format": 1, "kind": "sentence", "symbols": ["<S>", "a"]}',
        '{"format": 1, "kind": "sentence", "symbols": ["<UNK>", "a"]}',
        '{"format": 1, "kind": "ranked_byte"}',
        '{"format": 1, "kind": "ranked_byte", "values": []}',
        '{"format": 1, "kind": "ranked_byte", "values": [1, 1]}',
        '{"format": 1, "kind": "ranked_byte", "values": [true, 2]}',
        '{"format": 1, "kind": "ranked_byte", "values": [256, 256]}',
        '{"format": 1, "kind": "ranked_byte", "values": [256]}',
        '{"format": 1, "kind": "ranked_byte", "values": [-1]}',
        '{"format": 1, "kind": "symbol", "size": true}',
        '{"format": 1, "kind": "ranked_byte", "values": [257]}',
        '{"format": 1, "kind": "symbol", "size": 0}',
        '{"format": 1, "kind": "symbol", "size": 1, "end_of_document": true}',
        '{"format": 1, "kind": "byte", "end_of_document": 1}',
        '{"format": 1, "kind": "char", "symbols": ["a", "<eos>"]}',
        '{"format": 1, "kind": "char", "symbols": ["a"], "lower_case": "yes"}',
        '{"format": 1, "kind": "word", "symbols": ["<eos>", "<unk>"], "line_ends": null}',
        '{"format": 1, "kind": "bpe"}',
        '{"format": 1, "kind": "bpe", "tokenizer": {}}',
        '{"format": 1, "kind": "bpe", "tokenizer": {"model": {"type": "BPE", "vocab": {}, "merges": []}}}',
        '{"format": 1, "kind": "bpe", "tokenizer": "pickle"}',
    ],
)
def test_a_malformed_vocabulary_is_named(written: str, tmp_path: Path) -> None:
    (tmp_path / "odd name.json").write_bytes(written.encode("latin-1"))
    with pytest.raises(UserError, match=r"odd name\.json"):
        load_vocabulary(tmp_path / "odd name.json")


def test_a_missing_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent.*No such file"):
        load_vocabulary(tmp_path / "absent")


def test_json_is_plain() -> None:
    for vocabulary in EVERY_KIND:
        assert vocabulary_from_json(json.loads(json.dumps(vocabulary.to_json()))).hash() == vocabulary.hash()
