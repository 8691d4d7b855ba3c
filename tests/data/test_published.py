"""The paper's corpora: from their text files, and fetched from addresses of which some are dead."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.interop.hub_server import HubServer, hub_on_this_machine
from transformer_xl.data import build
from transformer_xl.data.build import open_corpus
from transformer_xl.data.characters import RankedByteTokenizer
from transformer_xl.data.corpora import PUBLISHED, HubTables, WebFile, published_sources
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.files import Cut, Sources
from transformer_xl.data.words import SentenceTokenizer, WikitextTokenizer, WordTokenizer
from transformer_xl.data_config import PublishedConfig
from transformer_xl.errors import Stopped, UserError
from transformer_xl.settings import replace

PublishedConfigs = Callable[..., PublishedConfig]
SPLITS = ("train", "valid", "test")
TRAINING = "training-monolingual.tokenized.shuffled"
HELD_OUT = "heldout-monolingual.tokenized.shuffled"
INSIDE = "1-billion-word-language-modeling-benchmark-r13output"


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.fixture(autouse=True)
def small_files_are_as_published(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "other_figures" not in request.node.name:
        monkeypatch.setattr(build, "deviations", lambda *figures: [])


def opened(config: PublishedConfig) -> tuple[Corpus, list[str]]:
    lines: list[str] = []
    return open_corpus(config, announce=lines.append, seed=0), lines


def found_by(config: PublishedConfig) -> Sources:
    return published_sources(config, announce=pytest.fail)


def text_of(corpus: Corpus, split: str) -> str:
    return corpus.vocabulary.decode(corpus.tokens[split][:])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("wikitext103", "wiki.{}.tokens"),
        ("wikitext103", "wikitext-103/wiki.{}.tokens"),
        ("wikitext2", "{}.txt"),
        ("ptb", "simple-examples/data/ptb.{}.txt"),
    ],
)
def test_a_text_file_per_split(kind: str, name: str, tmp_path: Path, published_config: PublishedConfigs) -> None:
    for split in SPLITS:
        write(tmp_path / kind / name.format(split), f" = {split} = \n")
    config = published_config(kind)
    sources = found_by(config)
    assert [file.name for file in sources.files] == [name.format(split) for split in SPLITS]
    assert (sources.cut, sources.notes, sources.location) == (None, (), (tmp_path / kind).resolve())
    write(tmp_path / kind / name.format("valid"), b"")
    with pytest.raises(UserError, match=r"data\.dir is .*, which lacks \S*\.valid\.\w+ or valid\.txt: put"):
        found_by(config)


def test_words_are_counted_where_the_published_code_counts_them(
    tmp_path: Path, published_config: PublishedConfigs
) -> None:
    symbols = {}
    for kind in ("wikitext103", "wikitext2", "ptb"):
        for split, text in (("train", "b a <unk> a\n\n"), ("valid", "c b c c\n"), ("test", "B d b\n")):
            write(tmp_path / kind / f"{split}.txt", text)
        vocabulary = opened(published_config(kind))[0].vocabulary
        assert isinstance(vocabulary, WordTokenizer)
        symbols[kind] = vocabulary.symbols
    assert symbols["wikitext103"] == ("<eos>", "a", "b", "<unk>")
    assert symbols["wikitext2"] == ("<eos>", "b", "c", "a", "<unk>", "B", "d")
    assert symbols["ptb"] == ("<eos>", "b", "c", "a", "<unk>", "d"), "in lower case"


ENWIK8 = ("<page>\u00e9\u6771\n" * 200).encode()


def test_enwik8_is_its_bytes_without_line_ends(tmp_path: Path, published_config: PublishedConfigs) -> None:
    write(tmp_path / "enwik8" / "enwik8", ENWIK8)
    found, _ = opened(published_config("enwik8"))
    assert isinstance(found.vocabulary, RankedByteTokenizer)
    parts = (ENWIK8[: len(ENWIK8) * 90 // 100], ENWIK8[len(ENWIK8) * 90 // 100 : len(ENWIK8) * 95 // 100])
    for split, part in zip(("train", "valid"), parts, strict=True):
        values = np.array(found.vocabulary.values)[found.tokens[split][:]]
        assert bytes(values.tolist()) == part.replace(b"\n", b"")
    assert sum(found.counts().values()) == len(ENWIK8) - 200
    counts = Counter(ENWIK8.replace(b"\n", b""))
    assert list(found.vocabulary.values) == [value for value, _ in counts.most_common()]
    assert found.vocabulary.decode(found.vocabulary.encode("\u6771\u00e9")) == "\u6771\u00e9"
    kept, _ = opened(published_config("enwik8", newline="keep"))
    assert kept.vocabulary.size == found.vocabulary.size + 1
    assert sum(kept.counts().values()) == len(ENWIK8)
    raw, _ = opened(published_config("enwik8", tokenizer="byte"))
    assert raw.vocabulary.size == 256
    assert raw.counts() == found.counts()


def test_text8_is_letters_and_blanks(tmp_path: Path, published_config: PublishedConfigs) -> None:
    path = write(tmp_path / "text8" / "text8", b" anarchism originated as a term" * 20 + b"\n")
    found, _ = opened(published_config("text8"))
    assert found.vocabulary.kind == "char"
    assert text_of(found, "train") + text_of(found, "valid") + text_of(found, "test") == (
        " anarchism originated as a term" * 20
    )
    assert found.vocabulary.encode(" a").tolist() == [0, 1]
    assert found_by(published_config("text8")).cut == Cut(by="bytes", valid=0.05, test=0.05)
    path.unlink()
    with pytest.raises(UserError, match=r"data\.dir is .* which lacks text8: put them there, .* from http"):
        found_by(published_config("text8"))
    with pytest.raises(UserError, match=r"data=text8 is read from '.*downloads/text8', which lacks text8: "):
        found_by(published_config("text8", dir=None))


@pytest.fixture(params=["", f"{INSIDE}/"])
def lm1b(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "lm1b" / request.param
    write(root / HELD_OUT / "news.en.heldout-00000-of-00050", "The dog .\nA <UNK> .\n")
    write(root / HELD_OUT / "news.en.heldout-00001-of-00050", "Never read .\n")
    write(root / TRAINING / "news.en-00002-of-00100", "The bird .\n")
    write(root / TRAINING / "news.en-00001-of-00100", "The cat .\nThe cat , and .\n")
    write(root / TRAINING / "news.en-00000-of-00100", "Never read .\n")
    return tmp_path / "lm1b"


def test_sentences_with_the_published_vocabulary(lm1b: Path, published_config: PublishedConfigs) -> None:
    write(lm1b / "1b_word_vocab.txt", "</S> 3\n<S> 9\nThe 5\n. 5\n<UNK> 2\ncat 1\n\nbird 1\ncat 1\n")
    found, _ = opened(published_config("lm1b"))
    assert isinstance(found.vocabulary, SentenceTokenizer)
    assert found.vocabulary.symbols == ("</S>", "<S>", "The", ".", "<UNK>", "cat", "bird")
    assert found.tokens["train"][:].tolist() == [1, 2, 5, 3, 1, 2, 5, 4, 4, 3, 1, 2, 6, 3, 1]
    assert found.tokens["valid"][:].tolist() == found.tokens["test"][:].tolist() == [1, 2, 4, 3, 1, 4, 4, 3, 1]
    assert found.unknown == {"train": 2, "valid": 2, "test": 2}
    write(lm1b / "1b_word_vocab.txt", "<S> 9\n<UNK> 5\nbird 5\n")
    again, _ = opened(published_config("lm1b"))
    assert again.tokens["test"][:].tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 0], "another vocabulary makes another corpus"


def test_sentences_with_a_counted_vocabulary(lm1b: Path, published_config: PublishedConfigs) -> None:
    found, _ = opened(published_config("lm1b"))
    assert isinstance(found.vocabulary, SentenceTokenizer)
    assert found.vocabulary.symbols == ("The", ".", "<S>", "cat", ",", "and", "bird", "<UNK>")
    assert text_of(found, "train") == "The cat .\nThe cat , and .\nThe bird .\n"
    for part in lm1b.rglob("news.en-0000[12]*"):
        part.unlink()
    with pytest.raises(UserError, match=rf"lacks {TRAINING}/news\.en-\*-of-00100: put"):
        found_by(published_config("lm1b"))


def test_a_split_vocabulary_reads_published_words_as_they_stand(
    tmp_path: Path, published_config: PublishedConfigs
) -> None:
    for split in SPLITS:
        write(tmp_path / "wikitext103" / f"wiki.{split}.tokens", " = 1 @,@ 000 's = \n")
    vocabulary = WikitextTokenizer(["<eos>", "=", "1", "@,@", "000", "<unk>", "'s"])
    found = open_corpus(published_config("wikitext103"), announce=lambda line: None, seed=0, vocabulary=vocabulary)
    assert found.tokens["train"][:].tolist() == [1, 2, 3, 4, 6, 1, 0]
    assert found.unknown["train"] == 0


def test_other_figures_than_the_papers_are_said_and_not_refused(
    tmp_path: Path, published_config: PublishedConfigs
) -> None:
    for split in SPLITS:
        write(tmp_path / f"ptb/ptb.{split}.txt", "no it was n't\n")
    found, lines = opened(published_config("ptb"))
    assert found.counts() == {"train": 5, "valid": 5, "test": 5}
    assert "data: ptb has 5 train tokens here, and 929,589 where it was published" in lines


# --- fetched ---

TEXT8 = b" anarchism originated" * 9_000


def zipped(name: str, text: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


ZIP = zipped("text8", TEXT8)


def file_at(address: str, body: bytes = ZIP) -> WebFile:
    return WebFile(address, hashlib.sha256(body).hexdigest())


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_on_this_machine(monkeypatch, tmp_path / "hub") as server:
        yield server


@pytest.fixture
def config(published_config: PublishedConfigs) -> PublishedConfigs:
    """Return the settings of a corpus that is fetched."""
    return lambda kind, **changes: published_config(kind, **{"dir": None, "download": True, **changes})


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a corpus have other addresses."""

    def use(kind: str, *addresses: WebFile | HubTables, words: WebFile | None = None) -> None:
        monkeypatch.setitem(PUBLISHED, kind, dataclasses.replace(PUBLISHED[kind], addresses=addresses, words=words))

    return use


