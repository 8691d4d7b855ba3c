"""Corpora in every form, from files to documents of tokens."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from transformer_xl.commands.compose import compose
from transformer_xl.data.build import open_corpus
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.inspect import verify
from transformer_xl.data_config import StdlibConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError
from transformer_xl.settings import replace

Configs = Callable[..., TextConfig]
TokensConfigs = Callable[..., TokensConfig]
ODD = (
    "tabs\tand\r\nline ends\rof\nall kinds \U0001f600\U0001f468\u200d\U0001f469 e\u0301 \u4ed6\u8bf4 \x00 <eod>|"
    + "x" * 3000
)
NOVEL = (
    "\u7b2c\u4e00\u7ae0\n\n\u4ed6\u8bf4\uff1a\u201c\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u201d \u9f98\U00020000\n"
) * 40
WITH_DOCUMENTS = {"documents": "record", "reset_memory": "document"}


def opened(config: TextConfig | TokensConfig | StdlibConfig, *, seed: int = 0) -> tuple[Corpus, list[str]]:
    lines: list[str] = []
    return open_corpus(config, announce=lines.append, seed=seed), lines


def documents_of(corpus: Corpus, split: str = "train") -> list[str]:
    """Give the text of each document, without its end."""
    found = corpus.files.splits[split]
    assert found.starts is not None
    edges = [*found.starts[:].tolist(), len(found.tokens)]
    texts = [corpus.vocabulary.decode(found.tokens[start:stop]) for start, stop in pairwise(edges)]
    return [text.removesuffix("<eod>") for text in texts]


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_any_text_comes_back_from_its_tokens(tokenizer: str, tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_bytes(ODD.encode())
    found, _ = opened(text_config(tmp_path / "a.txt", tokenizer=tokenizer))
    assert "".join(found.vocabulary.decode(found.splits[split]) for split in ("train", "valid", "test")) == ODD
    assert sum(found.text_bytes.values()) == len(ODD.encode())


def test_words_come_back_but_for_the_blanks_between_them(tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_bytes(ODD.replace("x", " y").encode())
    found, _ = opened(text_config(tmp_path / "a.txt", tokenizer="word", valid_fraction=0.0, test_fraction=0.0))
    assert found.vocabulary.decode(found.splits["train"]).split() == ODD.replace("x", " y").split()


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_a_novel_in_gb18030(tokenizer: str, tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "novel.txt").write_bytes(NOVEL.encode("gb18030"))
    config = text_config(tmp_path / "novel.txt", tokenizer=tokenizer, encoding="gb18030")
    found, _ = opened(config)
    assert "".join(found.vocabulary.decode(found.splits[split]) for split in ("train", "valid", "test")) == NOVEL
    assert sum(found.text_bytes.values()) == len(NOVEL.encode())
    with pytest.raises(UserError, match=r"novel\.txt.*not UTF-8"):
        opened(replace(config, encoding="utf-8", tokenizer="char"))


def test_a_bad_byte_in_each_mode(tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntw\xffo\nthree\n" * 10)
    config = text_config(tmp_path / "a.txt", tokenizer="char", valid_fraction=0.0, test_fraction=0.0)
    with pytest.raises(UserError, match=r"a\.txt' at byte 6, .* 0xff"):
        opened(config)
    for errors, text, note in (("replace", "one\ntw\ufffdo\nthree\n", "put U+FFFD in 10 places"),):
        found, lines = opened(replace(config, errors=errors))
        assert found.vocabulary.decode(found.splits["train"]) == text * 10
        assert sum(note in line for line in lines) == 1


def write_documents(folder: Path, form: str, documents: list[str]) -> Path:
    path = folder / form
    if form == "folder":
        path.mkdir()
        for number, document in enumerate(documents):
            (path / f"{number:03}.txt").write_text(document)
    elif form == "a.jsonl.gz":
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps({"text": document}) + "\n" for document in documents)
    elif form == "blank_line":
        path.write_text("\n".join(documents))
    elif form == "marker":
        path.write_text("<|end|>\n".join(documents))
    return path


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "bpe"])
@pytest.mark.parametrize("form", ["folder", "a.jsonl.gz", "blank_line", "marker"])
def test_documents_are_found_in_every_form(form: str, tokenizer: str, tmp_path: Path, text_config: Configs) -> None:
    documents = [f"document {number % 7}\nends here\n" for number in range(30)]
    path = write_documents(tmp_path, form, documents)
    rule = form if form in ("blank_line", "marker") else "record"
    marker = "<|end|>" if form == "marker" else None
    config = text_config(path, tokenizer=tokenizer, **WITH_DOCUMENTS | {"documents": rule, "document_marker": marker})
    found, _ = opened(config)
    kept = [text.rstrip("\n") + "\n" for split in ("train", "valid", "test") for text in documents_of(found, split)]
    assert kept == documents
    lanes = found.lanes("train", batch_size=1, segment_len=5, evaluation=False)
    segment = lanes.read(epoch=0, lanes=range(1), start=0, stop=lanes.lane_len)
    starts = found.files.splits["train"].starts
    assert starts is not None
    assert np.flatnonzero(segment.resets_BT[0]).tolist() == starts[:].tolist()


def test_one_document_has_no_end_and_ends_may_be_left_out(tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_text("one\n" * 30)
    (tmp_path / "folder").mkdir()
    for name in "abc":
        (tmp_path / "folder" / name).write_text(f"{name}\n" * 10)
    assert opened(text_config(tmp_path / "a.txt", **WITH_DOCUMENTS))[0].vocabulary.size == 256
    several = text_config(tmp_path / "folder", **WITH_DOCUMENTS)
    assert opened(several)[0].vocabulary.size == 257
    plain, _ = opened(replace(several, end_of_document=False))
    assert plain.vocabulary.size == 256
    assert plain.files.splits["train"].starts is not None
    assert plain.counts()["train"] == plain.text_bytes["train"]


def test_shuffled_documents_follow_from_seed_and_epoch(tmp_path: Path, text_config: Configs) -> None:
    documents = [f"{number:03}\n" for number in range(50)]
    path = write_documents(tmp_path, "a.jsonl.gz", documents)
    config = text_config(path, **WITH_DOCUMENTS, order="shuffled", valid_fraction=0.0, test_fraction=0.0)

    def read(seed: int, epoch: int) -> list[str]:
        found, _ = opened(config, seed=seed)
        lanes = found.lanes("train", batch_size=1, segment_len=5, evaluation=False)
        tokens = lanes.read(epoch=epoch, lanes=range(1), start=0, stop=lanes.lane_len).tokens_BT[0]
        return found.vocabulary.decode(tokens).split("<eod>")

    first = read(0, 0)
    assert sorted(first) == documents
    assert first != documents
    assert read(0, 0) == first
    assert read(0, 1) != first
    assert read(1, 0) != first
    found, _ = opened(config)
    evaluation = found.lanes("train", batch_size=1, segment_len=5, evaluation=True)
    in_order = evaluation.read(epoch=0, lanes=range(1), start=0, stop=8).tokens_BT[0]
    assert found.vocabulary.decode(in_order) == "000\n<eod>001"


def test_validation_and_test_are_the_same_capped_text_for_every_tokenizer(tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_text("some words \u00e9\n" * 10_000)
    texts = []
    for tokenizer in ("byte", "char", "word", "bpe"):
        found, _ = opened(text_config(tmp_path / "a.txt", tokenizer=tokenizer, max_eval_tokens=1000))
        texts.append([found.vocabulary.decode(found.splits[split]) for split in ("train", "valid", "test")])
        assert all(0 < found.counts()[split] <= 1000 for split in ("valid", "test")), tokenizer
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len(texts[0][1].encode()) > 970
    assert len("".join(texts[0])) == 130_000, "what they do not need is trained"


def test_files_that_are_too_long_for_an_evaluation_are_cut_and_it_is_said(tmp_path: Path, text_config: Configs) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("some words\n" * 100)
    found, lines = opened(text_config(tmp_path, tokenizer="word", max_eval_tokens=50))
    assert found.counts() == {"train": 300, "valid": 50, "test": 50}
    assert sum("split ends at data.max_eval_tokens 50, " in line for line in lines) == 2, lines


@pytest.mark.parametrize("form", ["a.npy", "a.bin", "a.jsonl", "a.txt"])
def test_ids_of_other_programs_in_each_form(form: str, tmp_path: Path, tokens_config: TokensConfigs) -> None:
    ids = np.random.default_rng(0).integers(0, 300, 500)
    path = tmp_path / form
    if form == "a.npy":
        np.save(path, ids.astype(">i4"))
    elif form == "a.bin":
        ids.astype("<u2").tofile(path)
    elif form == "a.jsonl":
        path.write_text("".join(json.dumps(some.tolist()) + "\n" for some in np.split(ids, 10)))
    else:
        path.write_text("\n".join(map(str, ids.tolist())))
    config = tokens_config(path, vocab_size=300, dtype="uint16" if form == "a.bin" else None)
    found, _ = opened(config)
    read = np.concatenate([found.splits[split] for split in ("train", "valid", "test")])
    end = found.vocabulary.end_of_document
    assert end == (300 if form == "a.jsonl" else None)
    assert read[read != 300].tolist() == ids.tolist()
    if form == "a.jsonl":
        starts = found.files.splits["train"].starts
        assert starts is not None
        assert starts[:].tolist() == [51 * number for number in range(8)]
        assert (np.flatnonzero(read == 300) == 50 + 51 * np.arange(10)).all()
    assert found.text_bytes == {}
    with pytest.raises(UserError, match=r"data\.vocab_size|299|below"):
        opened(replace(config, vocab_size=10))


def test_ids_may_be_split_by_files_or_by_each_documents_hash(tmp_path: Path, tokens_config: TokensConfigs) -> None:
    for split, value in (("train", 1), ("valid", 2), ("test", 3)):
        (tmp_path / f"{split}.txt").write_text(f"{value} " * 20)
    found, _ = opened(tokens_config(tmp_path, end_of_document=False))
    assert [set(found.splits[split].tolist()) for split in ("train", "valid", "test")] == [{1}, {2}, {3}]
    rows = [[number % 7, number // 7, 9] for number in range(49)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tokens_config(tmp_path / "rows.jsonl", split="hash", valid_fraction=0.3, test_fraction=0.3)
    by_hash, _ = opened(config)
    documents = {split: {tuple(row) for row in ids.reshape(-1, 4).tolist()} for split, ids in by_hash.splits.items()}
    assert set().union(*documents.values()) == {(*row, 10) for row in rows}
    assert min(map(len, documents.values())) > 5


def test_ids_with_a_vocabulary(tmp_path: Path, tokens_config: TokensConfigs, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_text("a b c a b\n" * 20)
    text, _ = opened(text_config(tmp_path / "a.txt", tokenizer="word", valid_fraction=0.0, test_fraction=0.0))
    text.vocabulary.save(tmp_path / "words.json")
    np.save(tmp_path / "ids.npy", text.splits["train"])
    vocabulary = str(tmp_path / "words.json")
    config = tokens_config(tmp_path / "ids.npy", vocab_size=None, vocabulary=vocabulary, test_fraction=0.0)
    found, _ = opened(config)
    assert found.vocabulary.decode(found.splits["train"]).startswith("a b c a b\n")
    text.vocabulary.with_end_of_document().save(tmp_path / "words.json")
    again, lines = opened(config)
    assert len(lines) == 2, "another vocabulary makes another corpus"
    assert again.vocabulary.size == found.vocabulary.size + 1


def test_a_rebuild_is_made_where_it_is_asked_for(tmp_path: Path, text_config: Configs) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    config = text_config(tmp_path / "a.txt")
    found, _ = opened(config)
    (found.folder / "train.bin").write_bytes(bytes(len(found.splits["train"])))
    assert len(verify(found).differences) == 1
    assert opened(config)[1] == [], "flipped bits are not looked for each time"
    rebuilt, lines = opened(replace(config, rebuild=True))
    assert len(lines) == 2
    assert verify(rebuilt).differences == []


def test_the_standard_library_may_be_read_by_documents(stdlib_config: StdlibConfig) -> None:
    plain, _ = opened(stdlib_config)
    config = replace(stdlib_config, documents="file", reset_memory="document", order="shuffled")
    found, _ = opened(config)
    documents = sum(len(split.starts) for split in found.files.splits.values() if split.starts is not None)
    assert sum(found.counts().values()) == sum(plain.counts().values()) + documents
    assert found.vocabulary.size == 257


@pytest.mark.parametrize(
    ("content", "changes", "note"),
    [
        ("a\n---\nb\n", {"documents": "marker", "document_marker": "***"}, "no text has the line '***' between two"),
        ("a\nb\n", {"documents": "blank_line"}, "no text has a blank line between two documents"),
        ("a\nb\n", {"documents": "record", "order": "shuffled"}, "nothing to shuffle"),
        ("a\x00b\n", {}, "NUL bytes, which text has not, are in the text"),
        ("ab\n", {"tokenizer": "bpe"}, "sub-words, fewer than the 300 of data.bpe_size"),
    ],
)
def test_what_is_unusual_is_said(
    content: str, changes: dict[str, object], note: str, tmp_path: Path, text_config: Configs
) -> None:
    (tmp_path / "a.txt").write_text(content * 100)
    _, lines = opened(text_config(tmp_path / "a.txt", **changes))
    assert sum(note in line for line in lines) == 1, lines


def test_a_corpus_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plugin = tmp_path / "poems_of_mine.py"
    plugin.write_text((Path(__file__).parents[2] / "examples/parts/verses.py").read_text().replace("verses", "poems"))
    config = compose("data=poems", "data.tokenizer=word", "data.poems=40", plugins=[str(plugin)])
    found, _ = opened(config.data)
    assert documents_of(found)[1] == "verse number 1\nand so it ends\n"
    assert {split: len(tokens) for split, tokens in found.splits.items()} == {"train": 400, "valid": 100, "test": 100}
    assert opened(config.data)[1] == [], "it is built once"
    other, _ = opened(replace(config.data, poems=20))
    assert other.fingerprint.sha256 != found.fingerprint.sha256
