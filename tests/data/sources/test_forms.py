"""Each corpus found in each of the forms in which people have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_xl.data.sources.files import Cut, Origin, Sources
from transformer_xl.data.sources.published import published_sources
from transformer_xl.data_config import PublishedConfig
from transformer_xl.errors import UserError

PublishedConfigs = Callable[..., PublishedConfig]
FOLDER = "1-billion-word-language-modeling-benchmark-r13output"
TRAINING = "training-monolingual.tokenized.shuffled"
HELD_OUT = "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"
CUT = Cut(by="bytes", valid=0.05, test=0.05)


def fill(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def silent(line: str) -> None:
    raise AssertionError(line)


def found(config: PublishedConfig) -> Sources:
    return published_sources(config, announce=silent)


def told(origins: tuple[Origin, ...]) -> list[str]:
    """What is told of where a text lies: its file, member and column."""
    return [
        "|".join([origin.file.name, *filter(None, [origin.member, origin.field])])
        + ("" if origin.format == "text" else f"|{origin.format}")
        for origin in origins
    ]


PLAIN = [
    ("wikitext103", "wiki.{}.tokens"),
    ("wikitext103", "wikitext-103/wiki.{}.tokens"),
    ("wikitext103", "{}.txt"),
    ("wikitext2", "wiki.{}.tokens"),
    ("wikitext2", "wikitext-2/wiki.{}.tokens"),
    ("ptb", "{}.txt"),
    ("ptb", "ptb.{}.txt"),
    ("ptb", "data/ptb.{}.txt"),
    ("ptb", "simple-examples/data/ptb.{}.txt"),
]


@pytest.mark.parametrize(("kind", "name"), PLAIN)
def test_a_text_file_a_split(kind: str, name: str, tmp_path: Path, config_of: PublishedConfigs) -> None:
    fill(tmp_path / "in", [name.format(split) for split in ("train", "valid", "test")])
    sources = found(config_of(kind, dir=str(tmp_path / "in")))
    assert {split: told(origins) for split, origins in sources.splits.items()} == {
        split: [name.format(split)] for split in ("train", "valid", "test")
    }
    assert [file.name for file in sources.files] == [name.format(split) for split in ("train", "valid", "test")]
    assert (sources.whole, sources.cut, sources.notes) == ((), None, ())
    assert sources.location == (tmp_path / "in").resolve()


@pytest.mark.parametrize(
    ("kind", "name", "member"),
    [
        ("wikitext103", "wikitext-103-v1.zip", "wikitext-103/wiki.{}.tokens"),
        ("wikitext2", "wikitext-2-v1.zip", "wikitext-2/wiki.{}.tokens"),
        ("ptb", "simple-examples.tgz", "simple-examples/data/ptb.{}.txt"),
    ],
)
def test_an_archive_with_a_file_a_split(
    kind: str, name: str, member: str, tmp_path: Path, config_of: PublishedConfigs
) -> None:
    fill(tmp_path / "in", [name])
    sources = found(config_of(kind, dir=str(tmp_path / "in")))
    assert {split: told(origins) for split, origins in sources.splits.items()} == {
        split: [f"{name}|{member.format(split)}"] for split in ("train", "valid", "test")
    }
    assert all(origin.unpacked_limit for origins in sources.splits.values() for origin in origins)
    assert [file.name for file in sources.files] == [name]


PARQUET = [
    (
        "wikitext103",
        "",
        "train-00000-of-00002 train-00001-of-00002 validation-00000-of-00001 test-00000-of-00001",
        "text",
    ),
    ("wikitext103", "wikitext-103-v1/", "train-00000-of-00001 validation-00000-of-00001 test-00000-of-00001", "text"),
    ("wikitext2", "wikitext-2-v1/", "train-00000-of-00001 validation-00000-of-00001 test-00000-of-00001", "text"),
    ("text8", "data/", "train-00000-of-00001 validation-00000-of-00001 test-00000-of-00001", "text"),
    ("ptb", "penn_treebank/", "train/0000 validation/0000 test/0000", "sentence"),
    ("ptb", "", "train validation test", "sentence"),
]


@pytest.mark.parametrize(("kind", "place", "names", "field"), PARQUET)
def test_the_hubs_tables(
    kind: str, place: str, names: str, field: str, tmp_path: Path, config_of: PublishedConfigs
) -> None:
    listed = [f"{place}{name}.parquet" for name in names.split()]
    fill(tmp_path / "in", listed)
    sources = found(config_of(kind, dir=str(tmp_path / "in")))
    assert {split: told(origins) for split, origins in sources.splits.items()} == {
        split: [f"{name}|{field}|parquet" for name in listed if name.startswith(place + split)]
        for split in ("train", "valid", "test")
    }
    assert [file.name for file in sources.files] == listed


@pytest.mark.parametrize("kind", ["enwik8", "text8"])
def test_one_text_that_is_cut(kind: str, tmp_path: Path, config_of: PublishedConfigs) -> None:
    folder = fill(tmp_path / "in", [f"{kind}.zip"])
    sources = found(config_of(kind, dir=str(folder)))
    assert told(sources.whole) == [f"{kind}.zip|{kind}"]
    assert sources.whole[0].unpacked_limit is not None
    assert 100_000_000 < sources.whole[0].unpacked_limit < 101_000_000
    assert (sources.splits, sources.cut, sources.notes) == ({}, CUT, ())
    with (folder / kind).open("wb") as file:
        file.truncate(100_000_000)  # a sparse file takes no room
    sources = found(config_of(kind, dir=str(folder)))
    assert told(sources.whole) == [kind], "a plain file comes before an archive"
    assert (sources.splits, sources.cut, sources.notes) == ({}, CUT, ())
    (folder / kind).write_bytes(b"abc")
    (note,) = found(config_of(kind, dir=str(folder))).notes
    assert note.startswith(f"{kind} has 3 bytes here, and 100,000,000 where it was published; it is cut at")


@pytest.mark.parametrize("names", [["wiki.{}.tokens", "wikitext-103-v1.zip"], ["{}.txt", "wikitext-103-v1/{}.parquet"]])
def test_plain_files_come_before_packed_ones(names: list[str], tmp_path: Path, config_of: PublishedConfigs) -> None:
    splits = ("train", "valid", "test")
    fill(tmp_path / "in", [name.format(split) for name in names for split in splits])
    sources = found(config_of("wikitext103", dir=str(tmp_path / "in")))
    assert [file.name for file in sources.files] == [names[0].format(split) for split in splits]


@pytest.mark.parametrize("below", ["", f"{FOLDER}/"])
def test_sentences_as_unpacked(below: str, tmp_path: Path, config_of: PublishedConfigs) -> None:
    training = [f"{below}{TRAINING}/news.en-{number:05}-of-00100" for number in range(100)]
    folder = fill(tmp_path / "in", [*training, below + HELD_OUT])
    sources = found(config_of("lm1b", dir=str(folder)))
    assert told(sources.splits["train"]) == training[1:], "part 0 is the held-out text"
    assert told(sources.splits["valid"]) == told(sources.splits["test"]) == [below + HELD_OUT]
    assert len(sources.files) == 100
    assert sources.vocabulary is None
    (note,) = sources.notes
    assert note.startswith("lm1b's 1b_word_vocab.txt is not here")
    fill(folder, ["1b_word_vocab.txt"])
    (folder / training[7]).unlink()
    sources = found(config_of("lm1b", dir=str(folder)))
    assert sources.vocabulary == sources.files[-1]
    assert sources.vocabulary.name == "1b_word_vocab.txt"
    assert sources.notes == ("lm1b has 98 of its 99 training files here",)


def test_sentences_in_their_archive(tmp_path: Path, config_of: PublishedConfigs) -> None:
    archive = f"{FOLDER}.tar.gz"
    fill(tmp_path / "in", [archive, "1b_word_vocab.txt"])
    sources = found(config_of("lm1b", dir=str(tmp_path / "in")))
    members = [f"{archive}|{FOLDER}/{TRAINING}/news.en-{number:05}-of-00100" for number in range(1, 100)]
    assert told(sources.splits["train"]) == members
    assert told(sources.splits["valid"]) == told(sources.splits["test"]) == [f"{archive}|{FOLDER}/{HELD_OUT}"]
    assert [file.name for file in sources.files] == [archive, "1b_word_vocab.txt"]
    assert sources.notes == ()


@pytest.mark.parametrize("place", ["", "plain_text/"])
def test_sentences_in_tables_are_held_out_whole(place: str, tmp_path: Path, config_of: PublishedConfigs) -> None:
    names = [f"{place}{name}.parquet" for name in ("train/0000", "train/0001", "test/0000")]
    fill(tmp_path / "in", [*names, "1b_word_vocab.txt"])
    sources = found(config_of("lm1b", dir=str(tmp_path / "in")))
    assert told(sources.splits["train"]) == [f"{name}|text|parquet" for name in names[:2]]
    assert told(sources.splits["valid"]) == told(sources.splits["test"]) == [f"{names[2]}|text|parquet"]
    (note,) = sources.notes
    assert "the whole held-out text, of which the published preparation takes the first of 50 files" in note


@pytest.mark.parametrize(
    ("kind", "names", "lacking"),
    [
        ("wikitext103", [], "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens"),
        ("wikitext103", ["wiki.train.tokens", "wiki.test.tokens"], "wiki.valid.tokens"),
        ("wikitext2", ["wikitext-2/wiki.train.tokens"], "wikitext-2/wiki.valid.tokens, wikitext-2/wiki.test.tokens"),
        (
            "wikitext103",
            ["train-00001-of-00002.parquet", "test-00000-of-00001.parquet"],
            "train-00000-of-00002.parquet, validation*.parquet",
        ),
        ("ptb", ["ptb.train.txt", "train.txt", "valid.txt"], "test.txt"),
        ("enwik8", ["text8"], "enwik8"),
        ("text8", ["data/train-00000-of-00001.parquet"], "data/validation*.parquet, data/test*.parquet"),
        ("lm1b", [HELD_OUT], f"{TRAINING}/news.en-00001-of-00100"),
        ("lm1b", [f"{FOLDER}/{TRAINING}/news.en-00001-of-00100"], f"{FOLDER}/{HELD_OUT}"),
        ("lm1b", ["plain_text/train/0000.parquet"], "plain_text/test*.parquet"),
    ],
)
def test_what_lacks_is_named(
    kind: str, names: list[str], lacking: str, tmp_path: Path, config_of: PublishedConfigs
) -> None:
    folder = fill(tmp_path / "in", names)
    folder.mkdir(exist_ok=True)
    with pytest.raises(UserError) as refused:
        found(config_of(kind, dir=str(folder)))
    assert str(refused.value).startswith(
        f"data.dir is {str(folder)!r}, where {lacking} cannot be found, and must name the folder that holds "
    )


@pytest.mark.parametrize("name", ["enwik8", "enwik8.zip"])
def test_what_is_empty_is_named(name: str, tmp_path: Path, config_of: PublishedConfigs) -> None:
    (fill(tmp_path, [name]) / name).write_bytes(b"")
    with pytest.raises(UserError, match=rf"^data\.dir is .*, where {name} is empty, and must name the folder"):
        found(config_of("enwik8", dir=str(tmp_path)))