def fetch(config: PublishedConfig) -> tuple[Sources, list[str]]:
    lines: list[str] = []
    return published_sources(config, announce=lines.append), lines


def texts(sources: Sources) -> dict[str, list[bytes]]:
    return {split: [source.path.read_bytes() for source in some] for split, some in sources.splits.items()}


def test_fetched_and_unpacked_once_and_then_found(
    server: HubServer, config: PublishedConfigs, use: Callable[..., None]
) -> None:
    address = server.put("/dc/text8.zip", ZIP)
    use("text8", file_at(address))
    text8 = config("text8")
    sources, lines = fetch(text8)
    assert lines == [f"data: fetching {address} (0.2 MB)"]
    assert texts(sources) == {"train": [TEXT8]}
    folder = Path(text8.cache_dir) / "downloads" / "text8"
    assert sources.location == folder.resolve()
    assert sorted(os.listdir(folder)) == ["lock", "text8"]
    assert fetch(text8) == fetch(replace(text8, download=False)) == (sources, [])
    assert server.asked == ["GET /dc/text8.zip"]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"status": 404}, "404 Client Error"),
        ({"body": b"PK?!" * 50_000}, "its SHA-256 is"),
        ({"body": ZIP, "cuts": [5]}, "Connection broken"),
        (None, "Connection refused"),
    ],
    ids=["404", "wrong checksum", "truncated", "dead"],
)
def test_the_second_address_where_the_first_fails(
    first: dict[str, object] | None,
    reason: str,
    server: HubServer,
    config: PublishedConfigs,
    use: Callable[..., None],
) -> None:
    dead = "http://127.0.0.1:9/text8.zip" if first is None else server.put("/first/text8.zip", **first)  # type: ignore[arg-type]
    use("text8", file_at(dead), file_at(server.put("/second/text8.zip", ZIP)))
    sources, lines = fetch(config("text8"))
    assert texts(sources) == {"train": [TEXT8]}
    (failed,) = [line for line in lines if line.startswith(f"data: {dead} fails: ")]
    assert reason in failed


