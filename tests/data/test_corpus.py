"""Corpora: built once, opened from then on, from any text, whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from transformer_xl.commands.compose import compose
from transformer_xl.data import documents as flat
from transformer_xl.data import files
from transformer_xl.data.build import open_corpus
from transformer_xl.data.corpus import Corpus
from transformer_xl.data_config import StdlibConfig, StoredConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import plain, replace

TextConfigs = Callable[..., TextConfig]
TokensConfigs = Callable[..., TokensConfig]
SPLITS = ("train", "valid", "test")
TEXT = "".join(f"line {number} of the text, \u00e9\n" for number in range(100))
ODD = (
    "tabs\tand\r\nline ends\rof\nall kinds \U0001f600\U0001f468\u200d\U0001f469 e\u0301 \u4ed6\u8bf4 \x00 <eod>|"
    + "x" * 3000
)
WITH_DOCUMENTS = {"documents": "record", "reset_memory": "document"}


@pytest.fixture
def config(tmp_path: Path, text_config: TextConfigs) -> TextConfig:
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return text_config(tmp_path / "a.txt")


def opened(config: StoredConfig, *, seed: int = 0) -> tuple[Corpus, list[str]]:
    lines: list[str] = []
    return open_corpus(config, announce=lines.append, seed=seed), lines


def text_of(corpus: Corpus, *splits: str) -> str:
    return "".join(corpus.vocabulary.decode(corpus.tokens[split][:]) for split in splits or SPLITS)


def documents_of(corpus: Corpus, split: str = "train") -> list[str]:
    """Return the text of each document, without its end."""
    edges = [*corpus.starts[split][:].tolist(), len(corpus.tokens[split])]
    texts = [corpus.vocabulary.decode(corpus.tokens[split][start:stop]) for start, stop in pairwise(edges)]
    return [text.removesuffix("<eod>") for text in texts]


def left(config: StoredConfig) -> list[str]:
    """Return what builders left, but for locks."""
    return [path.name for path in Path(config.cache_dir).iterdir() if not path.name.startswith(".lock-")]


# --- token files ---


def test_a_ready_cache_is_opened_and_not_touched(config: TextConfig) -> None:
    first, lines = opened(config)
    assert len(lines) == 2
    assert f"{sum(first.counts().values()):,} tokens" in lines[1]
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.folder.iterdir()}
    second, lines = opened(replace(config, batch_size=1, segment_len=1))
    assert lines == []
    assert {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in first.folder.iterdir()} == before
    assert second.fingerprint == first.fingerprint
    assert sorted(before) == ["corpus.json", "test.bin", "train.bin", "valid.bin", "vocabulary.json"]
    assert left(config) == [first.folder.name]


def test_a_changed_byte_is_seen(config: TextConfig, tmp_path: Path) -> None:
    before, _ = opened(config)
    (tmp_path / "a.txt").write_text(TEXT.replace("line 0", "LINE 0"), encoding="utf-8")
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    after, lines = opened(config)
    assert len(lines) == 2
    assert after.folder == before.folder
    assert after.fingerprint.sha256 != before.fingerprint.sha256
    assert bytes(after.tokens["train"][:6].tolist()) == b"LINE 0"
    assert bytes(before.tokens["train"][:6].tolist()) == b"line 0", "what is mapped stays readable"
    assert left(config) == [after.folder.name]


def test_a_new_mtime_or_length_or_file_is_seen(config: TextConfig, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (tmp_path / "a.txt").rename(folder / "a.txt")
    config = replace(config, path=str(folder), cache_dir=str(folder / "cache"))  # inside the text folder
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
    changed = [config, replace(config, tokenizer="char"), replace(config, valid_fraction=0.2)]
    folders = [opened(one)[0].folder for one in changed]
    assert len(set(folders)) == 3
    assert all(folder.name.startswith("text-") and len(folder.name) == len("text-") + 12 for folder in folders)


@pytest.mark.parametrize("name", ["corpus.json", "train.bin"])
def test_a_missing_or_damaged_file_is_no_cache(name: str, config: TextConfig) -> None:
    path = opened(config)[0].folder / name
    expected = path.read_bytes()
    sidecar = json.loads(expected) if name == "corpus.json" else {}
    for damaged in (None, b"", b"[" * 100_000, expected[:-2], json.dumps({**sidecar, "splits": None}).encode()):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        assert [len(opened(config)[1]) for _ in range(2)] == [2, 0]
        assert path.read_bytes() == expected
    assert len(opened(replace(config, rebuild=True))[1]) == 2


BUILD = """
import json, os, sys, time
from transformer_xl.data import build as building
from transformer_xl.data_config import TextConfig
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
write = building.write_sidecar
def late(*arguments, **named):
    time.sleep(0.5)  # the others come meanwhile
    write(*arguments, **named)
