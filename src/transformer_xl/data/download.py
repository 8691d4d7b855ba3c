"""Fetching a published corpus as text files, checked, from the first of its addresses that works."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

from transformer_xl import hub
from transformer_xl.errors import UserError, first_line

_TIMEOUTS_S = (10.0, 60.0)
"""To connect, and without a byte."""
_ATTEMPTS = 5
_BLOCK_BYTES = 1 << 14
_SECONDS_BETWEEN_LINES = 10.0
_HEADERS = {
    # some mirrors turn away whatever calls itself Python
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0 Safari/537.36",
    "Accept-Encoding": "identity",
}


class WebFile(NamedTuple):
    """A text file or an archive of text files at an address, with its SHA-256."""

    address: str
    sha256: str

    def fetch(self, folder: Path, announce: Callable[[str], None]) -> None:
        """Fetch the file, check it, and unpack it if it is an archive.

        What an earlier attempt left of it in `folder` is gone on with.

        Args:
            folder: gets the file, and below `text` the text files.
            announce: gets a line at the beginning and every ten seconds.

        Raises:
            OSError: it cannot be fetched.
            UserError: it is not the file that was published.
        """
        path = folder / self.address.rpartition("/")[2]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._receive(path, announce)
                break
            except OSError:  # the connection broke: the rest is asked for
                if attempt == _ATTEMPTS or not path.exists():
                    raise
        with path.open("rb") as file:
            found = file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            path.unlink()
            raise UserError(f"its SHA-256 is {found}, and must be {self.sha256}")
        if path.suffix in (".zip", ".gz", ".tgz"):
            filters = {} if path.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(path, folder / "text", **filters)  # type: ignore[arg-type]
        else:
            path.replace(folder / "text" / path.name)

    def _receive(self, path: Path, announce: Callable[[str], None]) -> None:
        import requests

        start = path.stat().st_size if path.exists() else 0
        headers = _HEADERS | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(self.address, headers=headers, stream=True, timeout=_TIMEOUTS_S) as response:
            if start and response.status_code == 416:  # nothing is missing, or it is another file
                return
            response.raise_for_status()
            start = start if response.status_code == 206 else 0
            total = start + int(response.headers.get("Content-Length", 0))
            announce(f"data: fetching {self.address} ({total / 1e6:,.1f} MB)")
            said = time.monotonic()
            with path.open("ab" if start else "wb") as target:
                for block in response.iter_content(_BLOCK_BYTES):
                    target.write(block)
                    if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                        said = time.monotonic()
                        announce(f"data: {path.name}: {target.tell() / 1e6:,.1f} of {total / 1e6:,.1f} MB")


class HubTables(NamedTuple):
    """The Parquet files of one folder of a dataset on the Hub.

    Attributes:
        repository: `owner/name@revision`.
        folder: in it are `train*`, `validation*` and `test*`.
        column: that holds the text.
        files: split -> the text file that it is written to; several may name the same one.
        line_end: what ends a row where the row itself does not end with it.
    """

    repository: str
    folder: str
    column: str
    files: Mapping[str, str]
    line_end: str = "\n"

    @property
    def address(self) -> str:
        """The name of the folder, for messages."""
        return f"{self.repository}/{self.folder} on the Hugging Face Hub"

    def fetch(self, folder: Path, announce: Callable[[str], None]) -> None:
        """Write the rows as text files below `text` in a folder; `UserError` where the Hub does not give them."""
        from pyarrow import parquet

        announce(f"data: fetching {self.address}")
        tables = hub.fetch(self.repository, [f"{self.folder}/*.parquet"], kind="dataset") / self.folder
        for split, name in self.files.items():
            paths = sorted([*tables.glob(f"{split}*.parquet"), *tables.glob(f"{split}/*.parquet")])
            if not paths:
                raise UserError(f"it has no Parquet files of {split}")
            with (folder / "text" / name).open("a", encoding="utf-8", newline="") as target:
                for path in paths:
                    for batch in parquet.ParquetFile(path).iter_batches(columns=[self.column]):
                        for row in batch.column(0).to_pylist():
                            target.write(row.removesuffix(self.line_end) + self.line_end)


def fetch_first(addresses: Sequence[WebFile | HubTables], folder: Path, announce: Callable[[str], None]) -> None:
    """Put the text files of the first address that works into a folder, whole or not at all.

    Raises:
        UserError: none works; it says why for each.
    """
    failures = []
    part, text = folder / "part", folder / "part" / "text"
    for source in addresses:
        shutil.rmtree(text, ignore_errors=True)
        text.mkdir(parents=True)
        try:
            source.fetch(part, announce)
        except Exception as error:  # whatever the clients of the Web, of the Hub and of archives raise
            failures.append(f"{source.address}: {first_line(error)}")
            announce(f"data: {failures[-1]}")
            continue
        for found in text.iterdir():
            target = folder / found.name
            if target.is_dir():
                shutil.rmtree(target)
            found.replace(target)
        shutil.rmtree(part)
        return
    raise UserError("; ".join(failures))
