import hashlib
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.config import StdlibConfig, TextConfig
from transformer_xl.data.building import cutting
from transformer_xl.data.building.cutting import cut_into_splits
from transformer_xl.data.sources.files import Sources
from transformer_xl.data.sources.finding import find_sources
from transformer_xl.errors import UserError

TextConfigs = Callable[..., TextConfig]


def contents(sources: Sources) -> dict[str, bytes]:
    return {
        split: b"".join(piece.path.read_bytes()[piece.start : piece.stop] for piece in pieces)
        for split, pieces in sources.splits.items()
    }


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_standard_library_without_tests_and_packages(stdlib_config: StdlibConfig) -> None:
    sources = find_sources(stdlib_config)
    names = [file.name for file in sources.files]
    assert "argparse.py" in names
    assert "asyncio/tasks.py" in names
    assert names == sorted(set(names))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    assert not [name for name in names if skipped & set(name.split("/")[:-1]) or not name.endswith(".py")]
    root = Path(sysconfig.get_paths()["stdlib"])
    assert all(file.path == root / file.name for file in sources.files)


def test_a_library_file_lies_whole_in_the_split_of_its_names_hash(stdlib_config: StdlibConfig) -> None:
    sources = find_sources(stdlib_config)
    size_of = {file.path: file.size for file in sources.files}
    split_of = {piece.path: split for split, pieces in sources.splits.items() for piece in pieces}
    assert len(split_of) == sum(len(pieces) for pieces in sources.splits.values()) == len(sources.files)
    for pieces in sources.splits.values():
        assert all((piece.start, piece.stop) == (0, size_of[piece.path]) for piece in pieces)
    for file in sources.files:
        share = int(hashlib.sha256(file.name.encode()).hexdigest()[:16], 16) / 16**16
        assert split_of[file.path] == ("train" if share < 0.5 else "valid" if share < 0.75 else "test")


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
    assert [file.name for file in find_sources(stdlib_config).files] == ["a.py", "b/c.py"]


def test_a_library_without_source_is_refused(small_library: Path, stdlib_config: StdlibConfig) -> None:
    (small_library / "a.py").unlink()
    (small_library / "b/c.py").unlink()
    with pytest.raises(UserError, match=r"data=stdlib .*lib.* data\.path"):
        find_sources(stdlib_config)


def test_one_file_is_cut_after_line_ends(tmp_path: Path, text_config: TextConfigs) -> None:
    lines = [b"line %02d\n" % number for number in range(20)]
    path = write(tmp_path / "a.txt", b"".join(lines))
    parts = contents(find_sources(text_config(path)))
    assert parts == {"train": b"".join(lines[:16]), "valid": b"".join(lines[16:18]), "test": b"".join(lines[18:])}
    parts = contents(find_sources(text_config(path, valid_fraction=0.12, test_fraction=0.12)))
    assert parts == {"train": b"".join(lines[:16]), "valid": b"".join(lines[16:18]), "test": b"".join(lines[18:])}


