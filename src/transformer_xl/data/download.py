"""Fetching a published corpus, checked, from the first of its addresses that works."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Any
from urllib.parse import quote

from transformer_xl import hub
from transformer_xl.errors import atomic_write, first_line

RECORD = "downloads.json"
_UNFINISHED = "hub.part"
_TIMEOUTS_S = (10.0, 60.0)
"""To connect, and without a byte."""
_ATTEMPTS = 5
_BLOCK_BYTES = 1 << 14
"""What is lost of the last block when a connection breaks is fetched again, so it is small."""
_SECONDS_BETWEEN_LINES = 10.0
_HEADERS = {
    # some mirrors turn away whatever calls itself Python
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0 Safari/537.36",
    "Accept-Encoding": "identity",
}


@dataclass(frozen=True, kw_only=True)
class WebFile:
    """A file at an address; its SHA-256, and its size where it is known."""

    url: str
    sha256: str
    size: int | None = None

    @property
    def name(self) -> str:
        """The name under which it is kept."""
        return self.url.rpartition("/")[2]

    @property
    def address(self) -> str:
        """What a person can open in a browser."""
        return self.url


@dataclass(frozen=True, kw_only=True)
class HubFolder:
    """The Parquet files of one folder of a dataset on the Hub, and the splits that they must give."""

    repository: str
    revision: str
    folder: str
    splits: tuple[str, ...] = ("train", "validation", "test")

    @property
    def address(self) -> str:
        """What a person can open in a browser."""
        endpoint = (hub.endpoint() or "https://huggingface.co").rstrip("/")
        return f"{endpoint}/datasets/{self.repository}/tree/{quote(self.revision, safe='')}/{self.folder}"


class SourceFailed(Exception):  # noqa: N818 - not an error: another source may have the file
    """A source gives no usable file; its text says which one, and why."""


def fetch_first(sources: Sequence[WebFile | HubFolder], folder: Path, *, announce: Callable[[str], None]) -> str | None:
    """Fetch the first source that works, and record in the folder's `downloads.json` what came and whence.

    Return why the last of the sources failed; None where one has worked.
    """
    failure = None
    for source in sources:
        if failure is not None:
            announce(f"data: {failure}; trying {source.address}")
        try:
            fetch = _fetch_dataset if isinstance(source, HubFolder) else _fetch_file
            _record(folder, fetch(source, folder, announce=announce))  # type: ignore[arg-type]
        except SourceFailed as error:
            failure = str(error)
        else:
            return None
    return failure


def remove_parts(folder: Path) -> None:
    """Delete what is left of downloads that broke off."""
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)
    for left in folder.glob("*.part"):
        left.unlink(missing_ok=True)


def _fetch_file(file: WebFile, folder: Path, *, announce: Callable[[str], None]) -> dict[str, Any]:
    import requests

    part = folder / f"{file.name}.part"
    for _ in range(_ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            _receive(file, part, announce=announce)
            break
        except requests.exceptions.ChunkedEncodingError as error:  # the connection broke: the rest is asked for
            if part.stat().st_size <= before:
                raise SourceFailed(f"{file.url} ends after {before:,} bytes ({first_line(error)})") from error
        except requests.RequestException as error:
            raise SourceFailed(f"{file.url} cannot be read: {first_line(error)}") from error
    try:
        entry = _checked(part, url=file.url, size=file.size, sha256=file.sha256)
    except SourceFailed:
        part.unlink()
        raise
    part.replace(folder / file.name)
    return {file.name: entry}


def _receive(file: WebFile, part: Path, *, announce: Callable[[str], None]) -> None:
    """Fetch what is not here yet; the checksum tells whether the rest belongs to what was here."""
    import requests

    start = part.stat().st_size if part.exists() else 0
    headers = _HEADERS | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(file.url, headers=headers, stream=True, timeout=_TIMEOUTS_S) as response:
        if start and response.status_code == 416:  # nothing is missing, or it is another file
            return
        if response.status_code not in (200, 206):
            raise SourceFailed(f"{file.url} answers {response.status_code} {response.reason}".rstrip())
        start = start if response.status_code == 206 else 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else file.size
        announce(f"data: fetching {file.url}{'' if total is None else f' ({_readable(total)})'}")
        said = time.monotonic()
        with part.open("ab" if start else "wb") as target:
            for block in response.iter_content(_BLOCK_BYTES):
                target.write(block)
                if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                    said = time.monotonic()
                    announce(f"data: {file.name}: {_readable(target.tell())} of {_readable(total)}")


def _fetch_dataset(source: HubFolder, folder: Path, *, announce: Callable[[str], None]) -> dict[str, Any]:
    """Fetch Parquet files below the path that they have in the repository; moved into place when all are whole."""
    if hub.is_offline():
        raise SourceFailed(f"{source.address} is not asked: HF_HUB_OFFLINE is set")
    client = hub.load_client()
    unfinished = folder / _UNFINISHED
    try:
        entries = _download_all(source, client, unfinished, announce=announce)
    except SourceFailed:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    except Exception as error:  # whatever the client's own HTTP library raises
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, OSError):  # how the client says that a size is wrong
            shutil.rmtree(unfinished, ignore_errors=True)
        named = " (HF_ENDPOINT)" if hub.endpoint() else ""
        reason = hub.refusal(client, error) or first_line(error)
        raise SourceFailed(f"{source.address}{named} cannot be read: {reason}") from error
    for path in entries:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / path).replace(folder / path)
    shutil.rmtree(unfinished)
    return entries


def _download_all(
    source: HubFolder, client: Any, folder: Path, *, announce: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    where = {"repo_id": source.repository, "repo_type": "dataset", "revision": source.revision}
    address = partial(client.hf_hub_url, endpoint=hub.endpoint(), **where)
    with suppress(client.errors.EntryNotFoundError):  # whether it answers: for the list it would be asked many times
        client.get_hf_file_metadata(address(filename="README.md"), timeout=hub.TIMEOUT_S, token=client.get_token())
    files = _listed(source, client.HfApi(endpoint=hub.endpoint()), where)
    size = sum(file.size for file in files)
    announce(f"data: fetching {len(files)} files of {source.address} ({_readable(size)})")
    entries = {}
    for file in files:
        client.hf_hub_download(
            filename=file.path, local_dir=folder, endpoint=hub.endpoint(), etag_timeout=hub.TIMEOUT_S, **where
        )
        sha256 = file.lfs.sha256 if file.lfs else None
        entries[file.path] = _checked(
            folder / file.path, url=address(filename=file.path), size=file.size, sha256=sha256
        )
    return entries


def _listed(source: HubFolder, api: Any, where: dict[str, str]) -> list[Any]:
    splits = "|".join(source.splits)
    parquet = re.compile(rf"{re.escape(source.folder)}/({splits})(/\d+|-\d+-of-\d+)\.parquet")
    found = {
        (source.splits.index(match[1]), entry.path): entry
        for entry in api.list_repo_tree(path_in_repo=source.folder, recursive=True, **where)
        if (match := parquet.fullmatch(entry.path))
    }
    missing = [split for number, split in enumerate(source.splits) if number not in {place for place, _ in found}]
    if missing:
        raise SourceFailed(f"{source.address} has no parquet files of {', '.join(missing)}")
    return [found[key] for key in sorted(found)]


def _checked(path: Path, *, url: str, size: int | None, sha256: str | None) -> dict[str, Any]:
    here = path.stat().st_size
    if size is not None and here != size:
        raise SourceFailed(f"{url} gave {here:,} bytes and not {size:,}")
    with path.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if sha256 is not None and found != sha256:
        raise SourceFailed(f"{url} gave a file with the SHA-256 {found} and not {sha256}")
    return {"url": url, "size": here, "sha256": found}


def _record(folder: Path, entries: dict[str, Any]) -> None:
    try:
        known = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    with atomic_write(folder / RECORD) as file:
        json.dump({**known, **entries}, file, indent=2, sort_keys=True)


def _readable(size: int | None) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size is not None and size >= factor:
            return f"{size / factor:.1f} {unit}"
    return "an unknown size" if size is None else f"{size} bytes"
