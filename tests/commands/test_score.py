"""`score.py` as its users call it: files and pipes in, tables and JSON lines out."""

from __future__ import annotations

import io
import json
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer_xl as txl
from tests.model.kinds import config_of
from transformer_xl.commands import cli
from transformer_xl.commands.score import score
from transformer_xl.data.characters import ByteTokenizer, CharTokenizer, SymbolTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data.words import WordTokenizer
from transformer_xl.model.base import make_model

WORDS = WordTokenizer(["<eos>", "<unk>", "the", "cat", "sat", "."])
ENDS = ByteTokenizer(end_of_document=True)


def saved_model(
    folder: Path, vocabulary: Tokenizer | None, *, seed: int = 1, vocab_size: int = 20, mem_len: int = 7
) -> Path:
    torch.manual_seed(seed)
    model = make_model(
        config_of("transformer_xl", init_std=0.3, same_length=mem_len > 0, mem_len=mem_len),
        vocab_size=vocab_size if vocabulary is None else vocabulary.size,
    )
    model.vocabulary = vocabulary
    txl.save_model(model.eval(), folder)
    return folder


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("models") / "bytes", ENDS)


@pytest.fixture(scope="module")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("models") / "words", WORDS)


class Answer:
    """What a command printed."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=pytest.fail) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        header, *rows = [line.split("\t") for line in self.out.splitlines()]
        assert header == ["text", "nats", "bits_per_byte", "ppl", "tokens"]
        return rows


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Give a function that runs the command in this process."""

    def run(model: Path, *arguments: str) -> Answer:
        status = cli.run("score", score, [f"run={model}", "device=cpu", *arguments])
        return Answer(status, *capsys.readouterr())

    return run


def texts_in(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return f"texts={path}"


def test_each_line_is_scored_alone_whatever_their_order(byte_model: Path, tmp_path: Path, call: Call) -> None:
    lines = [b"the cat", b"", b"a", "d\u00e9j\u00e0 vu = 'x, y'".encode(), b"the cat sat on the mat"]
    found = call(byte_model, texts_in(tmp_path / "a, b.txt", b"\n".join(lines)))
    assert found.status == 0, found.err
    assert [row[0] for row in found.rows] == ["1", "2", "3", "4", "5"]
    assert [int(row[4]) for row in found.rows] == [len(line) for line in lines]
    assert found.rows[1] == ["2", "", "", "", "0"]
    model = txl.load_model(byte_model)
    for line, row in zip(lines, found.rows, strict=True):
        if line:
            tokens = torch.tensor([[ENDS.end_of_document, *line]])
            nats = float(txl.stream(model, batch_size=1).nll(tokens[:, :-1], tokens[:, 1:]).sum())
            assert [float(value) for value in row[1:4]] == pytest.approx(
                [nats, nats / math.log(2) / len(line), math.exp(nats / len(line))], rel=1e-5
            )
    turned = call(byte_model, texts_in(tmp_path / "turned", b"\n".join(lines[::-1]) + b"\n"))
    assert [row[1:] for row in turned.rows[::-1]] == [row[1:] for row in found.rows]
    assert "each text begins after <eod>" in found.err
    assert "5 texts, " in found.err
    for setting in ("context none", "segment_len 128", "mem_len 7", "same_length True", "precision 32-true"):
        assert setting in found.err


def test_tokens_and_texts_as_json(word_model: Path, tmp_path: Path, call: Call) -> None:
    file = texts_in(tmp_path / "texts", b"the cat\n\nthe dog sat\n")
    found = call(word_model, file, "format=jsonl", "unit=document").objects
    assert [sorted(text) for text in found] == [["bits_per_byte", "nats", "ppl", "text", "text_begins", "tokens"]] * 2
    assert [text["tokens"] for text in found] == [3, 4]
    assert [text["text_begins"] for text in found] == ["the cat", "the dog sat"]
    tokens = call(word_model, file, "unit=document", "tokens=true").objects
    assert [(token["text"], token["position"], token["token"], token["id"]) for token in tokens] == [
        *((1, place, WORDS.symbols[number], number) for place, number in enumerate([2, 3, 0])),
        *((2, place, WORDS.symbols[number], number) for place, number in enumerate([2, 1, 4, 0])),
    ]
    assert sum(token["nats"] for token in tokens if token["text"] == 2) == pytest.approx(found[1]["nats"], rel=1e-9)
    empty = call(word_model, texts_in(tmp_path / "texts", b"\n"), "format=jsonl")
    assert empty.objects == [
        {"text": 1, "nats": None, "bits_per_byte": None, "ppl": None, "tokens": 0, "text_begins": ""}
    ]
    assert "1 texts, 0 tokens\n" in empty.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["segment_len=0"], "segment_len is 0, and must be at least 1"),
        (["texts=none, here"], "texts=none, here is no file"),
        (["texts=."], "texts=. is no file"),
    ],
    ids=str,
)
def test_nonsense_is_refused_before_the_model_is_looked_for(arguments: list[str], words: str, call: Call) -> None:
    refused = call(Path("no/model"), "texts=-", *arguments)
    assert (refused.status, refused.out) == (2, "")
    assert words in refused.err


