"""Fetching a published corpus from the first of its sources that works."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from transformer_xl.data.sources.hub import UNFINISHED, download_folder
from transformer_xl.data.sources.mirrors import MIRRORS, HubFolder, WebFile
from transformer_xl.data.sources.transfers import Downloaded, SourceFailed, record
from transformer_xl.data.sources.web import download


def fetch(kind: str, folder: Path, *, announce: Callable[[str], None]) -> list[str]:
    """Fetch a corpus's files into a folder, and record there (`downloads.json`) what they are and whence.

    Returns:
        Why each source failed; nothing where one has worked.

    Raises:
        OSError: the files cannot be written here.
    """
    mirrors = MIRRORS[kind]
    # Before the corpus itself: with it alone a later run would find nothing amiss, and count its own vocabulary.
    if mirrors.also and not (folder / mirrors.also[0].name).is_file():
        failures = _first_that_works(mirrors.also, folder, announce=announce)
        if failures:
            announce(f"data: {failures[-1]}; {kind} is fetched without {mirrors.also[0].name}")
    failures = _first_that_works(mirrors.sources, folder, announce=announce)
    if not failures:
        _clear(folder)
    return failures


def _first_that_works(
    sources: Sequence[WebFile | HubFolder], folder: Path, *, announce: Callable[[str], None]
) -> list[str]:
    """Give why all sources failed; nothing where one has worked."""
    failures: list[str] = []
    for source, following in zip(sources, [*sources[1:], None], strict=True):
        try:
            record(folder, _download(source, folder, announce=announce))
        except SourceFailed as failure:
            failures.append(str(failure))
            if following is not None:
                announce(f"data: {failure}; trying {following.address}")
        else:
            return []
    return failures


def _download(source: WebFile | HubFolder, folder: Path, *, announce: Callable[[str], None]) -> list[Downloaded]:
    if isinstance(source, HubFolder):
        return download_folder(source, folder, announce=announce)
    return [download(source, folder, announce=announce)]


def _clear(folder: Path) -> None:
    """Delete what is left of sources that broke off before another one worked."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    for left in [*folder.glob("*.part"), *folder.glob("*.part.json")]:
        left.unlink(missing_ok=True)
