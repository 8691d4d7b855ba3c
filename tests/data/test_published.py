"""The published corpora, from small files of their form."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from transformer_xl.data import build
from transformer_xl.data.build import open_corpus
from transformer_xl.data.characters import RankedByteTokenizer
from transformer_xl.data.corpora import published_sources
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.files import Cut, Sources
from transformer_xl.data.words import SentenceTokenizer, WikitextTokenizer, WordTokenizer
from transformer_xl.data_config import PublishedConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import replace

PublishedConfigs = Callable[..., PublishedConfig]
TRAINING = "training-monolingual.tokenized.shuffled"
HELD_OUT = "heldout-monolingual.tokenized.shuffled"


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.fixture(autouse=True)
def small_files_are_as_published(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "other_figures" not in request.node.name:
        monkeypatch.setattr(build, "deviations", lambda *figures: [])


def opened(config: PublishedConfig) -> tuple[Corpus, list[str]]:
    lines: list[str] = []
    return open_corpus(config, announce=lines.append, seed=0), lines


def found_by(config: PublishedConfig) -> Sources:
    return published_sources(config, announce=pytest.fail)


def text_of(corpus: Corpus, split: str) -> str:
    return corpus.vocabulary.decode(corpus.splits[split])


@pytest.mark.parametrize("kind", ["wikitext103", "wikitext2"])
def test_wikitext_from_its_published_files(kind: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    for split in ("test", "train", "valid"):
        write(tmp_path / kind / f"wiki.{split}.tokens", f" = {split} = \n")
    config = published_config(kind)
    found, lines = opened(config)
    assert {split: text_of(found, split) for split in found.splits} == {
        split: f"= {split} =\n" if split == "train" or kind == "wikitext2" else "= <unk> =\n" for split in found.splits
    }
    assert len(lines) == 2
    assert found.name == kind
    (tmp_path / kind / "wiki.valid.tokens").unlink()
    with pytest.raises(UserError, match=r"data\.dir is .*wiki.*, where wiki\.valid\.tokens cannot be found") as refused:
        found_by(config)
    assert f"the folder that holds {kind}'s wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens" in str(
        refused.value
    )
    write(tmp_path / kind / "wiki.valid.tokens", b"")
    with pytest.raises(UserError, match=r"data\.dir is .*wiki\.valid\.tokens is empty"):
        found_by(config)


def test_words_are_counted_where_the_published_code_counts_them(
    tmp_path: Path, published_config: PublishedConfigs
) -> None:
    symbols = {}
    for kind in ("wikitext103", "wikitext2"):
        for split, text in (("train", "b a <unk> a\n\n"), ("valid", "c b c c\n"), ("test", "B d b\n")):
            write(tmp_path / kind / f"wiki.{split}.tokens", text)
        vocabulary = opened(published_config(kind))[0].vocabulary
        assert isinstance(vocabulary, WordTokenizer)
        assert not vocabulary.options["lower_case"]
        symbols[kind] = vocabulary.symbols
    assert symbols["wikitext103"] == ("<eos>", "a", "b", "<unk>")
    assert symbols["wikitext2"] == ("<eos>", "b", "c", "a", "<unk>", "B", "d")


@pytest.mark.parametrize("name", ["{}.txt", "ptb.{}.txt"])
def test_the_penn_treebank_is_in_lower_case(name: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    for split, text in (("train", " a N <unk> b N \n"), ("valid", " n \n"), ("test", " N c \n")):
        write(tmp_path / "ptb" / name.format(split), text)
    found, _ = opened(published_config("ptb"))
    assert isinstance(found.vocabulary, WordTokenizer)
    assert found.vocabulary.symbols == ("<eos>", "n", "a", "<unk>", "b", "c")
    assert text_of(found, "test") == "n c\n"
    assert found.vocabulary.encode("A N").tolist() == [2, 1]
    assert found.unknown == {"train": 0, "valid": 0, "test": 0}


def test_no_treebank_at_all(published_config: PublishedConfigs) -> None:
    with pytest.raises(UserError, match=r"must name .*ptb's train\.txt, valid\.txt, test\.txt or ptb\.train\.txt, "):
        found_by(published_config("ptb"))


ENWIK8 = ("<page>\u00e9\u6771\n" * 200).encode()


def test_enwik8_is_its_bytes_without_line_ends(tmp_path: Path, published_config: PublishedConfigs) -> None:
    write(tmp_path / "enwik8" / "enwik8", ENWIK8)
    found, lines = opened(published_config("enwik8"))
    assert isinstance(found.vocabulary, RankedByteTokenizer)
    parts = (ENWIK8[: len(ENWIK8) * 90 // 100], ENWIK8[len(ENWIK8) * 90 // 100 : len(ENWIK8) * 95 // 100])
    for split, part in zip(("train", "valid"), parts, strict=True):
        values = np.array(found.vocabulary.values)[found.splits[split]]
        assert bytes(values.tolist()) == part.replace(b"\n", b"")
    assert sum(found.counts().values()) == len(ENWIK8) - 200
    counts = Counter(ENWIK8.replace(b"\n", b""))
    assert list(found.vocabulary.values) == [value for value, _ in counts.most_common()]
    assert found.vocabulary.unit == "bpc"
    assert found.vocabulary.decode(found.vocabulary.encode("\u6771\u00e9")) == "\u6771\u00e9"
    assert lines[1].startswith(
        "data: enwik8 has 2,400 bytes here, and 100,000,000 where it was published; it is cut at"
    )
    assert len(lines) == 3


def test_enwik8_with_line_ends_has_one_symbol_more(tmp_path: Path, published_config: PublishedConfigs) -> None:
    write(tmp_path / "enwik8" / "enwik8", ENWIK8)
    dropped, kept = (opened(published_config("enwik8", newline=newline))[0] for newline in ("drop", "keep"))
    assert kept.vocabulary.size == dropped.vocabulary.size + 1
    assert sum(kept.counts().values()) == len(ENWIK8)
    raw, _ = opened(published_config("enwik8", tokenizer="byte"))
    assert raw.vocabulary.size == 256
    assert raw.counts() == dropped.counts()


def test_bytes_of_a_kind_stand_by_first_occurrence(tmp_path: Path, published_config: PublishedConfigs) -> None:
    write(tmp_path / "enwik8" / "enwik8", b"zay" * 9 + b"\nbc" + b"x" * 9)
    found, _ = opened(published_config("enwik8"))
    assert isinstance(found.vocabulary, RankedByteTokenizer)
    assert bytes(found.vocabulary.values) == b"zayxbc"


def test_the_published_size_is_cut_at_the_published_places(tmp_path: Path, published_config: PublishedConfigs) -> None:
    for kind in ("enwik8", "text8"):
        path = write(tmp_path / kind / kind, b"")
        with path.open("r+b") as file:
            file.truncate(100_000_000)  # a sparse file takes no room
        sources = found_by(published_config(kind))
        assert [origin.file.path for origin in sources.splits["train"]] == [path]
        assert sources.cut == Cut(by="bytes", valid=0.05, test=0.05)
        assert sources.notes == ()


def test_text8_is_letters_and_blanks(tmp_path: Path, published_config: PublishedConfigs) -> None:
    write(tmp_path / "text8" / "text8", b" anarchism originated as a term" * 20 + b"\n")
    found, lines = opened(published_config("text8"))
    assert found.vocabulary.kind == "char"
    assert text_of(found, "train") + text_of(found, "valid") + text_of(found, "test") == (
        " anarchism originated as a term" * 20
    )
    assert found.vocabulary.encode(" a").tolist() == [0, 1]
    assert "text8 has 621 bytes here" in lines[1]


@pytest.mark.parametrize("kind", ["enwik8", "text8"])
def test_a_file_that_is_not_there_is_named(kind: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    with pytest.raises(UserError, match=rf"which is no folder here, and must name the folder .* file {kind}"):
        found_by(published_config(kind))
    (tmp_path / kind).mkdir()
    with pytest.raises(UserError, match=rf"where {kind} cannot be found, and must name the folder .* file {kind}"):
        found_by(published_config(kind))
    write(tmp_path / kind / kind, b"")
    with pytest.raises(UserError, match=rf"where {kind} is empty"):
        found_by(published_config(kind))
    with pytest.raises(UserError, match=r"data\.dir is '', and must name the folder"):
        found_by(published_config(kind, dir=""))
    with pytest.raises(UserError, match=rf"data\.dir is not set, .*where {kind} cannot be found; put its files into"):
        found_by(published_config(kind, dir=None))


@pytest.fixture(params=["", "1-billion-word-language-modeling-benchmark-r13output/"])
def lm1b(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "lm1b" / request.param
    write(root / HELD_OUT / "news.en.heldout-00000-of-00050", "The dog .\nA <UNK> .\n")
    write(root / HELD_OUT / "news.en.heldout-00001-of-00050", "Never read .\n")
    write(root / TRAINING / "news.en-00002-of-00100", "The bird .\n")
    write(root / TRAINING / "news.en-00001-of-00100", "The cat .\nThe cat , and .\n")
    write(root / TRAINING / "news.en-00000-of-00100", "Never read .\n")
    return tmp_path / "lm1b"


def test_sentences_with_the_published_vocabulary(lm1b: Path, published_config: PublishedConfigs) -> None:
    write(lm1b / "1b_word_vocab.txt", "</S> 3\n<S> 9\nThe 5\n. 5\n<UNK> 2\ncat 1\n\nbird 1\ncat 1\n")
    found, lines = opened(published_config("lm1b"))
    assert isinstance(found.vocabulary, SentenceTokenizer)
    assert found.vocabulary.symbols == ("</S>", "<S>", "The", ".", "<UNK>", "cat", "bird")
    assert found.splits["train"].tolist() == [1, 2, 5, 3, 1, 2, 5, 4, 4, 3, 1, 2, 6, 3, 1]
    assert found.splits["valid"].tolist() == found.splits["test"].tolist() == [1, 2, 4, 3, 1, 4, 4, 3, 1]
    assert found.unknown == {"train": 2, "valid": 2, "test": 2}
    assert "now <UNK>: train 2 (13.3 %)" in lines[-1]
    assert lines[1] == "data: lm1b has 2 of its 99 training files here"
    write(lm1b / "1b_word_vocab.txt", "<S> 9\n<UNK> 5\nbird 5\n")
    again, lines = opened(published_config("lm1b"))
    assert len(lines) == 3, "another vocabulary makes another corpus"
    assert again.splits["test"].tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 0]


def test_sentences_with_a_counted_vocabulary(lm1b: Path, published_config: PublishedConfigs) -> None:
    found, lines = opened(published_config("lm1b"))
    assert isinstance(found.vocabulary, SentenceTokenizer)
    assert found.vocabulary.symbols == ("The", ".", "<S>", "cat", ",", "and", "bird", "<UNK>")
    assert text_of(found, "train") == "The cat .\nThe cat , and .\nThe bird .\n"
    assert "the vocabulary is counted" in lines[2]


def test_a_vocabulary_file_that_is_none_is_named(lm1b: Path, published_config: PublishedConfigs) -> None:
    for data in (b"the 5\n", b"\n", b"\xff\xfe", b"<S>\n"):
        write(lm1b / "1b_word_vocab.txt", data)
        with pytest.raises(UserError, match=r"1b_word_vocab\.txt' is not a list of words"):
            opened(published_config("lm1b"))


def test_sentences_that_are_not_there_are_named(lm1b: Path, published_config: PublishedConfigs) -> None:
    for part in lm1b.rglob("news.en-0000[12]*"):
        part.unlink()
    with pytest.raises(UserError, match=rf"{TRAINING}/news\.en-\*-of-00100 cannot be found, and must name"):
        found_by(published_config("lm1b"))
    with pytest.raises(UserError, match=r"no folder here, and must name .*heldout-00000-of-00050"):
        found_by(published_config("lm1b", dir="/dev/null"))


def test_a_split_vocabulary_reads_published_words_as_they_stand(
    tmp_path: Path, published_config: PublishedConfigs
) -> None:
    for split in ("train", "valid", "test"):
        write(tmp_path / "wikitext103" / f"wiki.{split}.tokens", " = 1 @,@ 000 's = \n")
    vocabulary = WikitextTokenizer(["<eos>", "=", "1", "@,@", "000", "<unk>", "'s"])
    found = open_corpus(published_config("wikitext103"), announce=lambda line: None, seed=0, vocabulary=vocabulary)
    assert found.splits["train"].tolist() == [1, 2, 3, 4, 6, 1, 0]
    assert found.unknown["train"] == 0


@pytest.mark.parametrize("kind", ["wikitext103", "wikitext2", "ptb", "enwik8", "text8", "lm1b"])
def test_only_what_the_files_allow_may_be_set(kind: str, published_config: PublishedConfigs) -> None:
    config = published_config(kind)
    words = kind in ("wikitext103", "wikitext2", "ptb")
    allowed = ["word"] if kind == "lm1b" else ["byte", "char", "word"] if words else ["byte", "char"]
    for tokenizer in ("byte", "char", "word", "wikitext"):
        with nullcontext() if tokenizer in allowed else pytest.raises(UserError, match=f"tokenizer is {tokenizer!r}"):
            replace(config, tokenizer=tokenizer, newline="keep")


def test_other_figures_than_the_papers_are_said_and_not_refused(
    tmp_path: Path, published_config: PublishedConfigs
) -> None:
    for split in ("train", "valid", "test"):
        write(tmp_path / f"ptb/ptb.{split}.txt", "no it was n't\n")
    found, lines = opened(published_config("ptb"))
    assert found.counts() == {"train": 5, "valid": 5, "test": 5}
    assert "data: ptb has 5 training tokens here, and 929,589 where it was published" in lines
    tokens, _ = opened(published_config("ptb", tokenizer="byte"))
    assert tokens.counts()["train"] == 14
