"""Corpora fetched from addresses of which some are dead."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data.mirror_server import MirrorServer, serving
from transformer_xl.data.corpora import PUBLISHED, published_sources
from transformer_xl.data.download import HubFolder, WebFile
from transformer_xl.data.files import Sources
from transformer_xl.data_config import PublishedConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import plain, replace

PublishedConfigs = Callable[..., PublishedConfig]
ZIP = b"PK" * 100_000
SHA256 = hashlib.sha256(ZIP).hexdigest()
DATASET = {f"data/{split}-00000-of-00001.parquet": split.encode() for split in ("train", "validation", "test")}
FOLDER = HubFolder(repository="afmck/text8", revision="main", folder="data")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MirrorServer]:
    """Give a server of files on this machine, which is the Hub too."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def config(published_config: PublishedConfigs) -> PublishedConfigs:
    """Give the settings of a corpus that is fetched."""
    return lambda kind, **changes: published_config(kind, **{"dir": None, "download": True, **changes})


def fetch(config: PublishedConfig) -> tuple[Sources, list[str]]:
    lines: list[str] = []
    return published_sources(config, announce=lines.append), lines


def downloads(config: PublishedConfig) -> Path:
    return Path(config.cache_dir) / "downloads" / config.kind


def use(
    monkeypatch: pytest.MonkeyPatch, kind: str, *addresses: WebFile | HubFolder, words: tuple[WebFile, ...] = ()
) -> None:
    monkeypatch.setitem(PUBLISHED, kind, dataclasses.replace(PUBLISHED[kind], addresses=addresses, words=words))


def zip_at(url: str) -> WebFile:
    return WebFile(url=url, size=len(ZIP), sha256=SHA256)