def test_a_stop_ends_a_download_and_what_a_killed_one_left_is_removed(
    server: HubServer, config: PublishedConfigs, use: Callable[..., None]
) -> None:
    use("text8", *(file_at(server.put(path, ZIP)) for path in ("/first.zip", "/second.zip")))
    folder = Path(config("text8").cache_dir) / "downloads" / "text8"
    left = write(folder / "part" / "left", b"")

    def stop(line: str) -> None:
        if "fetching" in line:
            raise Stopped("stopped by SIGINT", exit_code=130)

    with pytest.raises(Stopped):
        published_sources(config("text8"), announce=stop)
    assert (os.listdir(folder), server.asked) == (["lock"], ["GET /first.zip"])
    write(left, b"")
    assert texts(fetch(config("text8"))[0]) == {"train": [TEXT8]}
    assert sorted(os.listdir(folder)) == ["lock", "text8"]


@pytest.mark.parametrize("folded", [False, True])
def test_tables_of_the_hub_become_text(
    folded: bool, server: HubServer, config: PublishedConfigs, use: Callable[..., None], tmp_path: Path
) -> None:
    rows = {"train": [[" = a = \n", ""], ["b"]], "validation": [["c\n"]], "test": [["d"]]}
    for split, parts in rows.items():
        for number, part in enumerate(parts):
            name = f"{split}/{number:04}.parquet" if folded else f"{split}-{number:05}-of-{len(parts):05}.parquet"
            path = write(tmp_path / "served" / "raw" / name, b"")
            parquet.write_table(pyarrow.table({"text": part}), path)
    server.repositories["someone/corpus"] = tmp_path / "served"
    tables = HubTables("someone/corpus@main", "raw", "wiki.{}.tokens")
    use("wikitext2", file_at("http://127.0.0.1:9/x.zip"), tables)
    sources, _ = fetch(config("wikitext2"))
    assert texts(sources) == {"train": [b" = a = \n\nb\n"], "valid": [b"c\n"], "test": [b"d\n"]}
    use("text8", tables._replace(file="text8", line_end=""))
    assert texts(fetch(config("text8"))[0]) == {"train": [b" = a = \nbc\nd"]}


