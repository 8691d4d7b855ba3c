"""The files that a user's path names: one file, a folder, or a glob."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from transformer_xl.data.sources.files import SPLITS, SourceFile, describe, reading_setting
from transformer_xl.data.sources.names import split_of_name
from transformer_xl.errors import UserError

_CACHE_FILES = {"corpus.json", "vocabulary.json"}
_WILDCARD = re.compile(r"[*?\[]")
_NAMES_SHOWN = 3


class Listing(NamedTuple):
    """Files in the order of their names.

    Attributes:
        location: the file, the folder, or the longest folder of a glob that has no wildcards, without symbolic links.
        files: named by their path below `location`; a file that the user named himself by the name he gave it.
        is_one_file: whether the path names one file, rather than a place where some may be.
    """

    location: Path
    files: list[SourceFile]
    is_one_file: bool


def list_files(path: str, *, setting: str, wanted: str) -> Listing:
    """List the files that a path names: itself, all visible ones below a folder, or those that match a glob.

    Folders that hold a corpus's token files are passed over: taking them would change the corpus at every build. So
    is what is no regular file, unless the path names it.

    Args:
        path: as the user wrote it, with `~` for his home; a glob only if nothing has that very name.
        setting: what the user set, and its value, for messages.
        wanted: what it must name, for messages.

    Raises:
        UserError: there is no file, all are empty, or they cannot be read.
    """
    with reading_setting(setting, wanted=wanted):
        expanded = Path(os.path.expanduser(path))
        if _WILDCARD.search(str(expanded)) and not os.path.lexists(expanded):
            listing = _glob(expanded)
            nothing = "which matches no file ('**' goes through folders)"
        else:
            listing = _file_or_folder(expanded)
            nothing = "a folder without files"
    if not listing.files:
        raise UserError(f"{setting}, {nothing}, and must name {wanted}")
    if not any(file.size for file in listing.files):
        raise UserError(f"{setting}, which is empty, and must name {wanted}")
    return listing


def _file_or_folder(path: Path) -> Listing:
    location = path.resolve(strict=True)
    if location.is_dir():
        return Listing(location, walk(location, keep_folder=_is_visible, keep_file=_is_visible), is_one_file=False)
    # What a link is called says how the file is written, more than the name of what it leads to.
    file = describe(location, name=path.name)
    return Listing(location, [file], is_one_file=True)


def _glob(path: Path) -> Listing:
    beginning = next(number for number, part in enumerate(path.parts) if _WILDCARD.search(part))
    location = Path(*path.parts[:beginning]).resolve(strict=True)
    found = {Path(name) for name in _matching(str(location), path.parts[beginning:])}
    files = [describe(each, name=each.relative_to(location).as_posix()) for each in found if each.is_file()]
    return Listing(location, sorted(files, key=_name), is_one_file=False)


def _matching(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths below a folder that match a glob's parts, some perhaps more than once."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        for below, _ in _folders(folder, keep_folder=_is_visible):
            yield from _matching(below, rest or ("*",))
        return
    names = os.listdir(folder)
    if set(names) >= _CACHE_FILES:
        return
    for name in names:
        if fnmatchcase(name, part) and (_is_visible(name) or part.startswith(".")):
            path = os.path.join(folder, name)
            if not rest:
                yield path
            elif os.path.isdir(path):
                yield from _matching(path, rest)


def walk(root: Path, *, keep_folder: Callable[[str], bool], keep_file: Callable[[str], bool]) -> list[SourceFile]:
    """List the regular files below a folder, sorted by their names with forward slashes; `OSError` where it cannot."""
    found = []
    for folder, names in _folders(str(root), keep_folder=keep_folder):
        beginning = "" if Path(folder) == root else f"{Path(folder).relative_to(root).as_posix()}/"
        for name in filter(keep_file, names):
            path = Path(folder, name)
            if path.is_file():
                found.append(describe(path, name=beginning + name))
    return sorted(found, key=_name)


def _folders(root: str, *, keep_folder: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and those below it, links not followed, each with the names of its files."""
    for folder, folders, names in os.walk(root, onerror=_raise):
        if set(names) >= _CACHE_FILES:
            folders.clear()
            continue
        folders[:] = filter(keep_folder, folders)
        yield folder, names


def split_by_name(files: Sequence[SourceFile]) -> tuple[dict[str, list[SourceFile]], list[SourceFile]]:
    """Sort files into the splits that their names say, and give those whose names say none."""
    splits: dict[str, list[SourceFile]] = {split: [] for split in SPLITS}
    others: list[SourceFile] = []
    for file in files:
        split = split_of_name(file.name)
        (others if split is None else splits[split]).append(file)
    return splits, others


def require_splits(
    splits: dict[str, list[SourceFile]], others: Sequence[SourceFile], *, setting: str
) -> tuple[str, ...]:
    """Refuse files of which not all splits have one; give notes on those that are of none."""
    missing = [split for split in SPLITS if not splits[split]]
    if missing:
        there = [file.name for split in SPLITS for file in splits[split]] + [file.name for file in others]
        raise UserError(
            f"{setting}, where no file's or folder's name begins with {' or '.join(missing)} beside "
            f"{_first(there)}: there must be train*, valid* and test*, or data.split be fraction or hash"
        )
    if not others:
        return ()
    names = _first([file.name for file in others])
    return (f"left out, since others are named train*, valid* and test*: {names}",)


def _first(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMES_SHOWN:,} more"] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*map(repr, names[:_NAMES_SHOWN]), *more])


def _name(file: SourceFile) -> str:
    return file.name


def _is_visible(name: str) -> bool:
    return not name.startswith(".")


def _raise(error: OSError) -> None:
    raise error
