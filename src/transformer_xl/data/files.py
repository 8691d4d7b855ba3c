"""From what a user names to the files of each split and their bytes, unpacked."""

from __future__ import annotations

import lzma
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple

from filelock import FileLock, Timeout

from transformer_xl.data.lanes import SPLITS
from transformer_xl.data_config import TextConfig, TokensConfig
from transformer_xl.errors import UserError, first_line

CHUNK_BYTES = 1 << 20
_CACHE_FILES = {"corpus.json", "vocabulary.json"}
_WILDCARD = re.compile(r"[*?\[]")
_SPLIT_NAME = re.compile(
    r"(?:(?P<train>training|train)|(?P<valid>validation|valid|val|dev)|(?P<test>test))(?:$|[-._0-9])", re.I
)


class Source(NamedTuple):
    """A file as it was found, and how text or token ids are written in it.

    Attributes:
        name: its path below the corpus's folder, with forward slashes.
        format: `text`, or records of which `field` is the text: `jsonl`, `csv`, `tsv`, `parquet`; of ids see token_ids.
        compression: of the file as a whole: gzip, bz2, zstd, xz.
    """

    path: Path
    name: str
    size: int
    mtime_ns: int
    format: str = "text"
    field: str | None = None
    compression: str | None = None

    @property
    def place(self) -> str:
        """The file, for messages."""
        return repr(str(self.path))


class Cut(NamedTuple):
    """How one text becomes three splits, with the shares of validation and of test.

    `bytes`: at exactly these shares; `fraction`: there, moved to the next border of a document or a line; `hash`: each
    document by a hash of its own content.
    """

    by: Literal["bytes", "fraction", "hash"]
    valid: float
    test: float


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files of a corpus, or its documents.

    Attributes:
        setting: what the user set, for messages.
        location: the file, folder or glob that was named, without symbolic links.
        splits: the files of `train`, `valid` and `test`, in order; where `cut` is given all stand under `train`.
        cut: how the text is divided; None: the files say it.
        notes: what is unusual about the files.
        vocabulary: a file that lists the vocabulary.
        documents: of the splits of a corpus from outside, in place of files.
    """

    setting: str
    location: Path
    splits: Mapping[str, Sequence[Source]]
    cut: Cut | None = None
    notes: Sequence[str] = ()
    vocabulary: Source | None = None
    documents: Mapping[str, Iterable[str | bytes]] = field(default_factory=dict)

    @property
    def files(self) -> list[Source]:
        """All files in order, each once."""
        found = [source for split in SPLITS for source in self.splits.get(split, ())]
        return list(dict.fromkeys([*found, self.vocabulary] if self.vocabulary else found))


def divide(config: TextConfig | TokensConfig, found: Sources, read_as: Callable[[Source], Source]) -> Sources:
    """Put files into splits: those whose names say so, or all of them into one text that is cut, as settings have it.

    `read_as` adds to each file that is used how it is written. `UserError` where not all splits have a file.
    """
    files = found.splits["train"]
    splits: dict[str | None, list[Source]] = {split: [] for split in (*SPLITS, None)}
    for file in files:
        splits[split_of_name(file.name)].append(file)
    by_name = config.split == "auto" and splits["train"] and not found.location.is_file()
    if config.split != "files" and not by_name:
        cut = Cut("hash" if config.split == "hash" else "fraction", config.valid_fraction, config.test_fraction)
        return replace(found, splits={"train": list(map(read_as, files))}, cut=cut)
    if missing := [split for split in SPLITS if not splits[split]]:
        raise UserError(
            f"{found.setting}, where no name begins with {' or '.join(missing)} beside {named_first(files)}: there "
            "must be train*, valid* and test*, or data.split be fraction or hash"
        )
    others = splits[None]
    notes = [f"left out, since others are named train*, valid* and test*: {named_first(others)}"] if others else []
    named = {split: list(map(read_as, splits[split])) for split in SPLITS}
    return replace(found, splits=named, notes=[*found.notes, *notes])


def split_of_name(name: str) -> str | None:
    """Return `train`, `valid` or `test` where a file's name says so, None where it does not.

    The first folder of its path decides before its own name: `train/test_of_time.txt` is training text. The word must
    end there or be followed by `.`, `-`, `_` or a digit: `trains.txt` and `testament.txt` say nothing.
    """
    path = PurePosixPath(name)
    found = (_SPLIT_NAME.match(part) for part in (path.parts[0], path.name))
    return next((match.lastgroup for match in found if match), None)


def list_files(path: str, *, setting: str, wanted: str) -> Sources:
    """List the files that a path names as one split: itself, all visible ones below a folder, or matches of a glob.

    Links are followed, those to folders once each. Folders that hold a corpus's token files are passed over: they would
    change the corpus at every build. `setting` and `wanted` are for messages. `UserError` where there is nothing.
    """
    if not path:
        raise UserError(f"{setting}, and must name {wanted}")
    expanded = Path(os.path.expanduser(path))
    pattern: Sequence[str] = ()
    try:
        if _WILDCARD.search(str(expanded)) and not os.path.lexists(expanded):
            first = next(number for number, part in enumerate(expanded.parts) if _WILDCARD.search(part))
            expanded, pattern = Path(*expanded.parts[:first]), expanded.parts[first:]
        root = expanded.resolve(strict=True)
        if root.is_dir():
            found = {Path(each) for each in (_matching(str(root), pattern) if pattern else walk(root))}
            named = sorted((each.relative_to(root).as_posix(), each) for each in found)
        else:  # what a link is called says how the file is written, more than the name of what it leads to
            named = [(expanded.name, root)]
        files = [describe(each, name=name) for name, each in named if each.is_file()]
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{setting}, which cannot be read: {first_line(error)}; it must name {wanted}") from error
    if not any(file.size for file in files):
        raise UserError(f"{setting}, where nothing is to be read, and must name {wanted}")
    broken = [name for name, each in named if not each.exists()]
    notes = [f"links that lead nowhere: {', '.join(map(repr, broken[:3]))}"] if broken else []
    return Sources(setting=setting, location=root.joinpath(*pattern), splits={"train": files}, notes=notes)


def describe(path: Path, *, name: str) -> Source:
    """Return what a file is now; `OSError` where there is none."""
    status = path.stat()
    return Source(path, name, status.st_size, status.st_mtime_ns)


def walk(root: Path, *, without: Container[str] = ()) -> Iterator[Path]:
    """Yield what is no folder in `root` and the folders below it; nothing that is hidden or in a folder `without`."""
    return (Path(folder, name) for folder, names in _folders(root, without) for name in names if name[0] != ".")


def _folders(root: Path, without: Container[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder once, with the names of what else is in it; links to folders come after all others."""
    seen: set[str] = set()
    waiting = [str(root)]
    while waiting:
        for folder, folders, names in os.walk(waiting.pop(0), onerror=_raise):
            real = os.path.realpath(folder)
            if real in seen or set(names) >= _CACHE_FILES:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if name[0] != "." and name not in without)
            waiting += filter(os.path.islink, [os.path.join(folder, name) for name in folders])
            yield folder, names


