import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transformer_xl.data.sources.files import Cut, Origin, Sources
from transformer_xl.data.sources.finding import find_sources
from transformer_xl.data_config import CorpusConfig, StdlibConfig, TextConfig
from transformer_xl.errors import UserError

TextConfigs = Callable[..., TextConfig]


def found(config: CorpusConfig) -> Sources:
    lines: list[str] = []
    sources = find_sources(config, announce=lines.append)
    assert lines == []
    return sources


def names(sources: Sources) -> list[str]:
    return [file.name for file in sources.files]


def split_names(sources: Sources) -> dict[str, list[str]]:
    return {split: [origin.file.name for origin in origins] for split, origins in sources.splits.items()}


def write(path: Path, data: bytes = b"some\ntext\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_all(folder: Path, names: Iterable[str]) -> Path:
    for name in names:
        write(folder / name, name.encode() + b"\n")
    return folder


def test_the_standard_library_without_tests_and_packages(stdlib_config: StdlibConfig) -> None:
    sources = found(stdlib_config)
    assert "argparse.py" in names(sources)
    assert "asyncio/tasks.py" in names(sources)
    assert names(sources) == sorted(set(names(sources)))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    assert not [name for name in names(sources) if skipped & set(name.split("/")[:-1]) or not name.endswith(".py")]
    root = Path(sysconfig.get_paths()["stdlib"])
    assert all(file.path == root / file.name for file in sources.files)


def test_a_library_file_lies_whole_in_the_split_of_its_names_hash(stdlib_config: StdlibConfig) -> None:
    sources = found(stdlib_config)
    assert sources.cut is None
    assert sources.whole == ()
    expected: dict[str, list[Origin]] = {"train": [], "valid": [], "test": []}
    for file in sources.files:
        share = int(hashlib.sha256(file.name.encode()).hexdigest()[:16], 16) / 16**16
        split = "train" if share < 0.5 else "valid" if share < 0.75 else "test"
        expected[split].append(Origin(file=file))
    assert {split: list(origins) for split, origins in sources.splits.items()} == expected


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "lib"
    for name in (
        "a.py",
        "b/c.py",
        "b/test/d.py",
        "site-packages/e.py",
        "tests/f.py",
        "g.txt",
        "idlelib/idle_test/h.py",
    ):
        write(root / name, b"x = 1\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(root)})
    return root


def test_a_small_library(small_library: Path, stdlib_config: StdlibConfig) -> None:
    assert names(found(stdlib_config)) == ["a.py", "b/c.py"]


def test_a_library_without_source_is_refused(small_library: Path, stdlib_config: StdlibConfig) -> None:
    (small_library / "a.py").unlink()
    (small_library / "b/c.py").unlink()
    with pytest.raises(UserError, match=r"data=stdlib .*lib.* data\.path"):
        found(stdlib_config)


def test_one_file_is_one_text_to_be_cut(tmp_path: Path, text_config: TextConfigs) -> None:
    path = write(tmp_path / "train.txt")
    sources = found(text_config(path, valid_fraction=0.25, test_fraction=0.125))
    assert (sources.setting, sources.location) == (f"data.path is {str(path)!r}", path)
    assert sources.files == tuple(origin.file for origin in sources.whole)
    assert (sources.files[0].path, sources.files[0].name, sources.files[0].size) == (path, "train.txt", 10)
    assert sources.cut == Cut(by="fraction", valid=0.25, test=0.125)
    assert dict(sources.splits) == {}


@pytest.mark.parametrize(("split", "by"), [("fraction", "fraction"), ("hash", "hash")])
def test_a_cut_may_be_asked_for_whatever_the_names_say(
    split: str, by: str, tmp_path: Path, text_config: TextConfigs
) -> None:
    folder = write_all(tmp_path / "texts", ["train.txt", "valid.txt", "test.txt", "notes.md"])
    sources = found(text_config(folder, split=split))
    assert sources.cut == Cut(by=by, valid=0.1, test=0.1)  # type: ignore[arg-type]
    assert [origin.file.name for origin in sources.whole] == ["notes.md", "test.txt", "train.txt", "valid.txt"]


def test_a_folder_is_one_text_in_the_order_of_its_names(tmp_path: Path, text_config: TextConfigs) -> None:
    listed = ["b.txt", "a/z.txt", "a.txt", ".hidden", ".git/config", "test.txt", "a/.x/y.txt"]
    sources = found(text_config(write_all(tmp_path / "texts", listed)))
    assert names(sources) == ["a.txt", "a/z.txt", "b.txt", "test.txt"]
    assert [origin.file for origin in sources.whole] == list(sources.files)
    assert sources.location == tmp_path / "texts"


def test_what_is_no_file_is_passed_over_in_a_folder(tmp_path: Path, text_config: TextConfigs) -> None:
    folder = write_all(tmp_path / "texts", ["a.txt"])
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "link").symlink_to("a.txt")
    (folder / "again").symlink_to(folder)
    assert names(found(text_config(folder))) == ["a.txt", "link"]
    assert names(found(text_config(folder / "**"))) == ["a.txt", "link"]


@pytest.mark.parametrize(
    ("name", "format", "compression"),
    [
        ("a.txt", "text", None),
        ("README", "text", None),
        ("a.jsonl", "jsonl", None),
        ("A.NDJSON", "jsonl", None),
        ("a.csv", "csv", None),
        ("a.tsv", "tsv", None),
        ("a.parquet", "parquet", None),
        ("a.txt.gz", "text", "gzip"),
        ("a.GZ", "text", "gzip"),
        ("a.jsonl.zst", "jsonl", "zstd"),
        ("a.b.csv.xz", "csv", "xz"),
        ("a.tsv.gz", "tsv", "gzip"),
        ("parquet", "text", None),
        ("jsonl.gz", "text", "gzip"),
    ],
)
def test_a_files_name_says_how_it_is_written(
    name: str, format: str, compression: str | None, tmp_path: Path, text_config: TextConfigs
) -> None:
    folder = write_all(tmp_path / "texts", [name])
    (origin,) = found(text_config(folder, field="body")).whole
    assert (origin.format, origin.compression) == (format, compression)
    assert origin.field == (None if format == "text" else "body")
    assert (origin.member, origin.unpacked_limit) == (None, None)


@pytest.mark.parametrize(
    ("setting", "name", "format", "compression"),
    [
        ("text", "a.parquet", "text", None),
        ("text", "a.jsonl.gz", "text", "gzip"),
        ("jsonl", "a.json.zst", "jsonl", "zstd"),
        ("csv", "a.txt", "csv", None),
        ("csv", "a.tsv.gz", "tsv", "gzip"),
        ("parquet", "part-0", "parquet", None),
    ],
)
def test_the_format_that_is_set_goes_before_the_name(
    setting: str, name: str, format: str, compression: str | None, tmp_path: Path, text_config: TextConfigs
) -> None:
    (origin,) = found(text_config(write(tmp_path / name), format=setting)).whole
    assert (origin.format, origin.compression) == (format, compression)


def test_packed_parquet_is_refused(tmp_path: Path, text_config: TextConfigs) -> None:
    with pytest.raises(UserError, match=r"data\.path is .*'a\.parquet\.gz' is packed with gzip.*must not"):
        found(text_config(write(tmp_path / "a.parquet.gz")))


def test_a_link_is_read_as_what_it_is_called(tmp_path: Path, text_config: TextConfigs) -> None:
    blob = write(tmp_path / "blobs/0123abcd")
    (tmp_path / "part.jsonl").symlink_to(blob)
    sources = found(text_config(tmp_path / "part.jsonl"))
    assert (sources.whole[0].format, sources.whole[0].file.path, names(sources)) == ("jsonl", blob, ["part.jsonl"])


@pytest.mark.parametrize("split", ["auto", "files"])
@pytest.mark.parametrize("valid", ["valid", "validation", "val", "dev", "VALID"])
def test_files_that_say_their_split_are_taken_as_such(
    split: str, valid: str, tmp_path: Path, text_config: TextConfigs
) -> None:
    folder = write_all(tmp_path / "texts", ["train.txt", f"{valid}.tokens", "Test.md"])
    sources = found(text_config(folder, split=split))
    assert split_names(sources) == {"train": ["train.txt"], "valid": [f"{valid}.tokens"], "test": ["Test.md"]}
    assert names(sources) == ["train.txt", f"{valid}.tokens", "Test.md"]
    assert (sources.cut, sources.whole) == (None, ())


def test_splits_of_many_files_and_folders(tmp_path: Path, text_config: TextConfigs) -> None:
    listed = [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
        "train_1.jsonl.gz",
        "train2.csv",
        "training/test.txt",
        "valid/a.txt",
        "valid/deep/b.txt",
        "test",
    ]
    sources = found(text_config(write_all(tmp_path / "texts", listed)))
    assert split_names(sources) == {
        "train": sorted(listed[:5]),
        "valid": ["valid/a.txt", "valid/deep/b.txt"],
        "test": ["test"],
    }
    assert {origin.format for origin in sources.splits["train"]} == {"parquet", "jsonl", "csv", "text"}


@pytest.mark.parametrize("split", ["auto", "files"])
def test_a_split_without_files_is_refused(split: str, tmp_path: Path, text_config: TextConfigs) -> None:
    folder = write_all(tmp_path / "texts", ["train.txt", "test.txt"])
    expected = r"data\.path is .*begins with valid beside 'train\.txt', 'test\.txt'.*data\.split be fraction or hash"
    with pytest.raises(UserError, match=expected):
        found(text_config(folder, split=split))


@pytest.mark.parametrize("split", ["auto", "files"])
def test_a_file_of_no_split_beside_those_of_all_is_left_out_with_a_note(
    split: str, tmp_path: Path, text_config: TextConfigs
) -> None:
    folder = write_all(tmp_path / "texts", ["train.txt", "valid.txt", "test.txt", "README", "a", "b", "trains.txt"])
    sources = found(text_config(folder, split=split))
    assert [file.name for file in sources.files] == ["train.txt", "valid.txt", "test.txt"]
    assert "left out" in sources.notes[0]
    assert sources.notes[0].endswith(": 'README', 'a', 'b', 1 more")


def test_one_file_cannot_be_three_splits(tmp_path: Path, text_config: TextConfigs) -> None:
    with pytest.raises(UserError, match=r"begins with valid or test beside 'train\.txt'"):
        found(text_config(write(tmp_path / "train.txt"), split="files"))


def test_a_cache_inside_the_folder_is_no_text(tmp_path: Path, text_config: TextConfigs) -> None:
    cache = ("cache/text-1/corpus.json", "cache/text-1/vocabulary.json", "cache/text-1/train.bin")
    folder = write_all(tmp_path / "texts", ["a.txt", *cache])
    for path in (folder, folder / "**", folder / "*"):
        assert names(found(text_config(path))) == ["a.txt"]
    with pytest.raises(UserError, match="matches no file"):
        found(text_config(folder / "cache/text-*/*.json"))


@pytest.mark.parametrize(
    ("pattern", "location", "expected"),
    [
        ("*.txt", "", ["a.txt", "b.txt"]),
        ("[ab].*", "", ["a.md", "a.txt", "b.txt"]),
        ("logs/*.txt", "logs", ["c.txt"]),
        ("logs/**/*.txt", "logs", ["c.txt", "x/d.txt", "x/y/e.txt"]),
        ("logs/**", "logs", ["c.txt", "x/d.txt", "x/y/e.txt", "x/y/f.md"]),
        ("**/y/*", "", ["logs/x/y/e.txt", "logs/x/y/f.md"]),
        ("**/x/**/?.txt", "", ["logs/x/d.txt", "logs/x/y/e.txt"]),
        ("l*/x/d.txt", "", ["logs/x/d.txt"]),
        (".h*/*", "", [".hidden/g.txt"]),
    ],
)
def test_globs(pattern: str, location: str, expected: list[str], tmp_path: Path, text_config: TextConfigs) -> None:
    listed = ["a.txt", "b.txt", "a.md", "logs/c.txt", "logs/x/d.txt", "logs/x/y/e.txt", "logs/x/y/f.md"]
    folder = write_all(tmp_path / "texts", [*listed, ".hidden/g.txt", "logs/.h.txt"])
    sources = found(text_config(folder / pattern))
    assert names(sources) == expected
    assert sources.location == folder / location
    assert [file.path for file in sources.files] == [sources.location / name for name in expected]


def test_a_glob_from_here_or_from_home(
    tmp_path: Path, text_config: TextConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path, ["a.txt", "b.txt"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for pattern in ("*.txt", "./*.txt", "~/*.txt"):
        assert names(found(text_config(pattern))) == ["a.txt", "b.txt"]


def test_splits_of_a_glob_are_named_below_its_folder(tmp_path: Path, text_config: TextConfigs) -> None:
    write_all(tmp_path, ["train/a.txt", "valid/a.txt", "test/a.txt", "README"])
    sources = found(text_config(tmp_path / "*/a.txt"))
    assert split_names(sources) == {"train": ["train/a.txt"], "valid": ["valid/a.txt"], "test": ["test/a.txt"]}


def test_a_glob_without_matches_is_refused(tmp_path: Path, text_config: TextConfigs) -> None:
    write_all(tmp_path, ["folder/a.txt"])
    with pytest.raises(UserError, match=r"data\.path is .*\*'.*matches no file.*a glob"):
        found(text_config(tmp_path / "*"))
    with pytest.raises(UserError, match=r"data\.path is .*No such file.*absent"):
        found(text_config(tmp_path / "absent/*"))


@pytest.mark.parametrize("name", ["nosuch", "base64", "rot13", "zip", "idna", "utf-7", "a\0b", "", "\ud800"])
def test_an_encoding_that_is_none_of_text_is_refused(name: str, tmp_path: Path, text_config: TextConfigs) -> None:
    with pytest.raises(UserError, match=r"data\.encoding is .*, and must be an encoding of text"):
        found(text_config(write(tmp_path / "a.txt"), encoding=name))


@pytest.mark.parametrize("name", ["a=b,c.txt", "[x]{y}.txt", "what?*.txt", "\u4e2d\u6587 ' \".txt", "$(x)`y`.txt"])
def test_odd_paths(name: str, tmp_path: Path, text_config: TextConfigs) -> None:
    path = write(tmp_path / name, b"some\ntext\n" * 10)
    assert found(text_config(path)).files[0].name == name


def test_a_name_that_is_no_utf8(tmp_path: Path, text_config: TextConfigs) -> None:
    path = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")), b"some\ntext\n")
    assert [file.path for file in found(text_config(path)).files] == [path]


def test_the_home_folder(tmp_path: Path, text_config: TextConfigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.txt", b"x\n")
    assert found(text_config("~/a.txt")).files[0].path == tmp_path / "a.txt"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("absent.txt", "No such file"),
        ("", "must name a text file"),
        ("empty.txt", "is empty"),
        ("nothing", "without files"),
        ("loop", "loop|levels of symbolic"),
        ("/dev/null", "not a regular file"),
        ("/dev/null/x", "Not a directory"),
        ("nul\x00byte", "null"),
        ("half\ud800", "surrogates|codec"),
        ("~no such user/x", "No such file"),
    ],
)
def test_a_path_that_holds_no_text_is_named(
    path: str, reason: str, tmp_path: Path, text_config: TextConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "empty.txt", b"")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match=reason) as refused:
        found(text_config(path))
    assert f"data.path is {path!r}" in str(refused.value)
    assert "a text file, a folder of text files, or a glob" in str(refused.value)