def test_fetched_once_and_then_found(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.put("/dc/enwik8.zip", ZIP)
    use(monkeypatch, "enwik8", zip_at(url))
    enwik8 = config("enwik8")
    sources, lines = fetch(enwik8)
    assert lines == [f"data: fetching {url} (200.0 kB)"]
    assert sources.location == downloads(enwik8).resolve()
    record = json.loads((downloads(enwik8) / "downloads.json").read_text())
    assert record == {"enwik8.zip": {"url": url, "size": 200_000, "sha256": SHA256}}
    assert fetch(enwik8) == (sources, [])
    assert fetch(replace(enwik8, download=False)) == (sources, [])
    assert server.fetched("/dc/enwik8.zip") == 1


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"status": 404}, "answers 404 Not Found"),
        ({"body": b"PK?"}, "gave 3 bytes and not 200,000"),
        ({"body": b"PK?!" * 50_000}, "gave a file with the SHA-256"),
        ({"body": ZIP, "cuts": [5, 0]}, "ends after 0 bytes"),
        (None, "cannot be read"),
    ],
    ids=["404", "other size", "wrong checksum", "truncated", "dead"],
)
def test_the_second_address_where_the_first_fails(
    first: dict[str, object] | None,
    reason: str,
    server: MirrorServer,
    config: PublishedConfigs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = "http://127.0.0.1:9/enwik8.zip" if first is None else server.put("/first/enwik8.zip", **first)  # type: ignore[arg-type]
    url = server.put("/second/enwik8.zip", ZIP)
    use(monkeypatch, "enwik8", zip_at(dead), zip_at(url))
    enwik8 = config("enwik8")
    _, lines = fetch(enwik8)
    assert (downloads(enwik8) / "enwik8.zip").read_bytes() == ZIP
    (failed,) = [line for line in lines if "trying" in line]
    assert failed.startswith(f"data: {dead} {reason}")
    assert failed.endswith(f"; trying {url}")
    assert sorted(os.listdir(downloads(enwik8))) == ["downloads.json", "enwik8.zip", "lock"]


def test_a_broken_connection_goes_on_where_it_broke(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "enwik8", zip_at(server.put("/enwik8.zip", ZIP, cuts=[50_000, 70_000], etag=None)))
    fetch(config("enwik8"))
    begins = [0 if asked is None else int(asked.removeprefix("bytes=").rstrip("-")) for asked in server.ranges]
    assert begins[0] == 0
    assert 30_000 < begins[1] <= 50_000
    assert 80_000 < begins[2] <= 120_000


def test_a_dataset_where_the_archive_is_dead(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.datasets["afmck/text8"] = DATASET | {"data/script.py": b"print()"}
    use(monkeypatch, "text8", zip_at(server.put("/text8.zip", status=503)), FOLDER)
    text8 = config("text8")
    sources, _ = fetch(text8)
    assert {split: texts[0].file.path.read_bytes() for split, texts in sources.splits.items()} == {
        "train": b"train",
        "valid": b"validation",
        "test": b"test",
    }
    assert list(json.loads((downloads(text8) / "downloads.json").read_text())) == sorted(DATASET)
    assert fetch(text8) == (sources, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda server: server.datasets.clear(), "there is no such repository, or it is private"),
        (lambda server: server.revisions.clear(), "the repository has no such revision"),
        (lambda server: server.datasets["afmck/text8"].pop(next(iter(DATASET))), "has no parquet files of train"),
        (lambda server: server.sums.update({next(iter(DATASET)): "0" * 64}), "and not 0000"),
        (lambda server: os.environ.update(HF_HUB_OFFLINE="1"), "is not asked: HF_HUB_OFFLINE is set"),
    ],
)
def test_an_archive_where_the_hub_has_nothing(
    change: Callable[[MirrorServer], object],
    reason: str,
    server: MirrorServer,
    config: PublishedConfigs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    server.datasets["afmck/text8"] = dict(DATASET)
    change(server)
    use(monkeypatch, "text8", FOLDER, zip_at(server.put("/text8.zip", ZIP)))
    sources, lines = fetch(config("text8"))
    assert [file.name for file in sources.files] == ["text8.zip"]
    (failed,) = [line for line in lines if "trying" in line]
    assert reason in failed


def test_a_hub_that_does_not_answer_is_asked_once(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.overloaded = True
    use(monkeypatch, "text8", FOLDER)
    with pytest.raises(UserError, match=rf"{FOLDER.address} \(HF_ENDPOINT\) cannot be read: .*503"):
        fetch(config("text8"))
    assert server.asked == ["HEAD /datasets/afmck/text8/resolve/main/README.md"]


def test_a_vocabulary_that_cannot_be_fetched_is_done_without(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zip_at(server.put("/1-billion-word-language-modeling-benchmark-r13output.tar.gz", ZIP))
    words = zip_at(server.put("/1b_word_vocab.txt", status=404))
    use(monkeypatch, "lm1b", archive, words=(words,))
    sources, lines = fetch(config("lm1b"))
    assert sources.vocabulary is None
    assert lines[0] == f"data: {words.url} answers 404 Not Found; lm1b is fetched without 1b_word_vocab.txt"


def test_no_address_at_all_says_which_file_goes_where(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [server.put(f"/{number}/enwik8.zip", status=404) for number in range(2)]
    use(monkeypatch, "enwik8", *map(zip_at, urls))
    enwik8 = config("enwik8")
    with pytest.raises(UserError) as refused:
        fetch(enwik8)
    assert str(refused.value) == (
        f"data=enwik8 cannot be fetched ({urls[1]} answers 404 Not Found); put its files into "
        f"{str(downloads(enwik8))!r}, or into any folder named by data.dir\n\n"
        f"  files  the file enwik8 or enwik8.zip\n  from   {urls[0]}\n  from   {urls[1]}"
    )
    with pytest.raises(UserError, match=r"^data\.cache_dir is '/dev/null/x', where data=enwik8 cannot be kept: Not a"):
        fetch(config("enwik8", cache_dir="/dev/null/x"))


def test_what_a_killed_run_left_is_not_taken(
    server: MirrorServer, config: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "text8", zip_at(server.put("/text8.zip", ZIP)))
    text8 = config("text8")
    left = downloads(text8) / "hub.part" / "data"
    left.mkdir(parents=True)
    (left / "train-00000-of-00001.parquet").write_bytes(b"?")
    (downloads(text8) / "text8.zip.part").write_bytes(b"PK")
    assert [file.name for file in fetch(text8)[0].files] == ["text8.zip"]
    assert (downloads(text8) / "text8.zip").read_bytes() == ZIP
    assert sorted(os.listdir(downloads(text8))) == ["downloads.json", "lock", "text8.zip"]


PROGRAM = """
import dataclasses, json, sys
from transformer_xl.data.corpora import PUBLISHED, published_sources
from transformer_xl.data.download import WebFile
from transformer_xl.data_config import PublishedConfig

file = WebFile(url=sys.argv[2], sha256=sys.argv[3])
PUBLISHED["enwik8"] = dataclasses.replace(PUBLISHED["enwik8"], addresses=(file,))
config = PublishedConfig(**json.loads(sys.argv[1]))
sources = published_sources(config, announce=lambda line: print(line, flush=True))
print("found", sources.files[0].name, flush=True)
"""


def test_of_two_processes_one_fetches(server: MirrorServer, config: PublishedConfigs) -> None:
    opened = threading.Event()
    url = server.put("/enwik8.zip", ZIP, open=opened)
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(plain(config("enwik8"))), url, SHA256]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines: list[str] = []
    waiting = threading.Event()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if "waiting" in line:
                waiting.set()

    readers = [threading.Thread(target=read, args=(process,), daemon=True) for process in processes]
    for reader in readers:
        reader.start()
    assert waiting.wait(60)
    opened.set()
    assert [process.wait(60) for process in processes] == [0, 0]
    for reader in readers:
        reader.join(60)
    assert server.fetched("/enwik8.zip") == 1
    assert lines.count("found enwik8.zip") == 2
