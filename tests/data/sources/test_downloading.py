"""Corpora fetched from mirrors, of which some are dead."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.sources.mirror_server import MirrorServer
from transformer_xl.data.sources import downloading, mirrors, web
from transformer_xl.data.sources.files import Sources
from transformer_xl.data.sources.mirrors import MIRRORS, HubFolder, Mirrors, WebFile
from transformer_xl.data.sources.published import published_sources
from transformer_xl.data_config import PublishedConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import plain, replace

PublishedConfigs = Callable[..., PublishedConfig]
ZIP = b"PK" * 1000
DATASET = {f"data/{split}-00000-of-00001.parquet": split.encode() for split in ("train", "validation", "test")}


def fetch(config: PublishedConfig) -> tuple[Sources, list[str]]:
    lines: list[str] = []
    return published_sources(config, announce=lines.append), lines


def downloads(config: PublishedConfig) -> Path:
    return Path(config.cache_dir) / "downloads" / config.kind


def use(
    monkeypatch: pytest.MonkeyPatch, kind: str, *sources: WebFile | HubFolder, also: tuple[WebFile, ...] = ()
) -> None:
    monkeypatch.setitem(MIRRORS, kind, Mirrors(sources=sources, also=also))


def test_fetched_once_and_then_found(
    server: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.put("/dc/enwik8.zip", ZIP)
    use(monkeypatch, "enwik8", WebFile(url=url, size=len(ZIP)))
    config = config_of("enwik8")
    sources, lines = fetch(config)
    assert lines == [f"data: fetching {url} (2.0 kB)"]
    assert [origin.member for origin in sources.whole] == ["enwik8"]
    assert sources.location == downloads(config).resolve()
    assert json.loads((downloads(config) / "downloads.json").read_text()) == {
        "enwik8.zip": {"url": url, "size": 2000, "sha256": hashlib.sha256(ZIP).hexdigest()}
    }
    assert fetch(config) == (sources, [])
    assert fetch(replace(config, download=False)) == (sources, [])
    assert server.fetched("/dc/enwik8.zip") == 1


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"status": 404}, "answers 404 Not Found"),
        ({"body": b"PK?" * 1000}, "has 3,000 bytes and not 2,000"),
        ({"body": b"PK?!" * 500}, "gave a file with the SHA-256"),
        ({"body": ZIP, "cuts": [5, 5], "etag": None}, "ends after"),
        (None, "cannot be read"),
    ],
    ids=["404", "other size", "wrong checksum", "truncated", "dead"],
)
def test_the_second_source_where_the_first_fails(
    first: dict[str, object] | None,
    reason: str,
    server: MirrorServer,
    config_of: PublishedConfigs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = "http://127.0.0.1:9/enwik8.zip" if first is None else server.put("/first/enwik8.zip", **first)  # type: ignore[arg-type]
    url = server.put("/second/enwik8.zip", ZIP)
    sha256 = hashlib.sha256(ZIP).hexdigest()
    use(monkeypatch, "enwik8", *(WebFile(url=address, size=len(ZIP), sha256=sha256) for address in (dead, url)))
    config = config_of("enwik8")
    sources, lines = fetch(config)
    assert (downloads(config) / "enwik8.zip").read_bytes() == ZIP
    assert [file.name for file in sources.files] == ["enwik8.zip"]
    (failed,) = [line for line in lines if "trying" in line]
    assert failed.startswith(f"data: {dead} {reason}")
    assert failed.endswith(f"; trying {url}")
    assert sorted(os.listdir(downloads(config))) == ["downloads.json", "enwik8.zip", "lock"]


def test_a_dataset_where_the_archive_is_dead(
    hub: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.datasets["afmck/text8"] = DATASET
    dead = WebFile(url=hub.put("/text8.zip", status=503))
    use(monkeypatch, "text8", dead, HubFolder(repository="afmck/text8", revision="main", folder="data"))
    config = config_of("text8")
    sources, _ = fetch(config)
    assert {split: origins[0].file.path.read_bytes() for split, origins in sources.splits.items()} == {
        "train": b"train",
        "valid": b"validation",
        "test": b"test",
    }
    assert set(json.loads((downloads(config) / "downloads.json").read_text())) == set(DATASET)
    assert fetch(config) == (sources, [])


def test_an_archive_where_the_hub_is_dead(
    hub: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = HubFolder(repository="Salesforce/wikitext", revision="main", folder="wikitext-2-v1")
    url = hub.put("/wikitext-2-v1.zip", ZIP)
    use(monkeypatch, "wikitext2", folder, WebFile(url=url))
    sources, lines = fetch(config_of("wikitext2"))
    assert [file.name for file in sources.files] == ["wikitext-2-v1.zip"]
    assert lines[0].startswith(
        f"data: {hub.address}/datasets/Salesforce/wikitext/tree/main/wikitext-2-v1 (HF_ENDPOINT)"
    )


def test_a_vocabulary_that_cannot_be_fetched_is_done_without(
    server: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"
    archive = WebFile(url=server.put(f"/{name}", b"\x1f\x8b"))
    words = WebFile(url=server.put("/1b_word_vocab.txt", status=404))
    use(monkeypatch, "lm1b", archive, also=(words,))
    sources, lines = fetch(config_of("lm1b"))
    assert sources.vocabulary is None
    assert lines[0] == f"data: {words.url} answers 404 Not Found; lm1b is fetched without 1b_word_vocab.txt"
    again = server.put("/again/1b_word_vocab.txt", b"<S> 1")
    use(monkeypatch, "lm1b", archive, also=(words, WebFile(url=again)))
    sources, lines = fetch(config_of("lm1b", cache_dir=config_of("lm1b").cache_dir + "2"))
    assert sources.vocabulary is not None
    assert sources.vocabulary.path.read_bytes() == b"<S> 1"


def test_no_source_at_all_says_which_file_goes_where(
    server: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [server.put(f"/{number}/enwik8.zip", status=404) for number in range(2)]
    use(monkeypatch, "enwik8", *(WebFile(url=url) for url in urls))
    config = config_of("enwik8")
    with pytest.raises(UserError) as refused:
        fetch(config)
    assert str(refused.value) == (
        f"data=enwik8 cannot be fetched ({urls[1]} answers 404 Not Found); put its files into "
        f"{str(downloads(config))!r}, or into any folder named by data.dir\n\n"
        f"  files  the file enwik8 or enwik8.zip\n  from   {urls[0]}\n  from   {urls[1]}"
    )


@pytest.mark.parametrize("kind", ["wikitext103", "wikitext2", "enwik8", "text8", "ptb", "lm1b"])
def test_without_leave_to_download_nothing_is_asked(
    kind: str, hub: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "download", pytest.fail)
    config = config_of(kind, download=False)
    with pytest.raises(UserError) as refused:
        fetch(config)
    message = str(refused.value)
    assert message.startswith("data.download is false and data.dir is not set, so that")
    assert f"into {str(downloads(config))!r}, or into any folder named by data.dir" in message
    assert all(source.address in message for source in MIRRORS[kind].sources)
    assert hub.asked == []
    assert not Path(config.cache_dir).exists()


def test_files_put_there_by_hand_are_taken(config_of: PublishedConfigs) -> None:
    config = config_of("text8", download=False)
    downloads(config).mkdir(parents=True)
    (downloads(config) / "text8").write_bytes(b"a")
    assert [file.name for file in fetch(config)[0].files] == ["text8"]


def test_what_a_killed_run_left_is_not_taken(
    server: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "text8", WebFile(url=server.put("/text8.zip", ZIP)))
    config = config_of("text8")
    left = downloads(config) / "hub.part" / "data"
    left.mkdir(parents=True)
    for name in DATASET:
        (left.parent / name).write_bytes(b"?")
    (downloads(config) / "text8.zip.part").write_bytes(b"?")
    assert [file.name for file in fetch(config)[0].files] == ["text8.zip"]
    assert (downloads(config) / "text8.zip").read_bytes() == ZIP
    assert sorted(os.listdir(downloads(config))) == ["downloads.json", "lock", "text8.zip"]


def test_a_folder_that_cannot_be_written(config_of: PublishedConfigs) -> None:
    with pytest.raises(UserError, match=r"^data\.cache_dir is '/dev/null/x', where data=enwik8 cannot be kept: Not a"):
        fetch(config_of("enwik8", cache_dir="/dev/null/x"))


def test_a_full_disk_is_said_plainly(
    server: MirrorServer, config_of: PublishedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(web, "require_room", full)
    urls = [server.put(f"/{number}/enwik8.zip", ZIP) for number in range(2)]
    use(monkeypatch, "enwik8", *(WebFile(url=url) for url in urls))
    with pytest.raises(UserError, match=r"cannot be kept: No space left on device .*must name a folder with room"):
        fetch(config_of("enwik8"))
    assert server.fetched("/1/enwik8.zip") == 0, "another source would need the room too"


PROGRAM = """
import json, sys
from transformer_xl.data_config import PublishedConfig
from transformer_xl.data.sources.mirrors import MIRRORS, Mirrors, WebFile
from transformer_xl.data.sources.published import published_sources