building.write_sidecar = late
found = building.open_corpus(config, announce=lines.append, seed=0)
print(sum(int(tokens[:].sum()) for tokens in found.tokens.values()), found.fingerprint)
print(json.dumps(lines), file=sys.stderr)
"""
    builders = [python(code, config) for _ in range(3)]
    results = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0], results
    assert len({output for output, _ in results}) == 1
    assert sum("turning" in str(json.loads(errors)) for _, errors in results) == 1, "one builds"
    found, lines = opened(config)
    assert lines == []
    assert left(config) == [found.folder.name]


@pytest.mark.parametrize("at", ["building.write_sidecar", "building.os.rename"])
def test_a_killed_builder_leaves_nothing_that_counts(at: str, config: TextConfig) -> None:
    builder = python(
        f"{at} = lambda *a, **k: os.kill(os.getpid(), 9)\nbuilding.open_corpus(config, announce=print, seed=0)", config
    )
    builder.communicate(timeout=60)
    assert builder.returncode == -signal.SIGKILL
    (name,) = left(config)
    assert name.startswith(".building-")
    found, lines = opened(config)
    assert len(lines) == 2
    assert left(config) == [found.folder.name]


def test_a_source_that_changes_during_the_build_is_refused(config: TextConfig, tmp_path: Path) -> None:
    def touch(line: str) -> None:
        os.utime(tmp_path / "a.txt", (3, 3))

    with pytest.raises(UserError, match=r"a\.txt' changed while it was read"):
        open_corpus(config, announce=touch, seed=0)
    assert left(config) == []


def test_a_failed_build_leaves_nothing(config: TextConfig, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\n" * 20 + b"\xff")
    with pytest.raises(UserError, match=r"at byte 80 .*not UTF-8"):
        opened(replace(config, tokenizer="char"))
    assert left(config) == []


@pytest.mark.parametrize("cache_dir", ["/dev/null", "/dev/null/cache"])
def test_a_cache_that_cannot_be_written_is_named(cache_dir: str, config: TextConfig) -> None:
    with pytest.raises(UserError, match=rf"data\.cache_dir is '{cache_dir}', and must be a folder that can be written"):
        opened(replace(config, cache_dir=cache_dir))


def test_token_files_that_are_cut_short_under_a_run_are_named(config: TextConfig) -> None:
    found, _ = opened(config)
    lanes = found.lanes("train", batch_size=2, segment_len=5, evaluation=False)
    lanes.read(epoch=0, lanes=range(2), start=0, stop=5)
    os.truncate(found.folder / "train.bin", 100)
    with pytest.raises(UserError, match=r"train\.bin' was cut short while it was read: data\.rebuild=true builds it"):
        lanes.read(epoch=0, lanes=range(2), start=5, stop=10)
    assert len(opened(config)[1]) == 2, "it is built again"


# --- text ---


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_any_text_comes_back_from_its_tokens(tokenizer: str, tmp_path: Path, text_config: TextConfigs) -> None:
    (tmp_path / "a.txt").write_bytes(ODD.encode())
    found, _ = opened(text_config(tmp_path / "a.txt", tokenizer=tokenizer))
    assert text_of(found) == ODD
    assert sum(found.text_bytes.values()) == len(ODD.encode())


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "bpe"])
@pytest.mark.parametrize("rule", ["file", "blank_line", "marker"])
def test_documents_are_found_in_every_form(rule: str, tokenizer: str, tmp_path: Path, text_config: TextConfigs) -> None:
    documents = [f"document {number % 7}\nends here\n" for number in range(30)]
    path = tmp_path / "texts"
    path.mkdir()
    if rule == "file":
        for number, document in enumerate(documents):
            (path / f"{number:03}.txt").write_text(document)
    else:
        (path / "a.txt").write_text(("\n" if rule == "blank_line" else "<|end|>\n").join(documents))
    marker = "<|end|>" if rule == "marker" else None
    how = {**WITH_DOCUMENTS, "documents": rule, "document_marker": marker}
    found, _ = opened(text_config(path, tokenizer=tokenizer, **how))
    kept = [text.rstrip("\n") + "\n" for split in SPLITS for text in documents_of(found, split)]
    assert kept == documents
    lanes = found.lanes("train", batch_size=1, segment_len=5, evaluation=False)
    segment = lanes.read(epoch=0, lanes=range(1), start=0, stop=lanes.lane_len)
    assert np.flatnonzero(segment.resets_BT[0]).tolist() == found.starts["train"][:].tolist()


def test_one_document_has_no_end_and_ends_may_be_left_out(tmp_path: Path, text_config: TextConfigs) -> None:
    (tmp_path / "a.txt").write_text("one\n" * 30)
    (tmp_path / "folder").mkdir()
    for name in "abc":
        (tmp_path / "folder" / name).write_text(f"{name}\n" * 10)
    assert opened(text_config(tmp_path / "a.txt", **WITH_DOCUMENTS))[0].vocabulary.size == 256
    several = text_config(tmp_path / "folder", **WITH_DOCUMENTS)
    assert opened(several)[0].vocabulary.size == 257
    plain, _ = opened(replace(several, end_of_document=False))
    assert plain.vocabulary.size == 256
    assert plain.counts()["train"] == plain.text_bytes["train"]


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
@pytest.mark.parametrize("window", [1, 1 << 20])
def test_line_ends_may_be_dropped(
    tokenizer: str, window: int, config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "WINDOW", window)
    text = "one\ntwo\r\nthree\rfour \u2028\x0b\x85\n\n" * 9
    (tmp_path / "a.txt").write_bytes(text.encode())
    config = replace(config, tokenizer=tokenizer)
    newlines: tuple[Literal["keep"], Literal["drop"]] = ("keep", "drop")
    kept, dropped = (opened(replace(config, newline=newline))[0] for newline in newlines)
    assert (text_of(kept), text_of(dropped)) == (text, text.replace("\r", "").replace("\n", ""))
    assert kept.vocabulary.size - dropped.vocabulary.size == (2 if tokenizer == "char" else 0)


def test_an_empty_split_is_refused_when_it_is_used(config: TextConfig) -> None:
    for _ in range(2):
        found, _ = opened(replace(config, valid_fraction=0.0))
        assert found.counts()["valid"] == 0
    with pytest.raises(UserError, match="valid split has 0 tokens"):
        found.lanes("valid", batch_size=2, segment_len=5, evaluation=True)


def test_files_that_are_too_long_for_an_evaluation_are_cut(tmp_path: Path, text_config: TextConfigs) -> None:
    for split in SPLITS:
        (tmp_path / f"{split}.txt").write_text("some words\n" * 100)
    found, _ = opened(text_config(tmp_path, tokenizer="word", max_eval_tokens=50))
    assert found.counts() == {"train": 300, "valid": 50, "test": 50}


def test_the_standard_library_by_documents(stdlib_config: StdlibConfig) -> None:
    plain, _ = opened(stdlib_config)
    assert sum(plain.counts().values()) == plain.fingerprint.bytes
    assert plain.fingerprint.files > 100
    described = {
        one["path"]: one["sha256"] for one in json.loads((plain.folder / "corpus.json").read_text())["sources"]
    }
    lines = "".join(f"{described[name]}  {name}\n" for name in sorted(described))
    assert plain.fingerprint.sha256 == hashlib.sha256(lines.encode()).hexdigest(), "whatever is in which split"
    found, _ = opened(replace(stdlib_config, documents="file", reset_memory="document", order="shuffled"))
    documents = sum(map(len, found.starts.values()))
    assert sum(found.counts().values()) == sum(plain.counts().values()) + documents


def test_ids_are_split_by_files_or_by_each_documents_hash(tmp_path: Path, tokens_config: TokensConfigs) -> None:
    for split, value in (("train", 1), ("valid", 2), ("test", 3)):
        (tmp_path / f"{split}.txt").write_text(f"{value} " * 20)
    found, _ = opened(tokens_config(tmp_path, end_of_document=False))
    assert [set(found.tokens[split][:].tolist()) for split in SPLITS] == [{1}, {2}, {3}]
    rows = [[number % 7, number // 7, 9] for number in range(49)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tokens_config(tmp_path / "rows.jsonl", split="hash", valid_fraction=0.3, test_fraction=0.3)
    by_hash, _ = opened(config)
    documents = [{tuple(row) for row in by_hash.tokens[split][:].reshape(-1, 4).tolist()} for split in SPLITS]
    assert set().union(*documents) == {(*row, 10) for row in rows}
    assert min(map(len, documents)) > 5


def test_ids_with_a_vocabulary(tmp_path: Path, tokens_config: TokensConfigs, text_config: TextConfigs) -> None:
    (tmp_path / "a.txt").write_text("a b c a b\n" * 20)
    text, _ = opened(text_config(tmp_path / "a.txt", tokenizer="word", valid_fraction=0.0, test_fraction=0.0))
    text.vocabulary.save(tmp_path / "words.json")
    np.save(tmp_path / "ids.npy", text.tokens["train"][:])
    vocabulary = str(tmp_path / "words.json")
    config = tokens_config(tmp_path / "ids.npy", vocab_size=None, vocabulary=vocabulary, test_fraction=0.0)
    found, _ = opened(config)
    assert text_of(found, "train").startswith("a b c a b\n")
    text.vocabulary.with_end_of_document().save(tmp_path / "words.json")
    again, lines = opened(config)
    assert len(lines) == 2, "another vocabulary makes another corpus"
    assert again.vocabulary.size == found.vocabulary.size + 1


@pytest.mark.parametrize(
    ("content", "changes", "note"),
    [
        (b"a\nb\n", {"documents": "record", "order": "shuffled"}, "nothing to shuffle"),
        (b"a  b\n", {"tokenizer": "word"}, "% of the text's bytes do not come back from the word tokenizer"),
    ],
)
def test_what_is_unusual_is_said(
    content: bytes, changes: dict[str, object], note: str, tmp_path: Path, text_config: TextConfigs
) -> None:
    (tmp_path / "a.txt").write_bytes(content * 100)
    _, lines = opened(text_config(tmp_path / "a.txt", **changes))
    assert sum(note in line for line in lines) == 1, lines


def test_a_corpus_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plugin = tmp_path / "poems_of_mine.py"
    plugin.write_text((Path(__file__).parents[2] / "examples/parts/verses.py").read_text().replace("verses", "poems"))
    config: Any = compose("data=poems", "data.tokenizer=word", "data.poems=40", plugins=[str(plugin)])
    found, _ = opened(config.data)
    assert documents_of(found)[1] == "verse number 1\nand so it ends\n"
    assert found.counts() == {"train": 400, "valid": 100, "test": 100}
    assert opened(config.data)[1] == [], "it is built once"
    other, _ = opened(replace(config.data, poems=20))
    assert other.fingerprint.sha256 != found.fingerprint.sha256


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "wikitext"])
def test_memory_does_not_grow_with_the_text(
    tokenizer: str, config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "WINDOW", 1 << 14)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(flat, "SEARCHED", 1 << 14)
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
