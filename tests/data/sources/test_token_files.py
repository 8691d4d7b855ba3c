import os
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_xl.data.sources.files import Cut, Sources
from transformer_xl.data.sources.token_files import token_sources
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError

Configs = Callable[..., TokensConfig]


@pytest.fixture
def config(tmp_path: Path) -> Configs:
    def make(path: Path | str | None, **changes: object) -> TokensConfig:
        settings: dict[str, object] = {
            "kind": "tokens",
            "batch_size": 2,
            "segment_len": 5,
            "segment_len_sd": 0.0,
            "half_segments": 0.0,
            "loss": "full",
            "lane_chunks": 1,
            "cache_dir": str(tmp_path / "cache"),
            "rebuild": False,
            "documents": "record",
            "end_of_document": True,
            "reset_memory": "document",
            "order": "as_is",
            "path": None if path is None else str(path),
            "dtype": None,
            "vocab_size": 10,
            "vocabulary": None,
            "split": "auto",
            "valid_fraction": 0.1,
            "test_fraction": 0.2,
            "max_eval_tokens": None,
        }
        return TokensConfig(**(settings | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ids").mkdir()
    return tmp_path / "ids"


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1 2 3 4 ")


def names(sources: Sources, split: str | None = None) -> list[str]:
    return [origin.file.name for origin in (sources.whole if split is None else sources.splits[split])]


def test_each_form_by_its_name(folder: Path, config: Configs) -> None:
    fill(folder, "a.npy", "b.bin", "c.jsonl", "d/e.TXT")
    sources = token_sources(config(folder, dtype="uint16"))
    found = [(origin.file.name, origin.format, origin.dtype) for origin in sources.whole]
    assert found == [
        ("a.npy", "npy", None),
        ("b.bin", "raw", "uint16"),
        ("c.jsonl", "json_ids", None),
        ("d/e.TXT", "ids", None),
    ]
    assert sources.files == tuple(origin.file for origin in sources.whole)
    assert [(file.path, file.size) for file in sources.files] == [(folder / file.name, 8) for file in sources.files]
    assert (sources.splits, sources.cut) == ({}, Cut(by="fraction", valid=0.1, test=0.2))


def test_hidden_files_and_a_corpus_cache_below_the_folder_are_none(folder: Path, config: Configs) -> None:
    fill(folder, "b.txt", "a/z.txt", ".c.txt", ".git/d.txt", "cache/corpus.json", "cache/vocabulary.json")
    fill(folder, "cache/train.bin", "cache/x/y.txt")
    assert names(token_sources(config(folder))) == ["a/z.txt", "b.txt"]


def test_a_glob_below_folders(folder: Path, config: Configs) -> None:
    fill(folder, "a/1.txt", "a/b/2.txt", "a/3.npy", "c.md", "a/.4.txt")
    sources = token_sources(config(folder / "**" / "*.txt"))
    assert names(sources) == ["a/1.txt", "a/b/2.txt"]
    assert sources.location == folder
    assert names(token_sources(config(folder / "a" / "?.*"))) == ["1.txt", "3.npy"]


def test_a_glob_in_the_working_folder(folder: Path, config: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder, "1.txt")
    monkeypatch.chdir(folder)
    (origin,) = token_sources(config("*.txt")).whole
    assert origin.file.path == folder / "1.txt"


def test_a_file_whose_name_looks_like_a_glob_is_that_file(folder: Path, config: Configs) -> None:
    fill(folder, "a[1].txt", "a1.txt")
    assert names(token_sources(config(folder / "a[1].txt"))) == ["a[1].txt"]


def test_a_link_has_the_form_that_its_own_name_says(folder: Path, config: Configs) -> None:
    fill(folder, "blobs/0123")
    os.symlink(folder / "blobs" / "0123", folder / "a.txt")
    assert names(token_sources(config(folder / "a.txt"))) == ["a.txt"]


def test_files_that_are_named_after_splits(folder: Path, config: Configs) -> None:
    fill(folder, "train-1.txt", "train-0.txt", "val.txt", "dev/a.txt", "test.txt")
    sources = token_sources(config(folder))
    assert names(sources, "train") == ["train-0.txt", "train-1.txt"]
    assert names(sources, "valid") == ["dev/a.txt", "val.txt"]
    assert names(sources, "test") == ["test.txt"]
    assert (sources.whole, sources.cut) == ((), None)
    assert len(sources.files) == 5


def test_a_file_of_no_split_beside_them_is_left_out_with_a_note(folder: Path, config: Configs) -> None:
    fill(folder, "train.txt", "valid.txt", "test.txt", "extra.md")
    sources = token_sources(config(folder))
    assert len(sources.files) == 3
    assert "'extra.md'" in sources.notes[0]


@pytest.mark.parametrize("split", ["auto", "files"])
def test_all_three_splits_are_needed_where_files_are_named_after_them(
    folder: Path, config: Configs, split: str
) -> None:
    fill(folder, "train.txt", "test.txt")
    with pytest.raises(UserError, match=r"data\.path is '.*ids', where no file's .* begins with valid beside"):
        token_sources(config(folder, split=split))


def test_without_a_train_file_the_whole_is_cut(folder: Path, config: Configs) -> None:
    fill(folder, "test.txt", "valid.txt", "x.txt")
    assert names(token_sources(config(folder))) == ["test.txt", "valid.txt", "x.txt"]
    with pytest.raises(UserError, match=r"where no file's .* begins with train beside"):
        token_sources(config(folder, split="files"))


@pytest.mark.parametrize("by", ["fraction", "hash"])
def test_names_do_not_count_where_another_split_is_asked_for(folder: Path, config: Configs, by: str) -> None:
    fill(folder, "train.txt", "valid.txt", "test.txt")
    sources = token_sources(config(folder, split=by))
    assert names(sources) == ["test.txt", "train.txt", "valid.txt"]
    assert sources.cut == Cut(by=by, valid=0.1, test=0.2)  # type: ignore[arg-type]


def test_one_file_is_cut_whatever_its_name(folder: Path, config: Configs) -> None:
    fill(folder, "train.txt", "valid.txt", "test.txt")
    assert names(token_sources(config(folder / "train.txt"))) == ["train.txt"]
    with pytest.raises(UserError, match=r"train\.txt', where no file's .* begins with valid or test"):
        token_sources(config(folder / "train.txt", split="files"))


def test_the_vocabulary_is_no_file_of_ids(folder: Path, config: Configs) -> None:
    fill(folder, "a.txt", "vocabulary.json")
    sources = token_sources(config(folder, vocab_size=None, vocabulary=str(folder / "vocabulary.json")))
    assert names(sources) == ["a.txt"]
    assert sources.vocabulary is not None
    assert sources.vocabulary.path == folder / "vocabulary.json"
    assert sources.files[-1] == sources.vocabulary
    (folder / "a.txt").unlink()
    with pytest.raises(UserError, match=r"ids', where only data\.vocabulary is, and must name"):
        token_sources(config(folder, vocabulary=str(folder / "vocabulary.json")))
    with pytest.raises(UserError, match=r"data\.vocabulary is '.*none\.json', which cannot be read: No such file"):
        token_sources(config(folder, vocabulary=str(folder / "none.json")))


@pytest.mark.parametrize("name", ["a.csv", "ids", "a.npz", "a.txt.gz"])
def test_another_form_is_refused_by_name(folder: Path, config: Configs, name: str) -> None:
    fill(folder, "a.txt", name)
    with pytest.raises(UserError, match=rf"data\.path is '.*ids', where '{name}' is none of \.npy, \.bin, "):
        token_sources(config(folder))


def test_raw_numbers_need_their_type(folder: Path, config: Configs) -> None:
    fill(folder, "a.bin")
    with pytest.raises(UserError, match=r"data\.dtype is null, and must say which numbers 'a\.bin' holds: uint8, "):
        token_sources(config(folder))
    (folder / "a.bin").write_bytes(b"123456")
    assert names(token_sources(config(folder, dtype="uint16"))) == ["a.bin"]
    with pytest.raises(UserError, match=r"data\.dtype is 'int32', .*'a\.bin', whose 6 bytes are no multiple of 4"):
        token_sources(config(folder, dtype="int32"))


def test_a_type_of_numbers_that_nothing_needs_is_refused(folder: Path, config: Configs) -> None:
    fill(folder, "a.txt")
    with pytest.raises(UserError, match=r"data\.dtype is 'int32', and must be null where no file is \.bin"):
        token_sources(config(folder, dtype="int32"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, r"data\.path is null, and must name"),
        ("", r"data\.path is '', and must name"),
        ("none", r"data\.path is 'none', which cannot be read: No such file or directory"),
        ("*.none", r"data\.path is '\*\.none', which matches no file"),
        ("empty", r"data\.path is 'empty', a folder without files"),
        ("nothing.txt", r"data\.path is 'nothing\.txt', which is empty"),
    ],
)
def test_a_path_that_names_no_ids(
    folder: Path, config: Configs, monkeypatch: pytest.MonkeyPatch, path: str | None, said: str
) -> None:
    (folder / "empty").mkdir()
    (folder / "nothing.txt").touch()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=f"^{said}.*a file of token ids"):
        token_sources(config(path))