config, url = json.loads(sys.argv[1]), sys.argv[2]
MIRRORS["enwik8"] = Mirrors(sources=(WebFile(url=url),))
sources = published_sources(PublishedConfig(**config), announce=lambda line: print(line, flush=True))
print("found", sources.files[0].name, flush=True)
"""


def test_of_two_processes_one_fetches(server: MirrorServer, config_of: PublishedConfigs) -> None:
    opened = threading.Event()
    url = server.put("/enwik8.zip", ZIP, open=opened)
    arguments = [sys.executable, "-c", PROGRAM, json.dumps(plain(config_of("enwik8"))), url]
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
    assert sum(line.startswith("data: waiting for another process that fetches enwik8 into ") for line in lines) == 1


def test_every_corpus_has_two_sources_and_checksums() -> None:
    assert set(MIRRORS) == {"wikitext103", "wikitext2", "enwik8", "text8", "lm1b", "ptb"}
    for corpus in MIRRORS.values():
        assert len(corpus.sources) >= 2
        for source in (*corpus.sources, *corpus.also):
            if isinstance(source, WebFile):
                assert source.sha256 is not None
                assert len(source.sha256) == 64


def test_the_address_of_the_hub_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = HubFolder(repository="a/b", revision="main", folder="c")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert folder.address == "https://huggingface.co/datasets/a/b/tree/main/c"
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror/")
    assert mirrors.endpoint() == "http://mirror"
