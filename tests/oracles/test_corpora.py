"""Token files, vocabularies and batches, to the bit: corpus x tokenizer x format x lanes x processes."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.oracles import adapter, recorded, tiny

TOKENIZER = tiny.HERE / "texts" / "tokenizer.json"
ODD = (
    'Tabs\tand "quotes", e\u0301 and \u00e9; <unk> don\'t 3.5 well-known '
    "\u4ed6\u8bf4\uff1a\u201c\u4eca\u5929\u201d \U0001f600\n"
)
DOCUMENTS = [tiny.text(2 + number % 5, seed=number) for number in range(40)]
ROWS = [[(7 * number + place * place) % 300 for place in range(5 + number % 9)] for number in range(60)]


def mixed(lines: int) -> str:
    """Return plain lines with odd ones between them."""
    return "".join(tiny.text(9, seed=number) + ODD for number in range(lines // 10))


def write(work: Path, name: str, content: str | bytes) -> str:
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return f"data.path={path}"


def text(work: Path) -> list[str]:
    return [write(work, "a.txt", mixed(300))]


def long_text(work: Path) -> list[str]:
    """Write 5 MB, which are read in parts, and by several processes where there are some."""
    return [write(work, "long.txt", mixed(100_000))]


def packed(suffix: str) -> Callable[[Path], list[str]]:
    def files(work: Path) -> list[str]:
        content = mixed(300).encode()
        if suffix == ".zst":
            return [write(work, "a.txt.zst", pyarrow.compress(content, codec="zstd", asbytes=True))]
        return [write(work, f"a.txt{suffix}", {".gz": gzip.compress, ".xz": lzma.compress}[suffix](content))]

    return files


def folder(work: Path) -> list[str]:
    for number, document in enumerate(DOCUMENTS):
        write(work, f"texts/{number:03}.txt", document + (ODD if number % 4 == 0 else ""))
    return [f"data.path={work / 'texts'}"]


def split_files(work: Path) -> list[str]:
    for split, lines in (("train", 200), ("valid", 30), ("test", 40)):
        write(work, f"texts/{split}.txt", mixed(lines))
    return [f"data.path={work / 'texts'}"]


def records(suffix: str = "", field: str = "text") -> Callable[[Path], list[str]]:
    def files(work: Path) -> list[str]:
        content = "".join(
            json.dumps({"id": i, field: document}) + "\n" for i, document in enumerate(DOCUMENTS)
        ).encode()
        if suffix == ".zst":
            content = pyarrow.compress(content, codec="zstd", asbytes=True)
        elif suffix == ".gz":
            content = gzip.compress(content)
        return [write(work, f"a.jsonl{suffix}", content), f"data.field={field}"]

    return files


def table(work: Path) -> list[str]:
    with (work / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "body"])
        writer.writerows([number, document + ODD] for number, document in enumerate(DOCUMENTS))
    return [f"data.path={work / 'a.csv'}", "data.field=body"]


def columns(work: Path) -> list[str]:
    parquet.write_table(pyarrow.table({"id": list(range(40)), "text": DOCUMENTS}), work / "a.parquet")
    return [f"data.path={work / 'a.parquet'}"]


def blank_lines(work: Path) -> list[str]:
    return [write(work, "a.txt", "\n".join(DOCUMENTS)), "data.documents=blank_line"]


def marked(work: Path) -> list[str]:
    return [write(work, "a.txt", "<|end|>\n".join(DOCUMENTS)), "data.documents=marker", "data.document_marker=<|end|>"]


def chinese(work: Path) -> list[str]:
    novel = "\u7b2c\u4e00\u7ae0\n\n\u4ed6\u8bf4\uff1a\u201c\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u201d \u9f98\n"
    return [write(work, "novel.txt", (novel * 60).encode("gb18030")), "data.encoding=gb18030"]


def damaged(work: Path) -> list[str]:
    return [write(work, "a.txt", b"one\ntw\xffo\nthree and four\n" * 120), "data.errors=replace"]


def ids(suffix: str) -> Callable[[Path], list[str]]:
    def files(work: Path) -> list[str]:
        flat = np.array([number for row in ROWS for number in row])
        path = work / f"ids{suffix}"
        if suffix == ".npy":
            np.save(path, flat.astype("<i4"))
        elif suffix == ".bin":
            flat.astype("<u2").tofile(path)
        elif suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        else:
            path.write_text(" ".join(map(str, flat.tolist())))
        return ["data=tokens", f"data.path={path}", "data.vocab_size=300"]

    return files


def ids_of_words(work: Path) -> list[str]:
    vocabulary = json.dumps({"format": 1, "kind": "char", "symbols": [*"abc \n"]})
    write(work, "words.json", vocabulary)
    write(work, "ids.txt", " ".join(str(number % 5) for row in ROWS for number in row))
    return ["data=tokens", f"data.path={work / 'ids.txt'}", f"data.vocabulary={work / 'words.json'}"]


def published(kind: str, files: dict[str, str]) -> Callable[[Path], list[str]]:
    def written(work: Path) -> list[str]:
        for name, content in files.items():
            write(work, f"{kind}/{name}", content)
        return [f"data={kind}", f"data.dir={work / kind}"]

    return written


WIKI = {
    f"wiki.{split}.tokens": f" = {split} = \n" + tiny.text(n)
    for split, n in (("train", 90), ("valid", 20), ("test", 30))
}
PENN = {f"ptb.{split}.txt": tiny.text(n).lower() for split, n in (("train", 90), ("valid", 20), ("test", 30))}
NEWS = {
    f"heldout-monolingual.tokenized.shuffled/news.en.heldout-0000{n}-of-00050": tiny.text(9, seed=n) for n in range(2)
} | {f"training-monolingual.tokenized.shuffled/news.en-0000{n}-of-00100": tiny.text(30, seed=n) for n in range(3)}


class Case(NamedTuple):
    files: Callable[[Path], list[str]]
    overrides: list[str]
    lanes: int = 4
    processes: int = 1


CASES: dict[str, Case] = {
    "bytes": Case(text, []),
    "bytes, 5 lanes, 2 processes": Case(text, ["data.newline=drop"], 5, 2),
    "bytes, 7 lanes, 3 processes": Case(text, ["data.reset_memory=never"], 7, 3),
    "characters": Case(text, ["data.tokenizer=char"]),
    "characters that are rare": Case(text, ["data.tokenizer=char", "data.min_count=40", "data.newline=drop"]),
    "characters, at most 20": Case(packed(".gz"), ["data.tokenizer=char", "data.max_size=20", "data.lower_case=true"]),
    "words": Case(text, ["data.tokenizer=word"]),
    "words of xz": Case(packed(".xz"), ["data.tokenizer=word", "data.lower_case=true", "data.min_count=2"], 3, 3),
    "words, at most 15": Case(text, ["data.tokenizer=word", "data.max_size=15", "data.newline=drop"]),
    "wikitext": Case(text, ["data.tokenizer=wikitext"], 2),
    "wikitext of records": Case(records(".gz"), ["data.tokenizer=wikitext", "data.min_count=2"], 2, 2),
    "sub-words": Case(text, ["data.tokenizer=bpe", "data.bpe_size=300"]),
    "sub-words of zst records, shuffled": Case(
        records(".zst"), ["data.tokenizer=bpe", "data.bpe_size=280", "data.order=shuffled"], 5, 2
    ),
    "a tokenizer of others": Case(packed(".zst"), [f"data.tokenizer={TOKENIZER}"]),
    "a tokenizer of others, documents": Case(records(), [f"data.tokenizer={TOKENIZER}"], 3, 2),
    "documents of records": Case(records(field="body"), []),
    "documents by hash": Case(records(), ["data.tokenizer=char", "data.split=hash", "data.valid_fraction=0.2"]),
    "documents, shuffled": Case(records(), ["data.order=shuffled"], 5, 2),
    "documents without ends": Case(records(), ["data.end_of_document=false", "data.tokenizer=char"]),
    "records as one text": Case(records(), ["data.documents=none", "data.reset_memory=never", "data.tokenizer=word"]),
    "a table": Case(table, ["data.tokenizer=word"], 3),
    "columns": Case(columns, ["data.tokenizer=char"], 3, 2),
    "blank lines": Case(blank_lines, []),
    "marked": Case(marked, ["data.tokenizer=char"], 3),
    "a folder": Case(folder, ["data.documents=file", "data.tokenizer=char"]),
    "files of splits": Case(split_files, ["data.tokenizer=word"]),
    "capped": Case(text, ["data.max_eval_tokens=200", "data.valid_fraction=0.2"]),
    "gb18030": Case(chinese, ["data.tokenizer=char"], 2),
    "wrong bytes": Case(damaged, ["data.tokenizer=char"], 2),
    "ids, npy": Case(ids(".npy"), [], 2),
    "ids, bin": Case(ids(".bin"), ["data.dtype=uint16"], 2),
    "ids, records": Case(ids(".jsonl"), ["data.order=shuffled"], 3, 2),
    "ids, text": Case(ids(".txt"), ["data.vocab_size=400"], 2),
    "ids with a vocabulary": Case(ids_of_words, [], 2),
    "enwik8": Case(published("enwik8", {"enwik8": mixed(300)}), []),
    "enwik8 with line ends": Case(published("enwik8", {"enwik8": mixed(300)}), ["data.newline=keep"]),
    "text8": Case(published("text8", {"text8": " anarchism originated as a term" * 90}), [], 2),
    "wikitext2": Case(published("wikitext2", WIKI), [], 2),
    "wikitext103": Case(published("wikitext103", WIKI), [], 2),
    "ptb": Case(published("ptb", PENN), [], 2),
    "ptb by character": Case(published("ptb", PENN), ["data.tokenizer=char"], 2),
    "lm1b": Case(published("lm1b", NEWS), [], 2),
    "recall": Case(lambda work: ["data=recall", "data.train_tokens=2000", "data.eval_tokens=700"], [], 5, 2),
    "drawn lengths": Case(text, ["data.segment_len_sd=2.0", "data.half_segments=0.2"]),
    "half of each segment": Case(text, ["data.loss=half"]),
    "chunks": Case(text, ["data.lane_chunks=2"], 5, 2),
    "accumulated": Case(text, ["trainer.accumulate_grad_batches=3", "data.lane_chunks=2"]),
    "windows": Case(text, ["eval.stride=3", "eval.batch_size=3", "eval.mem_len=0"], 4, 2),
    "a limited epoch": Case(text, ["trainer.limit_train_batches=7"]),
}
LONG = {
    "long, characters": Case(long_text, ["data.tokenizer=char"]),
    "long, words": Case(long_text, ["data.tokenizer=word"]),
    "long, wikitext": Case(long_text, ["data.tokenizer=wikitext"]),
    "long, sub-words": Case(long_text, ["data.tokenizer=bpe", "data.bpe_size=400"]),
    "long, a tokenizer of others": Case(long_text, [f"data.tokenizer={TOKENIZER}"]),
}
CASES |= LONG


def sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def in_short(batches: list[adapter.Lanes]) -> dict[str, Any]:
    """Describe the first and the last batch, and all of them by one checksum."""
    contents = [
        (batch.tokens_BT.numpy(), batch.targets_BT.numpy(), batch.resets_BT.numpy().astype("u1")) for batch in batches
    ]
    sums = [sha256(*(part.astype("<i8").tobytes() for part in arrays)) for arrays in contents]
    places = [[batch.step, batch.micro, batch.chunk, batch.counted, *batch.tokens_BT.shape] for batch in batches]
    ends = [0, -1]
    return {
        "n": len(batches),
        "first and last": [[places[end], sums[end]] for end in ends],
        "all": sha256(json.dumps([places, sums]).encode()),
    }


def observe(name: str, work: Path) -> dict[str, Any]:
    case = CASES[name]
    overrides = [
        *case.files(work),
        f"data.batch_size={case.lanes}",
        "data.segment_len=16",
        "model.mem_len=16",
        "trainer.max_steps=60",
        *case.overrides,
    ]
    if "data=recall" not in overrides:
        overrides.append(f"data.cache_dir={work / 'cache'}")
    if not any(line.startswith("data=") for line in overrides):
        overrides.append("data=text")
    batches = adapter.Batches(*overrides)
    seen = {
        f"{split} {rank}": in_short(list(batches.of(split, rank=rank, processes=case.processes)))
        for split in ("train", "valid", "test")
        for rank in range(case.processes)
    }
    files = {path.name: sha256(path.read_bytes()) for path in sorted((work / "cache").glob("*/*.bin"))}
    vocabularies = {path.name: sha256(path.read_bytes()) for path in (work / "cache").glob("*/vocabulary.json")}
    return {"files": files | vocabularies, "batches": seen}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES]
)
def test_token_files_and_batches_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    recorded.assert_same(observe(name, tmp_path), recorded.read("corpora")[name], within=0)
