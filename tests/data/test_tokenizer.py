import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.tokenizer import (
    ByteVocabulary,
    CharVocabulary,
    SymbolVocabulary,
    Vocabulary,
    WordVocabulary,
    load_vocabulary,
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
EVERY_KIND: list[Vocabulary] = [ByteVocabulary(), CharVocabulary(["a", "\U0001f600", "\n"]), WORDS, SymbolVocabulary(8)]


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
    with pytest.raises(UserError, match=f"U\\+{ord(character):04X}.* place 2"):
        CharVocabulary(["a", "b"]).encode(f"ab{character}b{character}")


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
    assert [vocabulary.unit for vocabulary in EVERY_KIND] == ["bpc", "bpc", "ppl", "bpc"]
    assert [vocabulary.size for vocabulary in EVERY_KIND] == [256, 3, 4, 8]


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
        '{"format": 1, "kind": "word", "symbols": ["a", "<eos>", "<unk>"]}',
        '{"format": 1, "kind": "word", "symbols": ["<eos>", "a"]}',
        '{"format": 1, "kind": "symbol", "size": true}',
        '{"format": 1, "kind": "symbol", "size": 0}',
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