def test_no_address_at_all_says_which_file_goes_where(
    server: HubServer, config: PublishedConfigs, use: Callable[..., None]
) -> None:
    address = server.put("/text8.zip", status=404)
    use("text8", file_at(address), HubTables("afmck/text8@main", "data", "text8"))
    lines: list[str] = []
    with pytest.raises(
        UserError, match=rf"'.*downloads/text8', which lacks text8: put them .* from {address} or afmck"
    ):
        published_sources(config("text8"), announce=lines.append)
    assert ["404 Client Error" in line or "Repository Not Found" in line for line in lines] == [True, False, True]
    with pytest.raises(UserError, match=r"^data\.cache_dir is '/dev/null/x', which cannot be written: .*Not a"):
        fetch(config("text8", cache_dir="/dev/null/x"))


def test_sentences_and_their_words_are_fetched(
    server: HubServer, config: PublishedConfigs, use: Callable[..., None], tmp_path: Path
) -> None:
    for name in (f"{HELD_OUT}/news.en.heldout-00000-of-00050", f"{TRAINING}/news.en-00001-of-00100"):
        write(tmp_path / INSIDE / name, name)
    with tarfile.open(tmp_path / "lm1b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / INSIDE, INSIDE)
    packed, words = (tmp_path / "lm1b.tar.gz").read_bytes(), b"<S> 2\n<UNK> 1\n"
    archive_file = file_at(server.put("/lm1b.tar.gz", packed), packed)
    use("lm1b", archive_file, words=file_at(server.put("/1b_word_vocab.txt", words), words))
    sources, _ = fetch(config("lm1b"))
    assert [len(some) for some in sources.splits.values()] == [1, 1, 1]
    assert sources.vocabulary is not None
    assert sources.vocabulary.path.read_bytes() == words


def test_of_two_that_fetch_one_waits(server: HubServer, config: PublishedConfigs, use: Callable[..., None]) -> None:
    may_answer = threading.Event()
    use("text8", file_at(server.put("/text8.zip", ZIP, open=may_answer)))
    lines: list[str] = []

    def announce(line: str) -> None:
        lines.append(line)
        if "waiting for another process" in line:
            may_answer.set()

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(published_sources, config("text8"), announce=announce) for _ in range(2)]
        first, second = (one.result(60) for one in both)
    assert first == second
    assert server.asked == ["GET /text8.zip"]
