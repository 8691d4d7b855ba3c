"""A folder of a dataset on the Hub: listed, fetched by the Hub's own client, checked, and moved into place at once."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformer_xl import hub
from transformer_xl.data.sources.mirrors import HubFolder, endpoint
from transformer_xl.data.sources.transfers import (
    Downloaded,
    Progress,
    SourceFailed,
    checked,
    readable_size,
    require_room,
)
from transformer_xl.errors import first_line

UNFINISHED = "hub.part"
"""The folder, beside the corpus's files, in which they come."""
_TIMEOUT_S = 10.0
_SECONDS_BETWEEN_LOOKS = 1.0


class _Listed(NamedTuple):
    path: str
    split: str
    size: int
    sha256: str | None


def download_folder(source: HubFolder, folder: Path, *, announce: Callable[[str], None]) -> list[Downloaded]:
    """Fetch a dataset's parquet files into a folder, below the path that they have in the repository.

    `HF_ENDPOINT`, `HF_HUB_OFFLINE` and `HF_TOKEN` are honoured as they are set now. Files are moved into place when
    all of them are whole, training first and test last, so that what a killed run leaves always lacks a split.

    Raises:
        SourceFailed: the Hub cannot be reached, or does not have all splits, or gives other bytes than it lists.
        OSError: the files cannot be written here.
    """
    repository = _Hub(source)
    files = repository.list_files()
    unfinished = folder / UNFINISHED
    unfinished.mkdir(exist_ok=True)
    total = sum(file.size for file in files)
    require_room(folder, total - _size_below(unfinished))
    announce(f"data: fetching {len(files)} files of {source.address} ({readable_size(total)})")
    with _watching(unfinished, Progress(source.repository, total=total, announce=announce)):
        for file in files:
            repository.download(file.path, unfinished)
    downloaded = []
    try:
        for file in files:
            address = repository.address(file.path)
            sha256 = checked(unfinished / file.path, address=address, size=file.size, sha256=file.sha256)
            downloaded.append(Downloaded(file.path, address, file.size, sha256))
    except SourceFailed:
        shutil.rmtree(unfinished)
        raise
    for file in files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / file.path).replace(folder / file.path)
    shutil.rmtree(unfinished)
    return downloaded


class _Hub:
    """One dataset at one revision, through the Hub's own client."""

    def __init__(self, source: HubFolder) -> None:
        self._source = source
        if hub.is_offline():
            raise SourceFailed(f"{source.address} is not asked: HF_HUB_OFFLINE is set")
        self._endpoint = endpoint()
        self._hub = hub.load_client()
        self._where: dict[str, Any] = {
            "repo_id": source.repository,
            "repo_type": "dataset",
            "revision": source.revision,
        }

    def address(self, path: str) -> str:
        """Give a file's address."""
        return str(self._hub.hf_hub_url(filename=path, endpoint=self._endpoint, **self._where))

    def list_files(self) -> list[_Listed]:
        """List the parquet files, sorted by split and name."""
        self._require_answer()
        source = self._source
        parquet = re.compile(rf"{re.escape(source.folder)}/(train|validation|test)(/\d+|-\d+-of-\d+)\.parquet")
        api = self._hub.HfApi(endpoint=self._endpoint)
        with self._failing():
            entries = [
                entry
                for entry in api.list_repo_tree(path_in_repo=source.folder, recursive=True, **self._where)
                if isinstance(entry, self._hub.hf_api.RepoFile)
            ]
        found = [
            _Listed(entry.path, match[1], entry.size, entry.lfs.sha256 if entry.lfs else None)
            for entry in entries
            if (match := parquet.fullmatch(entry.path))
        ]
        missing = [split for split in source.splits if split not in {file.split for file in found}]
        if missing:
            raise SourceFailed(f"{source.address} has no parquet files of {', '.join(missing)}")
        return sorted(
            (file for file in found if file.split in source.splits),
            key=lambda file: (source.splits.index(file.split), file.path),
        )

    def download(self, path: str, folder: Path) -> None:
        """Fetch a file into a folder; what is there of it already is gone on with."""
        with self._failing(), _without_bars(self._hub):
            try:
                self._hub.hf_hub_download(
                    filename=path,
                    local_dir=folder,
                    endpoint=self._endpoint,
                    etag_timeout=_TIMEOUT_S,
                    **self._where,
                )
            except OSError as error:
                if type(error) is OSError and error.errno is None:  # how the client says that a size is wrong
                    shutil.rmtree(folder)
                raise

    def _require_answer(self) -> None:
        """Ask once whether the Hub answers: the client itself would ask for the list many times."""
        with self._failing():
            try:
                self._hub.get_hf_file_metadata(
                    self.address("README.md"), timeout=_TIMEOUT_S, token=self._hub.get_token()
                )
            except self._hub.errors.EntryNotFoundError:
                return

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn whatever the client raises, but for errors of this machine's files, into `SourceFailed`."""
        try:
            yield
        except Exception as error:  # whatever the client's own HTTP library raises
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = hub.refusal(self._hub, error) or first_line(error)
            named = " (HF_ENDPOINT)" if hub.endpoint() else ""
            raise SourceFailed(f"{self._source.address}{named} cannot be read: {reason}") from error


@contextmanager
def _without_bars(client: Any) -> Iterator[None]:
    """Keep the client's own progress bars off: ours are lines."""
    were_off = client.utils.are_progress_bars_disabled()
    if not were_off:
        client.utils.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            client.utils.enable_progress_bars()


@contextmanager
def _watching(folder: Path, progress: Progress) -> Iterator[None]:
    """Say meanwhile how much is in a folder: the client tells nobody but its own bars."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            progress.update(_size_below(folder))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _size_below(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:  # renamed meanwhile
                continue
    return total
