"""A corpus encoded with the vocabulary of a trained model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_xl.data import documents as flat
from transformer_xl.data.build import open_corpus
from transformer_xl.data.characters import CharTokenizer, RankedByteTokenizer
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import SentenceTokenizer, WikitextTokenizer, WordTokenizer
from transformer_xl.data_config import PublishedConfig, TextConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import replace

TextConfigs = Callable[..., TextConfig]
PublishedConfigs = Callable[..., PublishedConfig]
TRAIN, VALID, TEST = "b a a b cab\ncab b\n", "a z\n", "a \u00e9\n"


@pytest.fixture
def config(tmp_path: Path, text_config: TextConfigs) -> TextConfig:
    folder = tmp_path / "text"
    folder.mkdir()
    for name, text in (("train.txt", TRAIN), ("valid.txt", VALID), ("test.txt", TEST)):
        (folder / name).write_text(text, encoding="utf-8")
    return text_config(folder)


def opened(
    config: TextConfig | PublishedConfig, vocabulary: Tokenizer | None, *, extend: bool = False
) -> tuple[Corpus, list[str]]:
    lines: list[str] = []
    return open_corpus(config, announce=lines.append, seed=0, vocabulary=vocabulary, extend=extend), lines


def test_the_given_vocabulary_decides(config: TextConfig) -> None:
    vocabulary = WordTokenizer(["<eos>", "cab", "<unk>", "b"])
    found, lines = opened(config, vocabulary)
    assert found.vocabulary.to_json() == vocabulary.to_json()
    assert found.tokens["train"][:].tolist() == [3, 2, 2, 3, 1, 0, 1, 3, 0]
    assert found.unknown == {"train": 2, "valid": 2, "test": 2}
    assert " % of the text's bytes do not come back" in lines[1]
    assert opened(config, vocabulary)[1] == []


def test_every_vocabulary_has_a_folder_of_its_own(config: TextConfig) -> None:
    config = replace(config, tokenizer="char")
    own, _ = opened(config, None)
    assert isinstance(own.vocabulary, CharTokenizer)
    characters = own.vocabulary.symbols
    given: list[tuple[Tokenizer | None, bool]] = [
        (None, False),
        (own.vocabulary, False),
        (own.vocabulary, True),
        (CharTokenizer(characters[::-1]), False),
        (WordTokenizer(["<eos>", "<unk>"]), False),
        (WikitextTokenizer(["<eos>", "<unk>"]), False),
    ]
    folders = [opened(config, vocabulary, extend=extend)[0].folder for vocabulary, extend in given]
    assert len(set(folders)) == len(folders)
    assert [len(opened(config, vocabulary, extend=extend)[1]) for vocabulary, extend in given] == [0] * len(given)


@pytest.mark.parametrize(
    ("vocabulary", "symbol", "place"),
    [
        (CharTokenizer(["a", "b", "c", " ", "\n"]), r"at byte 2 holds 'z' \(U\+007A\)", "valid.txt"),
        (
            CharTokenizer(["a", "b", "c", "z", " ", "\n"]),
            r"at byte 2 holds '\\xe9' \(U\+00E9\)",
            "test.txt",
        ),
        (
            CharTokenizer(["a", "b", "c", "z", " ", "\u00e9"]),
            r"at byte 11 holds '\\n' \(U\+000A\)",
            "train.txt",
        ),
        (RankedByteTokenizer(list(b"abcz \n\xc3")), r"at byte 3 holds the byte 0xa9", "test.txt"),
        (RankedByteTokenizer(list(b"abcz \xc3\xa9")), r"at byte 11 holds the byte 0x0a", "train.txt"),
    ],
)
def test_a_character_that_it_lacks_is_named_with_its_file_and_place(
    vocabulary: Tokenizer, symbol: str, place: str, config: TextConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "WINDOW", 3)
    with pytest.raises(UserError, match=rf"{place}' {symbol}, which the vocabulary of \d+ .*init_vocabulary=extend"):
        opened(config, vocabulary)
    assert [path for path in Path(config.cache_dir).iterdir() if not path.name.startswith(".lock-")] == []
    assert opened(config, vocabulary, extend=True)[0].counts()["train"] == len(TRAIN)


@pytest.mark.parametrize("chunk_bytes", [2, 1 << 20])
def test_dropped_line_ends_are_not_missing(
    chunk_bytes: int, config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "WINDOW", chunk_bytes)
    config = replace(config, newline="drop")
    found, _ = opened(config, CharTokenizer(["a", "b", "c", "z", " ", "\u00e9"]))
    assert found.vocabulary.decode(found.tokens["train"][:]) == TRAIN.replace("\n", "")
    (tmp_path / "text/valid.txt").write_text("a\n\r\n\u00e9\u00e9z\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"valid\.txt' at byte 8 holds 'z'"):
        opened(config, CharTokenizer(["a", "b", "c", " ", "\u00e9"]))
    with pytest.raises(UserError, match=r"valid\.txt' at byte 8 holds the byte 0x7a"):
        opened(config, RankedByteTokenizer(list(b"abc \xc3\xa9")))


def test_characters_are_appended_by_their_frequency_in_all_splits(config: TextConfig) -> None:
    old = CharTokenizer(["q", "a"])
    found, lines = opened(config, old, extend=True)
    assert isinstance(found.vocabulary, CharTokenizer)
    assert found.vocabulary.symbols == ("q", "a", " ", "b", "\n", "c", "z", "\u00e9")
    assert found.vocabulary.decode(found.tokens["test"][:]) == TEST
    assert lines[1] == "data: 6 symbols were added to the 2 of init_from"


@pytest.mark.parametrize("cls", [WordTokenizer, WikitextTokenizer])
def test_words_of_the_training_split_are_appended_by_frequency(
    cls: type[WordTokenizer] | type[WikitextTokenizer], config: TextConfig
) -> None:
    found, _ = opened(config, cls(["<eos>", "a", "<unk>", "q"]), extend=True)
    assert isinstance(found.vocabulary, cls)
    assert found.vocabulary.symbols == ("<eos>", "a", "<unk>", "q", "b", "cab")
    assert found.unknown == {"train": 0, "valid": 1, "test": 1}
    assert found.tokens["test"][:].tolist() == [1, 2, 0]


def test_lower_case_stays_where_words_are_appended(config: TextConfig, tmp_path: Path) -> None:
    (tmp_path / "text/train.txt").write_text("A Dog\n")
    found, _ = opened(config, WordTokenizer(["<eos>", "a", "<unk>"], lower_case=True), extend=True)
    assert isinstance(found.vocabulary, WordTokenizer)
    assert (found.vocabulary.symbols, found.vocabulary.options["lower_case"]) == (("<eos>", "a", "<unk>", "dog"), True)
    assert found.tokens["train"][:].tolist() == [1, 3, 0]


def test_sentences_of_any_text(config: TextConfig) -> None:
    found, _ = opened(config, SentenceTokenizer(["a", "<UNK>", "<S>"]), extend=True)
    assert found.vocabulary.decode(found.tokens["train"][:]) == TRAIN
    assert found.tokens["valid"][:].tolist() == [2, 0, 1, 2]


def test_line_ends_that_a_vocabulary_cannot_leave_out_are_refused(config: TextConfig) -> None:
    with pytest.raises(UserError, match=r"data\.newline is 'drop', and must be 'keep' for a vocabulary of kind wiki"):
        opened(replace(config, newline="drop"), WikitextTokenizer(["<eos>", "<unk>"]))