def test_what_a_model_cannot_do_is_refused_in_one_sentence(byte_model: Path, call: Call) -> None:
    for arguments, words in (
        (["memory.mem_len=0", "memory.same_length=true"], "memory.same_length is true with memory.mem_len 0"),
        (["context=carry", "memory.mem_len=0", "memory.same_length=false"], "context is carry and memory.mem_len is 0"),
    ):
        refused = call(byte_model, "texts=-", *arguments)
        assert (refused.status, refused.out) == (2, "")
        assert words in refused.err


def test_what_cannot_be_read_is_named_and_what_was_printed_stays(word_model: Path, tmp_path: Path, call: Call) -> None:
    file = texts_in(tmp_path / "texts", b"the cat\nthe \xff cat\nthe\n")
    broken = call(word_model, file, "context=carry")
    assert broken.status == 2
    assert [row[0] for row in broken.rows] == ["1"]
    assert f"error: {file}, line 2 has the byte 0xff, which is not UTF-8" in broken.err


def test_a_model_without_a_vocabulary_takes_ids(tmp_path: Path, call: Call) -> None:
    file = texts_in(tmp_path / "texts", b"12 7 9\n\n5\n")
    found = [
        call(saved_model(tmp_path / name, vocabulary), file).rows
        for name, vocabulary in (("none", None), ("symbols", SymbolTokenizer(20)))
    ]
    assert found[0] == found[1]
    assert [(row[2], row[4]) for row in found[0]] == [("", "2"), ("", "0"), ("", "0")]
    refused = call(tmp_path / "none", texts_in(tmp_path / "texts", b"words"))
    assert refused.status == 2
    assert refused.err.endswith("line 1: the text holds 'words', and symbols are the numbers 0 to 19\n")


def test_a_line_is_answered_before_the_next_is_there(
    byte_model: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reads, writes), (hears, says) = os.pipe(), os.pipe()
    answers: list[bytes] = []

    def talk() -> None:
        try:
            for line in (b"the cat\n", b"sat\n"):
                os.write(writes, line)
                assert select.select([hears], [], [], 60)[0]
                answers.append(os.read(hears, 999))
            os.write(writes, b"on")
        finally:
            os.close(writes)

    monkeypatch.setattr(sys, "stdin", os.fdopen(reads))
    monkeypatch.setattr(sys, "stdout", os.fdopen(says, "w"))
    talker = threading.Thread(target=talk)
    talker.start()
    assert call(byte_model, "texts=-", "format=jsonl").status == 0
    talker.join()
    assert [json.loads(answer)["tokens"] for answer in answers] == [7, 3]
    assert json.loads(os.read(hears, 999))["tokens"] == 2
    sys.stdout.close()
    os.close(hears)


def test_ctrl_c_ends_the_command_with_its_sums(byte_model: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(io.BytesIO):
        """Gives a line; when another is asked for, Ctrl-C is typed."""

        def readline(self, size: int | None = -1, /) -> bytes:
            data = super().readline(size)
            if not data:
                signal.raise_signal(signal.SIGINT)
            return data

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Waiting(b"the cat\n")))
    stopped = call(byte_model, "texts=-", "format=jsonl", "context=carry")
    assert stopped.status == 130
    assert [text["tokens"] for text in stopped.objects] == [8]
    assert "1 texts, 8 tokens" in stopped.err


def test_a_text_that_cannot_be_said_is_skipped_unless_that_is_to_end_the_command(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_model(tmp_path / "model", CharTokenizer([*"abc \n"]))
    alone = call(model, texts_in(tmp_path / "texts", b"abc\nc b a\n"), "format=jsonl").objects
    data = b"abc\n" + b"ab ca " * 5 + b"Z\nc b a\n"  # what is read of the second before its Z must not stay
    refused = call(model, texts_in(tmp_path / "texts", data), "unknown=refuse")
    assert (refused.status, len(refused.rows)) == (2, 1)
    assert refused.err.endswith("; with context=none unknown=skip it is left out\n")
    skipped = call(model, f"texts={tmp_path / 'texts'}", "format=jsonl")
    first, second, third = skipped.objects
    assert [first, third | {"text": 2}] == alone
    assert "holds 'Z'" in second.pop("error")
    assert second.pop("text_begins").startswith("ab ca ")
    assert second == {"text": 2, "nats": None, "bits_per_byte": None, "ppl": None, "tokens": None}
    assert "3 texts, 6 tokens, " in skipped.err
    assert ", 1 texts skipped" in skipped.err
    table = call(model, f"texts={tmp_path / 'texts'}")
    assert table.rows[1] == ["2", "", "", "", ""]
