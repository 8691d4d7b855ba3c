"""Which files belong to a corpus and its splits: texts, ids, the standard library, the paper's corpora in each form."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_xl.data.corpora import PUBLISHED, published_sources, stdlib_sources, text_sources
from transformer_xl.data.download import WebFile
from transformer_xl.data.files import Cut, Source, Sources, split_of_name
from transformer_xl.data.token_ids import token_sources
from transformer_xl.data_config import PublishedConfig, StdlibConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError

TextConfigs = Callable[..., TextConfig]
PublishedConfigs = Callable[..., PublishedConfig]
TokensConfigs = Callable[..., TokensConfig]
SPLITS = ("train", "valid", "test")
FOLDER = "1-billion-word-language-modeling-benchmark-r13output"
TRAINING = "training-monolingual.tokenized.shuffled"
HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"


def fill(folder: Path, *names: str, data: bytes = b"1 2 3 4 ") -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def found(find: Callable[..., Sources], config: Any) -> Sources:
    return find(config, announce=pytest.fail)


def told(sources: tuple[Source, ...]) -> list[str]:
    """What is told of where texts lie: file, member and column."""
    return ["|".join(filter(None, [one.file.name, one.member, one.field])) for one in sources]


def splits_of(sources: Sources) -> dict[str, list[str]]:
    return {split: told(texts) for split, texts in sources.splits.items()}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("TRAIN.npy", "train"),
        ("training-00001-of-00100", "train"),
        ("train2.txt", "train"),
        ("validation_a.jsonl", "valid"),
        ("val.bin", "valid"),
        ("Dev-1.txt", "valid"),
        ("test.txt.gz", "test"),
        ("train/b/c.txt", "train"),
        ("train-00/test.txt", "train"),
        ("en/test.txt", "test"),
        ("en/train/a.txt", None),
        ("trains.txt", None),
        ("testament.txt", None),
        ("devotion.txt", None),
        ("a.train.txt", None),
    ],
)
def test_the_split_that_a_name_says(name: str, split: str | None) -> None:
    assert split_of_name(name) == split


def test_the_standard_library_by_a_hash_of_each_name(stdlib_config: StdlibConfig) -> None:
    sources = found(stdlib_sources, stdlib_config)
    names = [file.name for file in sources.files]
    assert "asyncio/tasks.py" in names
    assert names == sorted(set(names))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    assert not [name for name in names if skipped & set(name.split("/")[:-1]) or not name.endswith(".py")]
    expected: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in names:
        share = int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) / 16**16
        expected["train" if share < 0.5 else "valid" if share < 0.75 else "test"].append(name)
    assert splits_of(sources) == expected
    assert sources.cut is None


def test_a_library_without_source_is_refused(
    tmp_path: Path, stdlib_config: StdlibConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "lib", "b/test/d.py", "site-packages/e.py", "g.txt")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    with pytest.raises(UserError, match=r"data=stdlib .*lib.* data\.path"):
        found(stdlib_sources, stdlib_config)


def test_a_text_is_cut_unless_its_files_say_their_splits(tmp_path: Path, text_config: TextConfigs) -> None:
    folder = fill(tmp_path / "in", "b.txt", "a/z.jsonl", ".hidden", "test.txt")
    sources = found(text_sources, text_config(folder, valid_fraction=0.25, test_fraction=0.125))
    assert splits_of(sources) == {"train": ["a/z.jsonl|text", "b.txt", "test.txt"]}
    assert (sources.cut, sources.location) == (Cut("fraction", valid=0.25, test=0.125), folder)
    fill(folder, "train.txt", "valid/x.txt")
    sources = found(text_sources, text_config(folder))
    assert splits_of(sources) == {"train": ["train.txt"], "valid": ["valid/x.txt"], "test": ["test.txt"]}
    assert sources.cut is None
    assert [file.name for file in sources.files] == ["train.txt", "valid/x.txt", "test.txt"]
    (note,) = sources.notes
    assert note.startswith("left out, since others are named train*, valid* and test*: 'a/z.jsonl', 'b.txt'")
    by_hash = found(text_sources, text_config(folder, split="hash", documents="record"))
    assert by_hash.cut is not None
    assert by_hash.cut.by == "hash"
    assert len(by_hash.splits["train"]) == 5
    alone = found(text_sources, text_config(folder / "train.txt"))
    assert alone.cut is not None


@pytest.mark.parametrize("split", ["auto", "files"])
def test_a_split_without_files_is_refused(split: str, tmp_path: Path, text_config: TextConfigs) -> None:
    folder = fill(tmp_path / "in", "train.txt", "test.txt")
    expected = r"data\.path is .*begins with valid beside 'train\.txt', 'test\.txt'.*data\.split be fraction or hash"
    with pytest.raises(UserError, match=expected):
        found(text_sources, text_config(folder, split=split))
    with pytest.raises(UserError, match=r"begins with valid or test beside 'train\.txt'"):
        found(text_sources, text_config(folder / "train.txt", split="files"))


@pytest.mark.parametrize("name", ["nosuch", "base64", "rot13", "idna", "utf-7", "a\0b", ""])
def test_an_encoding_that_is_none_of_text_is_refused(name: str, tmp_path: Path, text_config: TextConfigs) -> None:
    with pytest.raises(UserError, match=r"data\.encoding is .*, and must be an encoding of text"):
        found(text_sources, text_config(fill(tmp_path, "a.txt"), encoding=name))


def test_ids_by_the_names_of_their_files(tmp_path: Path, tokens_config: TokensConfigs) -> None:
    folder = fill(tmp_path / "in", "a.npy", "b.bin", "c.jsonl", "d/e.TXT", "v.json")
    config = tokens_config(folder, dtype="uint16", vocab_size=None, vocabulary=str(folder / "v.json"))
    sources = found(token_sources, config)
    formats = [(one.file.name, one.format, one.dtype) for one in sources.splits["train"]]
    assert formats == [
        ("a.npy", ".npy", None),
        ("b.bin", ".bin", "uint16"),
        ("c.jsonl", ".jsonl", None),
        ("d/e.TXT", ".txt", None),
    ]
    assert sources.vocabulary == sources.files[-1]
    fill(folder, "train.txt", "valid.txt", "test.txt")
    (folder / "b.bin").unlink()
    assert splits_of(found(token_sources, tokens_config(folder))) == {split: [f"{split}.txt"] for split in SPLITS}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("a.csv", {}, r"data\.path is '.*in', where 'a\.csv' is none of \.npy, \.bin, "),
        ("a.bin", {}, r"data\.dtype is null, and must say which numbers 'a\.bin' holds: uint8, "),
        ("a.bin", {"dtype": "int64"}, r"data\.dtype is 'int64', .*'a\.bin', whose 6 bytes are no multiple of 8"),
        ("a.txt", {"dtype": "int32"}, r"data\.dtype is 'int32', and must be null where no file is \.bin"),
        ("a.txt", {"path": ""}, r"data\.path is '', and must name"),
        (
            "a.txt",
            {"vocab_size": None, "vocabulary": "none.json"},
            r"data\.vocabulary is 'none\.json', which cannot",
        ),
    ],
)
def test_ids_that_are_none_are_named(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path, tokens_config: TokensConfigs
) -> None:
    folder = fill(tmp_path / "in", name, data=b"123456")
    with pytest.raises(UserError, match=said):
        found(token_sources, tokens_config(**{"path": folder, **changes}))


PLAIN = [
    ("wikitext103", "wiki.{}.tokens"),
    ("wikitext103", "wikitext-103/wiki.{}.tokens"),
    ("wikitext103", "{}.txt"),
    ("wikitext2", "wikitext-2/wiki.{}.tokens"),
    ("ptb", "{}.txt"),
    ("ptb", "ptb.{}.txt"),
    ("ptb", "simple-examples/data/ptb.{}.txt"),
]


@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_a_text_file_per_split(kind: str, name: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    names = [name.format(split) for split in SPLITS]
    fill(tmp_path / kind, *names, "wikitext-103-v1.zip", "simple-examples.tgz")
    sources = found(published_sources, published_config(kind))
    assert splits_of(sources) == {split: [name.format(split)] for split in SPLITS}
    assert [file.name for file in sources.files] == names
    assert (sources.cut, sources.notes, sources.location) == (None, (), (tmp_path / kind).resolve())


@pytest.mark.parametrize(
    ("kind", "name", "member"),
    [
        ("wikitext103", "wikitext-103-v1.zip", "wikitext-103/wiki.{}.tokens"),
        ("wikitext2", "wikitext-2-v1.zip", "wikitext-2/wiki.{}.tokens"),
        ("ptb", "simple-examples.tgz", "simple-examples/data/ptb.{}.txt"),
    ],
)
def test_an_archive_with_a_file_per_split(
    kind: str, name: str, member: str, tmp_path: Path, published_config: PublishedConfigs
) -> None:
    fill(tmp_path / kind, name)
    sources = found(published_sources, published_config(kind))
    assert splits_of(sources) == {split: [f"{name}|{member.format(split)}"] for split in SPLITS}
    assert all(one.limit for texts in sources.splits.values() for one in texts)
    assert [file.name for file in sources.files] == [name]


@pytest.mark.parametrize(
    ("kind", "place", "names", "field"),
    [
        ("wikitext103", "", "train-00000-of-00002 train-00001-of-00002 validation test-00000-of-00001", "text"),
        ("wikitext2", "wikitext-2-v1/", "train-00000-of-00001 validation test", "text"),
        ("text8", "data/", "train-00000-of-00001 validation test", "text"),
        ("ptb", "penn_treebank/", "train/0000 validation/0000 test/0000", "sentence"),
    ],
)
def test_the_hubs_tables(
    kind: str, place: str, names: str, field: str, tmp_path: Path, published_config: PublishedConfigs
) -> None:
    listed = [f"{place}{name}.parquet" for name in names.split()]
    fill(tmp_path / kind, *listed)
    sources = found(published_sources, published_config(kind))
    assert splits_of(sources) == {
        split: [f"{name}|{field}" for name in listed if name.startswith(place + split)] for split in SPLITS
    }
    assert [file.name for file in sources.files] == listed


@pytest.mark.parametrize("kind", ["enwik8", "text8"])
def test_one_text_that_is_cut(kind: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    folder = fill(tmp_path / kind, f"{kind}.zip")
    sources = found(published_sources, published_config(kind))
    assert (splits_of(sources), sources.notes) == ({"train": [f"{kind}.zip|{kind}"]}, ())
    with (folder / kind).open("wb") as file:
        file.truncate(100_000_000)  # a sparse file takes no room
    sources = found(published_sources, published_config(kind))
    assert (splits_of(sources), sources.notes) == ({"train": [kind]}, ()), "a plain file comes before an archive"
    assert sources.cut == Cut("bytes", valid=0.05, test=0.05)
    (folder / kind).write_bytes(b"abc")
    (note,) = found(published_sources, published_config(kind)).notes
    assert note.startswith(f"{kind} has 3 bytes here, and 100,000,000 where it was published; it is cut at")


@pytest.mark.parametrize("below", ["", f"{FOLDER}/"])
def test_sentences_as_unpacked(below: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    training = [f"{below}{TRAINING}/news.en-{number:05}-of-00100" for number in range(100)]
    folder = fill(tmp_path / "lm1b", *training, below + HELD_OUT)
    sources = found(published_sources, published_config("lm1b"))
    held_out = [below + HELD_OUT]
    assert splits_of(sources) == {"train": training[1:], "valid": held_out, "test": held_out}
    assert (len(sources.files), sources.vocabulary) == (100, None)
    (note,) = sources.notes
    assert note.startswith("lm1b's 1b_word_vocab.txt is not here")
    fill(folder, "1b_word_vocab.txt")
    (folder / training[7]).unlink()
    sources = found(published_sources, published_config("lm1b"))
    assert sources.vocabulary == sources.files[-1]
    assert sources.notes == ("lm1b has 98 of its 99 training files here",)


def test_sentences_in_their_archive_or_in_tables(tmp_path: Path, published_config: PublishedConfigs) -> None:
    archive = f"{FOLDER}.tar.gz"
    folder = fill(tmp_path / "lm1b", archive, "1b_word_vocab.txt")
    sources = found(published_sources, published_config("lm1b"))
    members = [f"{archive}|{FOLDER}/{TRAINING}/news.en-{number:05}-of-00100" for number in range(1, 100)]
    held_out = [f"{archive}|{FOLDER}/{HELD_OUT}"]
    assert splits_of(sources) == {"train": members, "valid": held_out, "test": held_out}
    assert [file.name for file in sources.files] == [archive, "1b_word_vocab.txt"]
    (folder / archive).unlink()
    fill(folder, "plain_text/train/0000.parquet", "plain_text/train/0001.parquet", "plain_text/test/0000.parquet")
    sources = found(published_sources, published_config("lm1b"))
    assert [len(texts) for texts in sources.splits.values()] == [2, 1, 1]
    assert "the whole held-out text, of which the published preparation takes the first of 50" in sources.notes[0]


@pytest.mark.parametrize(
    ("kind", "names", "lacking"),
    [
        ("wikitext103", [], "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens"),
        ("wikitext103", ["wiki.train.tokens", "wiki.test.tokens"], "wiki.valid.tokens"),
        ("wikitext2", ["wikitext-2/wiki.train.tokens"], "wikitext-2/wiki.valid.tokens, wikitext-2/wiki.test.tokens"),
        (
            "wikitext103",
            ["train-00001-of-00002.parquet", "test-00000-of-00001.parquet"],
            "train*.parquet, validation*.parquet",
        ),
        ("ptb", ["ptb.train.txt", "train.txt", "valid.txt"], "test.txt"),
        ("enwik8", ["text8"], "enwik8"),
        ("lm1b", [HELD_OUT], f"{TRAINING}/news.en-*-of-00100"),
    ],
)
def test_what_lacks_is_named(
    kind: str, names: list[str], lacking: str, tmp_path: Path, published_config: PublishedConfigs
) -> None:
    folder = fill(tmp_path / kind, *names)
    with pytest.raises(UserError) as refused:
        found(published_sources, published_config(kind))
    assert str(refused.value).startswith(
        f"data.dir is {str(folder)!r}, where {lacking} cannot be found, and must name the folder that holds "
    )


@pytest.mark.parametrize("kind", ["enwik8", "text8"])
def test_a_file_that_is_not_there_or_empty_is_named(
    kind: str, tmp_path: Path, published_config: PublishedConfigs
) -> None:
    for directory, said in (
        (str(tmp_path / "none"), f"which is no folder here, and must name the folder .* file {kind}"),
        ("", r"data\.dir is '', and must name the folder"),
        (
            None,
            rf"data\.download is false and data\.dir is not set, .*where {kind} cannot be found; put its files",
        ),
        (str(fill(tmp_path / "empty", kind, data=b"")), f"where {kind} is empty"),
    ):
        with pytest.raises(UserError, match=said):
            found(published_sources, published_config(kind, dir=directory))


def test_every_corpus_has_two_addresses_and_checksums() -> None:
    for corpus in PUBLISHED.values():
        assert len(corpus.addresses) >= 2
        files = [one for one in (*corpus.addresses, *corpus.words) if isinstance(one, WebFile)]
        assert all(len(file.sha256) == 64 for file in files)
