"""Which files a corpus is made of, and which bytes of them belong to which split."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from transformer_xl.config import CorpusConfig, StdlibConfig, TextConfig, Wikitext103Config
from transformer_xl.data.cutting import cut_into_splits
from transformer_xl.errors import UserError

SPLITS = ("train", "valid", "test")
_STDLIB_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_SPLIT_OF_STEM = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file as it was found: `name` is its path below the corpus's folder, with forward slashes."""

    path: Path
    name: str
    size: int
    mtime_ns: int


class Piece(NamedTuple):
    """The bytes [start, stop) of a file."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All files of a corpus in order, and the pieces of them that make up each split.

    `setting` names what the user set, and its value, for messages.
    """

    setting: str
    location: Path
    files: tuple[SourceFile, ...]
    splits: Mapping[str, tuple[Piece, ...]]


def find_sources(config: CorpusConfig) -> Sources:
    """Find the files that a configuration names, and split them; `UserError` where they are missing or empty."""
    if isinstance(config, StdlibConfig):
        return _stdlib(config)
    if isinstance(config, TextConfig):
        return _text(config)
    assert isinstance(config, Wikitext103Config)
    return _wikitext103(config)


def _stdlib(config: StdlibConfig) -> Sources:
    root = Path(sysconfig.get_paths()["stdlib"])
    setting = f"data=stdlib reads *.py below {str(root)!r}"
    with _reading(setting):
        files = _walk(root, keep_folder=lambda name: name not in _STDLIB_SKIPPED, keep_file=_is_python)
    splits: dict[str, list[SourceFile]] = {split: [] for split in SPLITS}
    for file in files:
        splits[_split_by_name(file.name, config=config)].append(file)
    if not files:
        raise UserError(f"{setting}, which holds none; name a text of your own with data=text data.path=...")
    return _whole_files(setting=setting, location=root.resolve(), splits=splits, files=files)


def _is_python(name: str) -> bool:
    return name.endswith(".py")


def _split_by_name(name: str, *, config: StdlibConfig) -> str:
    # A file's split hangs on its own name alone, so that other Python versions share most of it.
    share = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64
    if share < 1 - (config.valid_fraction + config.test_fraction):
        return "train"
    return "valid" if share < 1 - config.test_fraction else "test"


def _text(config: TextConfig) -> Sources:
    setting = f"data.path is {config.path!r}"
    if not config.path:
        raise UserError(f"{setting}, and must name a text file or a folder of text files")
    path = Path(os.path.expanduser(config.path))
    with _reading(setting, wanted="a text file or a folder of text files"):
        location = path.resolve(strict=True)
        if stat.S_ISDIR(location.stat().st_mode):
            named = _named_splits(location, setting=setting)
            if named:
                files = [file for split in SPLITS for file in named[split]]
                _require_text(files, setting=setting)
                return _whole_files(setting=setting, location=location, splits=named, files=files)
            files = _walk(location, keep_folder=_is_visible, keep_file=_is_visible)
        else:
            files = [_describe(location, name=location.name)]
        _require_text(files, setting=setting)
        paths, sizes = [file.path for file in files], [file.size for file in files]
        ranges = cut_into_splits(paths, sizes, valid_fraction=config.valid_fraction, test_fraction=config.test_fraction)
    splits = {
        split: tuple(Piece(paths[number], start, stop) for number, start, stop in pieces)
        for split, pieces in zip(SPLITS, ranges, strict=True)
    }
    return Sources(setting=setting, location=location, files=tuple(files), splits=splits)


def _is_visible(name: str) -> bool:
    return not name.startswith(".")


def _require_text(files: Sequence[SourceFile], *, setting: str) -> None:
    if not files:
        raise UserError(f"{setting}, a folder without files, and must name a text file or a folder of text files")
    if not any(file.size for file in files):
        raise UserError(f"{setting}, which is empty, and must name a text file or a folder of text files")


def _named_splits(folder: Path, *, setting: str) -> dict[str, list[SourceFile]] | None:
    """Find the files that say which split they are; None where none says that it is for training."""
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(folder.iterdir()):
        stem = path.name.partition(".")[0]
        if stem in _SPLIT_OF_STEM and path.is_file():
            found[_SPLIT_OF_STEM[stem]].append(path)
    if not found["train"]:
        return None
    if any(len(paths) != 1 for paths in found.values()):
        names = [path.name for paths in found.values() for path in paths]
        raise UserError(
            f"{setting}, a folder with {', '.join(names)}, and must hold one file a split: train, valid and test"
        )
    return {split: [_describe(path, name=path.name) for path in found[split]] for split in SPLITS}


def _wikitext103(config: Wikitext103Config) -> Sources:
    names = {split: f"wiki.{split}.tokens" for split in SPLITS}
    setting = f"data.dir is {config.dir!r}"
    rule = f"must name the folder that holds WikiText-103's {', '.join(names.values())}"
    if not config.dir:
        raise UserError(f"{setting}, and {rule}")
    folder = Path(os.path.expanduser(config.dir))
    with _reading(setting, wanted=f"the folder that holds WikiText-103's {', '.join(names.values())}"):
        missing = [name for name in names.values() if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{setting}, where {', '.join(missing)} cannot be found, and {rule}")
        splits = {split: [_describe(folder / name, name=name)] for split, name in names.items()}
        empty = [file.name for files in splits.values() for file in files if not file.size]
        if empty:
            raise UserError(f"{setting}, where {', '.join(empty)} is empty, and {rule}")
        files = [file for split in SPLITS for file in splits[split]]
        return _whole_files(setting=setting, location=folder.resolve(), splits=splits, files=files)


class _reading:  # noqa: N801  (reads as the statement that it is)
    """Turns what the operating system says about a user's path into a `UserError`."""

    def __init__(self, setting: str, *, wanted: str = "files that can be read") -> None:
        self._setting, self._wanted = setting, wanted

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError) or not isinstance(error, OSError | ValueError | RuntimeError):
            return
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = f" ({os.fsdecode(error.filename)!r})" if isinstance(error, OSError) and error.filename else ""
        raise UserError(
            f"{self._setting}, which cannot be read: {reason}{where}; it must name {self._wanted}"
        ) from error


def _walk(root: Path, *, keep_folder: Callable[[str], bool], keep_file: Callable[[str], bool]) -> list[SourceFile]:
    """List the regular files below a folder, sorted by their names with forward slashes."""
    found = []
    for folder, folders, names in os.walk(root, onerror=_raise):
        if "corpus.json" in names and "vocabulary.json" in names:
            # A corpus's own cache may lie inside the folder; taking it would change the corpus at every build.
            folders.clear()
            continue
        folders[:] = filter(keep_folder, folders)
        for name in filter(keep_file, names):
            path = Path(folder, name)
            if path.is_file():
                found.append(_describe(path, name=path.relative_to(root).as_posix()))
    return sorted(found, key=lambda file: file.name)


def _raise(error: OSError) -> None:
    raise error


def _describe(path: Path, *, name: str) -> SourceFile:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "not a regular file", str(path))
    return SourceFile(path=path, name=name, size=status.st_size, mtime_ns=status.st_mtime_ns)


def _whole_files(
    *, setting: str, location: Path, splits: Mapping[str, Sequence[SourceFile]], files: Sequence[SourceFile]
) -> Sources:
    pieces = {split: tuple(Piece(file.path, 0, file.size) for file in splits[split]) for split in SPLITS}
    return Sources(setting=setting, location=location, files=tuple(files), splits=pieces)