def _matching(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths below a folder that match a glob's parts, some perhaps more than once."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        for below, _ in _folders(Path(folder)):
            yield from _matching(below, rest or ("*",))
        return
    for name in os.listdir(folder):
        if fnmatchcase(name, part) and (name[0] != "." or part[0] == "."):
            path = os.path.join(folder, name)
            if not rest:
                yield path
            elif os.path.isdir(path):
                yield from _matching(path, rest)


def _raise(error: OSError) -> None:
    raise error


def named_first(files: Sequence[Source]) -> str:
    """Return the first three names, quoted, and how many more there are."""
    more = [f"{len(files) - 3:,} more"] if len(files) > 3 else []
    return ", ".join([*(repr(file.name) for file in files[:3]), *more])


def read_bytes(source: Source) -> Iterator[bytes]:
    """Yield what a file holds, unpacked; `UserError` where it is damaged."""
    try:
        yield from _unpacked(source)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        kind = f" as {source.compression}; it is damaged or cut off" if source.compression else ""
        raise UserError(f"{source.place} cannot be read{kind}: {first_line(error)}") from error


def _unpacked(source: Source) -> Iterator[bytes]:
    if source.compression in (None, "xz"):
        with source.path.open("rb") as file:
            yield from _unpacked_xz(file) if source.compression else iter(partial(file.read, CHUNK_BYTES), b"")
    else:
        import pyarrow

        with pyarrow.input_stream(str(source.path), compression=source.compression) as stream:
            yield from iter(partial(stream.read, CHUNK_BYTES), b"")


def _unpacked_xz(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the streams of an .xz file; unlike `lzma`'s own reader it refuses what else is there."""
    data = file.read(CHUNK_BYTES)
    while data:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        while not stream.eof:
            if stream.needs_input and not data and not (data := file.read(CHUNK_BYTES)):
                raise EOFError("it ends before its end marker")
            unpacked, data = stream.decompress(data, CHUNK_BYTES), b""
            if unpacked:
                yield unpacked
        data = stream.unused_data.lstrip(b"\0")
        while not data and (data := file.read(CHUNK_BYTES)):  # zeros may stand between streams and at the end
            data = data.lstrip(b"\0")


@contextmanager
def locked(path: Path, announce: Callable[[str], None], waiting: str) -> Iterator[None]:
    """Hold the lock file `path`, which one process of this machine has at a time and a killed one gives back.

    `announce` is called with `waiting` if another process has it. Where the file system has no locks, all may go on.
    """
    lock = FileLock(path)
    with suppress(NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            announce(waiting)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