@given(
    files=st.lists(
        st.binary(max_size=40) | st.text("a\n\r\u00e9\U0001f600", max_size=20).map(str.encode), min_size=1, max_size=4
    ),
    valid=st.sampled_from([0.0, 0.1, 0.3]),
    test=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_a_cut_loses_nothing_and_breaks_no_character(
    files: list[bytes], valid: float, test: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    paths = [write(folder / str(number), data) for number, data in enumerate(files)]
    sizes = [len(data) for data in files]
    splits = cut_into_splits(paths, sizes, valid_fraction=valid, test_fraction=test)
    parts = [b"".join(files[n][start:stop] for n, start, stop in ranges) for ranges in splits]
    whole = b"".join(files)
    assert b"".join(parts) == whole
    assert all(start < stop for ranges in splits for _, start, stop in ranges)
    assert len(parts[0]) >= int(len(whole) * (1 - (valid + test)))
    assert len(parts[2]) <= len(whole) - int(len(whole) * (1 - test))
    assert valid or not parts[1]
    assert test or not parts[2]
    if all(_is_utf8(data) for data in files):
        assert all(_is_utf8(part) for part in parts)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_cut_keeps_a_carriage_return_with_its_newline(tmp_path: Path) -> None:
    # Byte 8, where the test part would begin, is the \n of the last \r\n.
    path = write(tmp_path / "a", b"aaaaaaa\r\nbb")
    train, valid, test = cut_into_splits([path], [11], valid_fraction=0.0, test_fraction=0.25)
    assert [(part.start, part.stop) for part in (*train, *test)] == [(0, 9), (9, 11)]
    assert valid == []


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_text_of_one_line_is_cut_between_characters(ending: bytes, tmp_path: Path, text_config: TextConfigs) -> None:
    path = write(tmp_path / "a", ("\U0001f600" * 100).encode() + ending)
    parts = contents(find_sources(text_config(path, valid_fraction=0.13, test_fraction=0.13)))
    assert all(len(part) > 40 for part in parts.values())
    assert all(len(part.rstrip(b"\n")) % 4 == 0 for part in parts.values())


def test_the_search_for_a_line_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", b"x" * 500 + b"\n" + b"y" * 499)
    for searched, expected in ((101, 501), (100, 400)):
        monkeypatch.setattr(cutting, "_SEARCHED_BYTES", searched)
        monkeypatch.setattr(cutting, "_BLOCK_BYTES", 7)
        train, _, _ = cut_into_splits([path], [1000], valid_fraction=0.0, test_fraction=0.6)
        assert train[-1].stop == expected


def test_a_folder_is_one_text_in_the_order_of_its_names(tmp_path: Path, text_config: TextConfigs) -> None:
    folder = tmp_path / "texts"
    for name in ("b.txt", "a/z.txt", "a.txt", ".hidden", ".git/config", "test.txt"):
        write(folder / name, name.encode() + b"\n")
    sources = find_sources(text_config(folder))
    assert [file.name for file in sources.files] == ["a.txt", "a/z.txt", "b.txt", "test.txt"]
    assert b"".join(contents(sources).values()) == b"a.txt\na/z.txt\nb.txt\ntest.txt\n"


@pytest.mark.parametrize("valid", ["valid", "validation", "val"])
def test_a_folder_of_splits_is_taken_as_it_is(valid: str, tmp_path: Path, text_config: TextConfigs) -> None:
    folder = tmp_path / "texts"
    for name in ("train", valid, "test"):
        write(folder / f"{name}.txt", name.encode())
    write(folder / "README", b"about")
    parts = contents(find_sources(text_config(folder)))
    assert parts == {"train": b"train", "valid": valid.encode(), "test": b"test"}


def test_splits_may_have_different_suffixes(tmp_path: Path, text_config: TextConfigs) -> None:
    for name in ("train.txt", "valid.tokens", "test.md"):
        write(tmp_path / "texts" / name, name.encode())
    parts = contents(find_sources(text_config(tmp_path / "texts")))
    assert parts == {"train": b"train.txt", "valid": b"valid.tokens", "test": b"test.md"}


def test_a_training_file_without_the_other_splits_is_refused(tmp_path: Path, text_config: TextConfigs) -> None:
    for name in ("train.txt", "test.txt"):
        write(tmp_path / "texts" / name, b"x")
    with pytest.raises(UserError, match=r"train\.txt, test\.txt.*one file a split"):
        find_sources(text_config(tmp_path / "texts"))


def test_two_files_for_a_split_are_refused_by_name(tmp_path: Path, text_config: TextConfigs) -> None:
    for name in ("train.txt", "valid.txt", "val.txt", "test.txt"):
        write(tmp_path / "texts" / name, b"x")
    with pytest.raises(UserError, match=r"data\.path is .*texts.*val\.txt, valid\.txt.*one file a split"):
        find_sources(text_config(tmp_path / "texts"))


def test_a_cache_inside_the_folder_is_no_text(tmp_path: Path, text_config: TextConfigs) -> None:
    folder = tmp_path / "texts"
    for name in ("a.txt", "cache/text-1/corpus.json", "cache/text-1/vocabulary.json", "cache/text-1/train.bin"):
        write(folder / name, b"x\n")
    assert [file.name for file in find_sources(text_config(folder)).files] == ["a.txt"]


@pytest.mark.parametrize("name", ["a=b,c.txt", "[x]{y}.txt", "\u4e2d\u6587 ' \".txt", "$(x)`y`.txt"])
def test_odd_paths(name: str, tmp_path: Path, text_config: TextConfigs) -> None:
    path = write(tmp_path / name, b"some\ntext\n" * 10)
    assert find_sources(text_config(path)).files[0].name == name


def test_a_name_that_is_no_utf8(tmp_path: Path, text_config: TextConfigs) -> None:
    path = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")), b"some\ntext\n")
    assert contents(find_sources(text_config(path)))["train"]


def test_the_home_folder(tmp_path: Path, text_config: TextConfigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.txt", b"x\n")
    assert find_sources(text_config("~/a.txt")).files[0].path == tmp_path / "a.txt"


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
        find_sources(text_config(path))
    assert f"data.path is {path!r}" in str(refused.value)
    assert "a text file or a folder of text files" in str(refused.value)
