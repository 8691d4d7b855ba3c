import hashlib
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from transformer_xl.data import build as building
from transformer_xl.data import corpus, files, flat
from transformer_xl.data.build import open_corpus
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.lanes import CorpusLanes
from transformer_xl.data_config import PublishedConfig, StdlibConfig, TextConfig
from transformer_xl.errors import UserError, locked
from transformer_xl.settings import plain, replace

TextConfigs = Callable[..., TextConfig]
PublishedConfigs = Callable[..., PublishedConfig]
Tokenizer = Literal["byte", "char", "word", "wikitext"]
NEWLINES: tuple[Literal["keep"], Literal["drop"]] = ("keep", "drop")
TEXT = "".join(f"line {number} of the text, \u00e9\n" for number in range(100))


@pytest.fixture
def config(tmp_path: Path, text_config: TextConfigs) -> TextConfig:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return text_config(tmp_path / "a.txt")


def opened(config: TextConfig | StdlibConfig | PublishedConfig) -> tuple[Corpus, list[str]]:
    lines: list[str] = []
    return open_corpus(config, announce=lines.append, seed=0), lines


def left(config: TextConfig) -> list[str]:
    """What builders left, but for locks."""
    return [path.name for path in Path(config.cache_dir).iterdir() if not path.name.startswith(".lock-")]


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
def test_the_splits_are_the_text(tokenizer: Literal["byte", "char"], config: TextConfig) -> None:
    found, lines = opened(replace(config, tokenizer=tokenizer))
    assert "".join(found.vocabulary.decode(found.splits[split]) for split in ("train", "valid", "test")) == TEXT
    assert found.counts() == {split: len(tokens) for split, tokens in found.splits.items()}
    assert len(lines) == 2
    assert f"{sum(found.counts().values()):,} tokens" in lines[1]
    assert found.name == "text"
    assert all(not tokens.flags.writeable for tokens in found.splits.values())
    assert found.splits["train"].dtype == np.uint8


def test_a_ready_cache_is_opened_and_not_touched(config: TextConfig) -> None:
    first, _ = opened(config)
    before = states(first.folder)
    second, lines = opened(config)
    assert lines == []
    assert states(second.folder) == before
    assert second.fingerprint == first.fingerprint
    names = ["corpus.json", "sources.json", "test.bin", "train.bin", "valid.bin", "vocabulary.json"]
    assert sorted(before) == names
    assert left(config) == [first.folder.name]


def test_the_sidecar_says_what_the_files_are(config: TextConfig, tmp_path: Path) -> None:
    found, _ = opened(config)
    sidecar = json.loads((found.folder / "corpus.json").read_text())
    status, checksum = (tmp_path / "a.txt").stat(), hashlib.sha256(TEXT.encode()).hexdigest()
    assert json.loads((found.folder / "sources.json").read_text()) == [
        {"path": "a.txt", "size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": checksum}
    ]
    assert sidecar["settings"]["tokenizer"] == "byte"
    assert (sidecar["format"], sidecar["dtype"]) == (3, "uint8")
    for split, tokens in found.counts().items():
        assert sidecar["splits"][split] == {
            "tokens": tokens,
            "unknown": 0,
            "text_bytes": tokens,
            "documents": 1,
            "lost_bytes": 0,
        }
    assert sidecar["vocabulary"] == {"kind": "byte", "size": 256, "hash": found.vocabulary.hash()}
    listed = hashlib.sha256(f"{checksum}  a.txt\n".encode()).hexdigest()
    assert found.fingerprint == (1, len(TEXT.encode()), listed)


def test_a_changed_byte_is_seen(config: TextConfig, tmp_path: Path) -> None:
    before, _ = opened(config)
    (tmp_path / "a.txt").write_text(TEXT.replace("line 0", "LINE 0"), encoding="utf-8")
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    after, lines = opened(config)
    assert len(lines) == 2
    assert after.folder == before.folder
    assert after.fingerprint.sha256 != before.fingerprint.sha256
    assert bytes(after.splits["train"][:6].tolist()) == b"LINE 0"
    assert bytes(before.splits["train"][:6].tolist()) == b"line 0", "what is mapped stays readable"
    assert left(config) == [after.folder.name]


