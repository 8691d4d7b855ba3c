"""Which files a corpus is made of, and which bytes of them belong to which split."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_xl.config import CorpusConfig, PublishedConfig, StdlibConfig, TextConfig
from transformer_xl.data.building.cutting import cut_into_splits
from transformer_xl.data.sources.files import SPLITS, Piece, SourceFile, Sources, describe, reading_setting, whole_files
from transformer_xl.data.sources.published import published_sources
from transformer_xl.errors import UserError

_STDLIB_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_SPLIT_OF_STEM = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}


def find_sources(config: CorpusConfig) -> Sources:
    """Find the files that a configuration names, and split them; `UserError` where they are missing or empty."""
    if isinstance(config, StdlibConfig):
        return _stdlib(config)
    if isinstance(config, TextConfig):
        return _text(config)
    assert isinstance(config, PublishedConfig)
    return published_sources(config)


def _stdlib(config: StdlibConfig) -> Sources:
    root = Path(sysconfig.get_paths()["stdlib"])
    setting = f"data=stdlib reads *.py below {str(root)!r}"
    with reading_setting(setting):
        files = _walk(root, keep_folder=lambda name: name not in _STDLIB_SKIPPED, keep_file=_is_python)
    splits: dict[str, list[SourceFile]] = {split: [] for split in SPLITS}
    for file in files:
        splits[_split_by_name(file.name, config=config)].append(file)
    if not files:
        raise UserError(f"{setting}, which holds none; name a text of your own with data=text data.path=...")
    return whole_files(setting=setting, location=root.resolve(), splits=splits, files=files)


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
    with reading_setting(setting, wanted="a text file or a folder of text files"):
        location = path.resolve(strict=True)
        if stat.S_ISDIR(location.stat().st_mode):
            named = _named_splits(location, setting=setting)
            if named:
                files = [file for split in SPLITS for file in named[split]]
                _require_text(files, setting=setting)
                return whole_files(setting=setting, location=location, splits=named, files=files)
            files = _walk(location, keep_folder=_is_visible, keep_file=_is_visible)
        else:
            files = [describe(location, name=location.name)]
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
    return {split: [describe(path, name=path.name) for path in found[split]] for split in SPLITS}


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
                found.append(describe(path, name=path.relative_to(root).as_posix()))
    return sorted(found, key=lambda file: file.name)


def _raise(error: OSError) -> None:
    raise error
