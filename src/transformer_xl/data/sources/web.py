"""One file from an address: resumed, checked, and there only once it is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_xl.data.sources.mirrors import WebFile
from transformer_xl.data.sources.transfers import (
    Downloaded,
    Progress,
    SourceFailed,
    checked,
    readable_size,
    require_room,
)

if TYPE_CHECKING:
    import requests

_TIMEOUTS_S = (10.0, 60.0)
"""To connect, and without a byte."""
_BLOCK_BYTES = 1 << 14
"""What is lost of the last block when a connection breaks is fetched again, so it is small."""
_MOST_ATTEMPTS = 20
_HEADERS = {
    # some mirrors turn away whatever calls itself Python
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0 Safari/537.36",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
}


class _Cut(Exception):  # noqa: N818 - not an error: the rest is asked for
    """The connection ended before the file did."""


@dataclass(frozen=True)
class _Part:
    """What is here of a file, and which version of it that is."""

    path: Path

    @property
    def _notes_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self, url: str) -> str | None:
        """Give what the server must still call this version for the rest to fit; None where there is no such thing."""
        try:
            notes = json.loads(self._notes_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        version = notes.get("version") if isinstance(notes, dict) and notes.get("url") == url else None
        return version if isinstance(version, str) and self.size() else None

    def begin(self, url: str, version: str | None) -> None:
        self.remove()
        self._notes_path.write_text(json.dumps({"url": url, "version": version}), encoding="utf-8")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._notes_path.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        self.path.replace(target)
        self._notes_path.unlink(missing_ok=True)


def download(file: WebFile, folder: Path, *, announce: Callable[[str], None]) -> Downloaded:
    """Fetch a file into a folder; a part that an earlier run left is gone on with.

    Raises:
        SourceFailed: the address gives no whole file of the known size and checksum. What came of it is deleted, unless
            the connection broke and the rest may still come.
        OSError: the file cannot be written here.
    """
    part = _Part(folder / f"{file.name}.part")
    furthest = -1
    for _ in range(_MOST_ATTEMPTS):
        try:
            _receive(file, part, announce=announce)
            break
        except _Cut as cut:
            here = part.size()
            if here <= furthest:
                part.remove()
                raise SourceFailed(f"{file.url} ends after {here:,} bytes ({cut})") from cut
            furthest = here
    else:
        raise SourceFailed(f"{file.url} broke off {_MOST_ATTEMPTS} times")
    try:
        sha256 = checked(part.path, address=file.url, size=file.size, sha256=file.sha256)
    except SourceFailed:
        part.remove()
        raise
    size = part.size()
    part.finish(folder / file.name)
    return Downloaded(file.name, file.url, size, sha256)


def _receive(file: WebFile, part: _Part, *, announce: Callable[[str], None]) -> None:
    """Fetch what is not here yet; `_Cut` where the connection ends first."""
    import requests  # takes a while, which corpora that are here need not wait for

    version = part.version(file.url)
    headers = dict(_HEADERS)
    if version is not None:
        headers |= {"Range": f"bytes={part.size()}-", "If-Range": version}
    try:
        with requests.get(file.url, headers=headers, stream=True, timeout=_TIMEOUTS_S) as response:
            if version is not None and response.status_code == 416:  # nothing is missing, or it is another file
                part.remove()
                raise _Cut("the server cannot go on there")
            _write(file, part, response, resumed=version is not None, announce=announce)
    except requests.exceptions.ChunkedEncodingError as error:
        raise _Cut(_reason(error)) from error
    except requests.RequestException as error:
        raise SourceFailed(f"{file.url} cannot be read: {_reason(error)}") from error


def _write(
    file: WebFile, part: _Part, response: requests.Response, *, resumed: bool, announce: Callable[[str], None]
) -> None:
    start = part.size() if resumed and response.status_code == 206 else 0
    length = _whole_length(response, start=start)
    if response.status_code not in (200, 206) or (response.status_code == 206 and not _begins_at(response, start)):
        raise SourceFailed(f"{file.url} answers {response.status_code} {response.reason}".rstrip())
    if file.size is not None and length is not None and length != file.size:
        raise SourceFailed(f"{file.url} has {length:,} bytes and not {file.size:,}")
    total = length or file.size
    if total is not None:
        require_room(part.path.parent, total - start)
    if not start:
        part.begin(file.url, _version(response))
    size = "" if total is None else f" ({readable_size(total)})"
    after = f", going on after {readable_size(start)}" if start else ""
    announce(f"data: fetching {file.url}{size}{after}")
    progress = Progress(file.name, total=total, announce=announce)
    done = start
    with part.path.open("ab") as target:
        for block in response.iter_content(_BLOCK_BYTES):
            target.write(block)
            done += len(block)
            progress.update(done)
            if file.size is not None and done > file.size:
                break  # whatever that is, it is not the file
    if length is not None and done < length:
        raise _Cut(f"{length:,} were promised")


def _whole_length(response: requests.Response, *, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    packed = response.headers.get("Content-Encoding", "identity") != "identity"
    return start + int(length) if length.isdecimal() and not packed else None


def _begins_at(response: requests.Response, start: int) -> bool:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return found is not None and int(found[1]) == start


def _version(response: requests.Response) -> str | None:
    etag = response.headers.get("ETag")
    # a weak one may stay the same while bytes change
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _reason(error: BaseException) -> str:
    """Give the innermost cause in a line: what the HTTP library wraps around it helps nobody."""
    cause: Any = error
    while isinstance(inner := getattr(cause, "reason", None) or (cause.args[-1] if cause.args else None), Exception):
        cause = inner
    return (str(cause) or type(cause).__name__).splitlines()[0]
