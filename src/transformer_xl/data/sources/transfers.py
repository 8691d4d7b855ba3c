"""What all downloads share: how they fail, what they say meanwhile, how a file is checked and recorded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

RECORD = "downloads.json"
_BLOCK_BYTES = 1 << 20
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_OF_SILENCE = 60.0
_SHARE_BETWEEN_LINES = 0.1


class SourceFailed(Exception):  # noqa: N818 - not an error: another source may have the file
    """A source gives no usable file; its text says which one, and why."""


class Downloaded(NamedTuple):
    """A file as it came: its name below the corpus's folder, where it is from, and what it is."""

    name: str
    url: str
    size: int
    sha256: str


class Progress:
    """Says how far a download is: after a tenth more, or a minute, and never within ten seconds of the last line."""

    def __init__(
        self,
        title: str,
        *,
        total: int | None,
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._announce, self._clock = title, total, announce, clock
        self._said_at, self._said = clock(), 0

    def update(self, done: int) -> None:
        """Take note that `done` bytes are here."""
        passed = self._clock() - self._said_at
        much = self._total is not None and done - self._said >= _SHARE_BETWEEN_LINES * self._total
        if passed < _SECONDS_BETWEEN_LINES or not (much or passed >= _SECONDS_OF_SILENCE):
            return
        self._said_at, self._said = self._clock(), done
        of = "" if self._total is None else f" of {readable_size(self._total)}"
        self._announce(f"data: {self._title}: {readable_size(done)}{of}")


def readable_size(size: int) -> str:
    """Give bytes as a person reads them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def require_room(folder: Path, size: int) -> None:
    """Raise the `OSError` of a full disk, before it is full, where `size` more bytes have no room."""
    free = shutil.disk_usage(folder).free
    if free < size:
        reason = f"{os.strerror(errno.ENOSPC)}: {readable_size(size)} are needed, {readable_size(free)} are free"
        raise OSError(errno.ENOSPC, reason, str(folder))


def checked(path: Path, *, address: str, size: int | None, sha256: str | None) -> str:
    """Give a file's SHA-256; `SourceFailed` where its size or checksum is not the known one."""
    here = path.stat().st_size
    if size is not None and here != size:
        raise SourceFailed(f"{address} gave {here:,} bytes and not {size:,}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise SourceFailed(f"{address} gave a file with the SHA-256 {digest.hexdigest()} and not {sha256}")
    return digest.hexdigest()


def record(folder: Path, files: Iterable[Downloaded]) -> None:
    """Write down where files came from, beside what is written there of others."""
    path = folder / RECORD
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    entries = known if isinstance(known, dict) else {}
    entries |= {file.name: {"url": file.url, "size": file.size, "sha256": file.sha256} for file in files}
    unfinished = folder / f"{RECORD}.part"
    unfinished.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    unfinished.replace(path)
