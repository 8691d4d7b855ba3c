"""Files from addresses that misbehave."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from tests.data.sources.mirror_server import MirrorServer
from transformer_xl.data.sources import transfers
from transformer_xl.data.sources.mirrors import WebFile
from transformer_xl.data.sources.transfers import SourceFailed
from transformer_xl.data.sources.web import download

BODY = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()


def fetch(file: WebFile, folder: Path) -> list[str]:
    lines: list[str] = []
    download(file, folder, announce=lines.append)
    return lines


def listed(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_is_there_once_it_is_whole(server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/dc/enwik8.zip", BODY)
    lines: list[str] = []
    found = download(WebFile(url=url, size=len(BODY), sha256=SHA256), tmp_path, announce=lines.append)
    assert (tmp_path / "enwik8.zip").read_bytes() == BODY
    assert found == ("enwik8.zip", url, len(BODY), SHA256)
    assert lines == [f"data: fetching {url} (300.0 kB)"]
    assert listed(tmp_path) == ["enwik8.zip"]


def test_a_redirect_is_followed_and_the_name_kept(server: MirrorServer, tmp_path: Path) -> None:
    moved = server.put("/elsewhere?key=1".partition("?")[0], BODY)
    fetch(WebFile(url=server.put("/a.zip", location=moved), sha256=SHA256), tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == BODY


def test_mirrors_that_turn_python_away_are_read(server: MirrorServer, tmp_path: Path) -> None:
    fetch(WebFile(url=server.put("/a.zip", BODY, user_agents="Mozilla/.*")), tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == BODY


@pytest.mark.parametrize(
    ("page", "size", "sha256", "reason"),
    [
        ({"status": 404}, None, None, "answers 404 Not Found"),
        ({"status": 500}, None, None, "answers 500"),
        ({"body": BODY}, len(BODY) - 1, None, "has 300,000 bytes and not 299,999"),
        ({"body": BODY, "length": False}, len(BODY) + 1, None, "gave 300,000 bytes and not 300,001"),
        ({"body": BODY, "length": False}, 100_000, None, r"gave 1\d\d,\d{3} bytes and not 100,000"),
        ({"body": BODY[:-1] + b"?"}, len(BODY), SHA256, f"gave a file with the SHA-256 .* and not {SHA256}"),
        ({"body": BODY, "cuts": [100_000] * 2, "ranges": False}, None, SHA256, "ends after .* bytes"),
        ({"body": BODY, "cuts": [200_000, 100_000], "etag": None}, None, SHA256, "ends after .* bytes"),
        ({"body": BODY, "cuts": [0, 0]}, None, None, "ends after 0 bytes"),
    ],
    ids=[
        "404",
        "500",
        "other size",
        "too short",
        "too long",
        "wrong checksum",
        "truncated",
        "truncated, no version",
        "nothing at all",
    ],
)
def test_what_is_no_such_file_is_refused_and_deleted(
    page: dict[str, object], size: int | None, sha256: str | None, reason: str, server: MirrorServer, tmp_path: Path
) -> None:
    url = server.put("/a.zip", **page)  # type: ignore[arg-type]
    with pytest.raises(SourceFailed, match=f"^{url} {reason}"):
        fetch(WebFile(url=url, size=size, sha256=sha256), tmp_path)
    assert listed(tmp_path) == []


def test_a_dead_address_fails(server: MirrorServer, tmp_path: Path) -> None:
    url = f"{server.address}/a.zip"
    server.stop()
    with pytest.raises(SourceFailed, match=f"^{url} cannot be read: .*refused"):
        fetch(WebFile(url=url), tmp_path)
    assert listed(tmp_path) == []


def test_after_a_cut_only_the_rest_is_asked_for(server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/a.zip", BODY, cuts=[200_000, 50_000])
    lines = fetch(WebFile(url=url, sha256=SHA256), tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == BODY
    assert len(lines) == 3
    assert "going on after 19" in lines[1]
    first, second, third = server.ranges
    assert first is None
    assert second is not None
    assert third is not None
    assert 100_000 < int(second[6:-1]) <= 200_000 < int(third[6:-1]) <= 250_000
    assert listed(tmp_path) == ["a.zip"]


def test_a_server_without_ranges_is_asked_again_for_all(server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/a.zip", BODY, cuts=[200_000], ranges=False)
    fetch(WebFile(url=url, sha256=SHA256), tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == BODY
    assert server.fetched("/a.zip") == 2


def leave_part(folder: Path, url: str, part: bytes, version: str) -> None:
    (folder / "a.zip.part").write_bytes(part)
    (folder / "a.zip.part.json").write_text(json.dumps({"url": url, "version": version}))


def test_what_a_killed_run_left_is_gone_on_with(server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/a.zip", BODY)
    leave_part(tmp_path, url, BODY[:1000], '"1"')
    fetch(WebFile(url=url, sha256=SHA256), tmp_path)
    assert server.ranges == ["bytes=1000-"]
    assert (tmp_path / "a.zip").read_bytes() == BODY
    assert listed(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("left", [BODY[:1000], BODY, BODY * 2], ids=["some", "all", "more"])
def test_what_is_left_of_another_version_is_thrown_away(left: bytes, server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/a.zip", BODY, etag='"2"')
    leave_part(tmp_path, url, left, '"1"')
    fetch(WebFile(url=url, sha256=SHA256), tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == BODY


def test_what_is_left_of_another_address_is_thrown_away(server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/a.zip", BODY)
    leave_part(tmp_path, "http://elsewhere/a.zip", b"x" * 1000, '"1"')
    fetch(WebFile(url=url, sha256=SHA256), tmp_path)
    assert server.ranges == [None]


def test_a_part_that_is_whole_already(server: MirrorServer, tmp_path: Path) -> None:
    url = server.put("/a.zip", BODY)
    leave_part(tmp_path, url, BODY, '"1"')
    fetch(WebFile(url=url, sha256=SHA256), tmp_path)
    assert (tmp_path / "a.zip").read_bytes() == BODY


def test_a_connection_that_breaks_while_the_rest_is_asked_for_keeps_the_part(
    server: MirrorServer, tmp_path: Path
) -> None:
    url = server.put("/a.zip", BODY)
    leave_part(tmp_path, url, BODY[:1000], '"1"')
    server.stop()
    with pytest.raises(SourceFailed, match="cannot be read"):
        fetch(WebFile(url=url), tmp_path)
    assert (tmp_path / "a.zip.part").read_bytes() == BODY[:1000]


def test_no_room_is_said_before_the_disk_is_full(
    server: MirrorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = transfers.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(transfers.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(OSError, match=r"300\.0 kB are needed, 1\.0 kB are free") as refused:
        fetch(WebFile(url=server.put("/a.zip", BODY)), tmp_path)
    assert refused.value.errno == errno.ENOSPC
    assert listed(tmp_path) == []