def test_a_new_mtime_or_length_or_file_is_seen(config: TextConfig, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (tmp_path / "a.txt").rename(folder / "a.txt")
    config = replace(config, path=str(folder))
    changes: list[Callable[[], object]] = [
        lambda: os.utime(folder / "a.txt", ns=(7, 7)),
        lambda: (folder / "a.txt").write_text(TEXT * 2),
        lambda: (folder / "b.txt").write_text("more\n"),
        lambda: (folder / "b.txt").rename(folder / "c.txt"),
    ]
    opened(config)
    for change in changes:
        change()
        assert [len(opened(config)[1]) for _ in range(2)] == [2, 0]


def test_other_settings_have_a_folder_of_their_own(config: TextConfig) -> None:
    changed = [
        config,
        replace(config, tokenizer="char"),
        replace(config, valid_fraction=0.2),
        replace(config, test_fraction=0.2),
    ]
    folders = [opened(one)[0].folder for one in changed]
    assert len(set(folders)) == 4
    assert all(folder.name.startswith("text-") and len(folder.name) == len("text-") + 12 for folder in folders)
    assert opened(replace(config, batch_size=1, segment_len=1))[1] == []


def test_another_format_is_rebuilt(config: TextConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(config)
    monkeypatch.setattr(building, "FORMAT", 4)
    monkeypatch.setattr(corpus, "FORMAT", 4)
    assert len(opened(config)[1]) == 2


def with_split(sidecar: dict[str, Any], **values: object) -> object:
    return sidecar | {"splits": sidecar["splits"] | {"train": sidecar["splits"]["train"] | values}}


HOSTILE: list[Callable[[dict[str, Any]], object]] = [
    lambda sidecar: "",
    lambda sidecar: [],
    lambda sidecar: None,
    lambda sidecar: {},
    lambda sidecar: sidecar | {"format": 4},
    lambda sidecar: sidecar | {"splits": None},
    lambda sidecar: with_split(sidecar, tokens=1),
    lambda sidecar: with_split(sidecar, tokens=-1),
    lambda sidecar: with_split(sidecar, tokens=True),
    lambda sidecar: with_split(sidecar, tokens=10**30),
    lambda sidecar: with_split(sidecar, tokens=1e300),
    lambda sidecar: with_split(sidecar, unknown=[]),
    lambda sidecar: with_split(sidecar, text_bytes="1"),
    lambda sidecar: sidecar | {"dtype": "object"},
    lambda sidecar: sidecar | {"listing": {"path": 1}},
    lambda sidecar: sidecar | {"files": [1]},
    lambda sidecar: sidecar | {"files": {}},
    lambda sidecar: sidecar | {"vocabulary": {"hash": "0"}},
    lambda sidecar: sidecar | {"fingerprint": {"files": 1, "bytes": "2", "sha256": 3}},
    lambda sidecar: sidecar | {"settings": "x"},
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_sidecar_is_no_cache(number: int, config: TextConfig) -> None:
    found, _ = opened(config)
    sidecar = json.loads((found.folder / "corpus.json").read_text())
    (found.folder / "corpus.json").write_text(json.dumps(HOSTILE[number](sidecar)))
    assert [len(opened(config)[1]) for _ in range(2)] == [2, 0]


@pytest.mark.parametrize("written", [b"", b"{", b"\xff\x00", b"[" * 100_000, b"\x80\x04cos\nsystem\n."])
@pytest.mark.parametrize("name", ["corpus.json", "vocabulary.json"])
def test_broken_json_is_no_cache(written: bytes, name: str, config: TextConfig) -> None:
    found, _ = opened(config)
    (found.folder / name).write_bytes(written)
    again, lines = opened(config)
    assert len(lines) == 2
    assert again.counts() == found.counts()


@pytest.mark.parametrize("name", ["corpus.json", "vocabulary.json", "train.bin", "valid.bin", "test.bin"])
def test_a_missing_or_short_or_long_file_is_no_cache(name: str, config: TextConfig) -> None:
    found, _ = opened(config)
    path = found.folder / name
    expected = path.read_bytes()
    for damaged in (None, expected[:-2], expected + b"x"):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        assert len(opened(config)[1]) == 2
        assert path.read_bytes() == expected


def test_whatever_stands_in_the_folders_place_is_replaced(config: TextConfig, tmp_path: Path) -> None:
    folder = opened(config)[0].folder
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/kept").touch()
    puts: list[Callable[[], None]] = [
        folder.touch,
        folder.mkdir,
        lambda: folder.symlink_to(tmp_path / "elsewhere"),
    ]
    for put in puts:
        for path in folder.iterdir() if folder.is_dir() else ():
            path.unlink()
        folder.rmdir()
        put()
        assert len(opened(config)[1]) == 2
    assert (tmp_path / "elsewhere/kept").exists()


BUILD = """
import dataclasses, json, os, pathlib, sys, time
from transformer_xl.data_config import TextConfig
from transformer_xl.data import build as building
from transformer_xl.errors import locked
config = TextConfig(**json.loads(sys.argv[1]))
"""


def python(code: str, config: TextConfig) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", BUILD + code, json.dumps(plain(config))]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_builders_at_the_same_time_all_succeed(config: TextConfig, tmp_path: Path) -> None:
    config = replace(config, tokenizer="word")
    (tmp_path / "a.txt").write_text(TEXT * 30)
    code = """
lines = []
rename = building.put_in_place
def late(*arguments, **named):
    time.sleep(0.5)  # the others come meanwhile
    rename(*arguments, **named)
building.put_in_place = late
found = building.open_corpus(config, announce=lines.append, seed=0)
print(sum(int(tokens[:].sum()) for tokens in found.splits.values()), found.fingerprint)
print(json.dumps(lines), file=sys.stderr)
"""
    builders = [python(code, config) for _ in range(3)]
    results = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0], results
    assert len({output for output, _ in results}) == 1
    said = [json.loads(errors) for _, errors in results]
    assert sum("turning" in str(lines) for lines in said) == 1, "one builds"
    found, lines = opened(config)
    assert lines == []
    assert left(config) == [found.folder.name]


def test_who_finds_a_builder_at_work_says_so_and_waits(config: TextConfig, tmp_path: Path) -> None:
    lines: list[str] = []
    with locked(tmp_path / "lock", lines.append, "waiting"):
        code = """
say = lambda line: print(line, flush=True)
with locked(pathlib.Path(config.path).with_name("lock"), say, "I wait"):
    print("mine")
"""
        other = python(code, config)
        assert other.stdout is not None
        assert other.stdout.readline() == "I wait\n"
    assert other.communicate(timeout=60)[0] == "mine\n"
    assert lines == []


@pytest.mark.parametrize("at", ["write_sidecar", "put_in_place", "file_sha256"])
def test_a_killed_builder_leaves_nothing_that_counts(at: str, config: TextConfig) -> None:
    code = (
        f"building.{at} = lambda *a, **k: os.kill(os.getpid(), 9)\nbuilding.open_corpus(config, announce=print, seed=0)"
    )
    builder = python(code, config)
    builder.communicate(timeout=60)
    assert builder.returncode == -signal.SIGKILL
    (name,) = left(config)
    assert name.startswith(".building-")
    found, lines = opened(config)
    assert len(lines) == 2
    assert left(config) == [found.folder.name]


def test_a_failed_build_leaves_nothing(config: TextConfig, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\n" * 20 + b"\xff")
    with pytest.raises(UserError, match=r"at byte 80, .*not UTF-8"):
        opened(replace(config, tokenizer="char"))
    assert left(config) == []


def test_a_source_that_changes_during_the_build_is_refused(
    config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touching(path: Path) -> str:
        os.utime(tmp_path / "a.txt", (3, 3))
        return "00"

    monkeypatch.setattr(building, "file_sha256", touching)
    with pytest.raises(UserError, match=r"data\.path is .*'a\.txt' changed while it was read"):
        opened(config)
    assert left(config) == []


@pytest.mark.parametrize("cache_dir", ["/dev/null", "/dev/null/cache"])
def test_a_cache_that_cannot_be_written_is_named(cache_dir: str, config: TextConfig) -> None:
    with pytest.raises(UserError, match=rf"data\.cache_dir is '{cache_dir}', and must be a folder that can be written"):
        opened(replace(config, cache_dir=cache_dir))


def test_a_full_disk_is_named(config: TextConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(building.Encoder, "write", full)
    with pytest.raises(UserError, match=r"data\.cache_dir is .*No space left on device"):
        opened(config)
    assert left(config) == []


def test_the_cache_may_lie_in_the_home_folder(
    config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert opened(replace(config, cache_dir="~/c"))[0].folder.parent == tmp_path / "home/c"


def test_a_cache_inside_the_text_folder_changes_nothing(config: TextConfig, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    inside = replace(config, path=str(folder), cache_dir=str(folder / "cache"))
    assert [len(opened(inside)[1]) for _ in range(2)] == [2, 0]


def test_unknown_words_are_counted_and_announced(tmp_path: Path, published_config: PublishedConfigs) -> None:
    folder = tmp_path / "wikitext103"
    folder.mkdir()
    (folder / "wiki.train.tokens").write_text(" \n = A = \n the cat <unk> the\n")
    (folder / "wiki.valid.tokens").write_text(" the dog <unk>\n")
    (folder / "wiki.test.tokens").write_text(" a\n b\n the\n")
    found, lines = opened(published_config("wikitext103"))
    assert found.unknown == opened(published_config("wikitext103"))[0].unknown == {"train": 0, "valid": 1, "test": 2}
    assert "; outside the vocabulary, now <unk>: valid 1 (25.0 %), test 2 (33.3 %)" in lines[-1]
    assert found.vocabulary.decode(found.splits["valid"]) == "the <unk> <unk>\n"
    assert found.counts() == {"train": 10, "valid": 4, "test": 6}


SPACED = "\u6211 \u559c\u6b22 \u5403 \u82f9\u679c \u3002\n"
UNSPACED = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\n"


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "wikitext"])
@pytest.mark.parametrize(
    ("text", "refused"), [(TEXT, False), (SPACED, False), (UNSPACED, True), ("x" * 30 + "\n", True), ("\n", False)]
)
def test_words_without_blanks_are_refused(
    text: str, refused: bool, tokenizer: Tokenizer, config: TextConfig, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(text * 30, encoding="utf-8")
    config = replace(config, tokenizer=tokenizer)
    if refused and tokenizer in ("word", "wikitext"):
        with pytest.raises(UserError, match=rf"data\.tokenizer is '{tokenizer}', .* few blanks .*: use char or bpe"):
            opened(config)
    else:
        opened(config)


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_line_ends_may_be_dropped(
    tokenizer: Tokenizer, chunk_bytes: int, config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "WINDOW", chunk_bytes)
    text = "one\ntwo\r\nthree\rfour \u2028\x0b\x85\n\n" * 9
    (tmp_path / "a.txt").write_bytes(text.encode())
    config = replace(config, tokenizer=tokenizer)
    kept, dropped = (opened(replace(config, newline=newline))[0] for newline in NEWLINES)
    for found, expected in ((kept, text), (dropped, text.replace("\r", "").replace("\n", ""))):
        assert "".join(map(found.vocabulary.decode, found.splits.values())) == expected
    assert kept.vocabulary.size - dropped.vocabulary.size == (2 if tokenizer == "char" else 0)
    assert kept.folder != dropped.folder


def test_a_split_without_a_byte_opens_and_is_refused_when_used(config: TextConfig) -> None:
    config = replace(config, valid_fraction=0.0)
    for _ in range(2):
        found, _ = opened(config)
        assert found.counts()["valid"] == 0
    with pytest.raises(UserError, match="valid split has 0 tokens"):
        found.lanes("valid", batch_size=2, segment_len=5, evaluation=True)


def test_lanes_of_a_corpus(config: TextConfig) -> None:
    found, _ = opened(config)
    training = found.lanes("train", batch_size=3, segment_len=5, evaluation=False)
    assert isinstance(training, CorpusLanes)
    assert training.read(epoch=0, lanes=range(1), start=0, stop=4).tokens_BT.tolist() == [list(b"line")]
    evaluating = found.lanes("train", batch_size=3, segment_len=5, evaluation=True)
    assert evaluating.predictions == found.counts()["train"] - 1
    with pytest.raises(UserError, match=r"data\.batch_size is 3000"):
        found.lanes("train", batch_size=3000, segment_len=5, evaluation=False)


def test_the_standard_library_opens(stdlib_config: StdlibConfig) -> None:
    found, _ = opened(stdlib_config)
    assert sum(found.counts().values()) == found.fingerprint.bytes
    assert found.fingerprint.files > 100
    assert found.vocabulary.size == 256


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "wikitext"])
def test_memory_does_not_grow_with_the_text(
    tokenizer: Tokenizer, config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "WINDOW", 1 << 14)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(flat, "SEARCHED", 1 << 14)
    monkeypatch.setattr(building, "_SAMPLE", 1 << 14)
    config = replace(config, tokenizer=tokenizer)
    opened(config)  # what imports and caches hold is not counted

    def peak(repeats: int) -> int:
        (tmp_path / "a.txt").write_text(TEXT.replace("\n", " ") * repeats)
        tracemalloc.start()
        opened(config)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    shorter = peak(50)  # one line of 0.1 MB
    # and of 1 MB; once more where a thread that another test left behind took memory meanwhile
    assert any(peak(repeats) < shorter + 50_000 for repeats in (400, 401, 402))


def test_token_files_that_are_cut_short_under_a_run_are_named(config: TextConfig) -> None:
    found, _ = opened(config)
    lanes = found.lanes("train", batch_size=2, segment_len=5, evaluation=False)
    lanes.read(epoch=0, lanes=range(2), start=0, stop=5)
    os.truncate(found.folder / "train.bin", 100)
    with pytest.raises(UserError, match=r"train\.bin' was cut short while it was read: data\.rebuild=true builds it"):
        lanes.read(epoch=0, lanes=range(2), start=5, stop=10)
    assert len(opened(config)[1]) == 2, "it is built again"
