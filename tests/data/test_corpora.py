"""Which files belong to a corpus and its splits: texts, ids, the standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_xl.data.corpora import stdlib_sources
from transformer_xl.data.files import Cut, Sources, describe, split_of_name
from transformer_xl.data.text import read_text, text_sources
from transformer_xl.data.token_ids import token_sources
from transformer_xl.data_config import StdlibConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError

TextConfigs = Callable[..., TextConfig]
TokensConfigs = Callable[..., TokensConfig]
SPLITS = ("train", "valid", "test")


def fill(folder: Path, *names: str, data: bytes = b"1 2 3 4 ") -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def found(find: Callable[..., Sources], config: Any) -> Sources:
    return find(config, announce=pytest.fail)


def splits_of(sources: Sources) -> dict[str, list[str]]:
    """Return the file of each text, and its column."""
    return {
        split: ["|".join(filter(None, [one.name, one.field])) for one in texts]
        for split, texts in sources.splits.items()
    }


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
    names = sorted(file.name for file in sources.files)
    assert "asyncio/tasks.py" in names
    assert len(set(names)) == len(names)
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
    expected = r"data\.path is .*begins with valid beside 'test\.txt', 'train\.txt'.*data\.split be fraction or hash"
    with pytest.raises(UserError, match=expected):
        found(text_sources, text_config(folder, split=split))
    with pytest.raises(UserError, match=r"begins with valid or test beside 'train\.txt'"):
        found(text_sources, text_config(folder / "train.txt", split="files"))


@pytest.mark.parametrize("name", ["nosuch", "base64"])
def test_an_encoding_that_is_none_of_text_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"a\.txt' cannot be read with data\.encoding={name}"):
        list(read_text(describe(fill(tmp_path, "a.txt") / "a.txt", name="a.txt"), documents="file", encoding=name))


def test_ids_by_the_names_of_their_files(tmp_path: Path, tokens_config: TokensConfigs) -> None:
    folder = fill(tmp_path / "in", "a.npy", "b.bin", "c.jsonl", "d/e.TXT", "v.json")
    config = tokens_config(folder, dtype="uint16", vocab_size=None, vocabulary=str(folder / "v.json"))
    sources = found(token_sources, config)
    assert [one.format for one in sources.splits["train"]] == [".npy", ".bin", ".jsonl", ".txt"]
    assert sources.vocabulary == sources.files[-1]
    fill(folder, "train.txt", "valid.txt", "test.txt")
    (folder / "b.bin").unlink()
    assert splits_of(found(token_sources, tokens_config(folder))) == {split: [f"{split}.txt"] for split in SPLITS}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("a.csv", {}, r"data\.path is '.*in', where 'a\.csv' is none of \.npy, \.bin, "),
        ("a.bin", {}, r"data\.dtype is null, and must be the type of the numbers in 'a\.bin'"),
        ("a.bin", {"dtype": "int64"}, r"data\.dtype is int64, .*'a\.bin', which has 6 bytes"),
        ("a.txt", {"path": ""}, r"data\.path is '', and must name"),
        ("a.txt", {"vocab_size": None, "vocabulary": "none.json"}, r"data\.vocabulary is 'none\.json', and must name"),
    ],
)
def test_ids_that_are_none_are_named(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path, tokens_config: TokensConfigs
) -> None:
    folder = fill(tmp_path / "in", name, data=b"123456")
    with pytest.raises(UserError, match=said):
        found(token_sources, tokens_config(**{"path": folder, **changes}))
