"""`generate.py` as a user calls it, with models at toy size."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import transformer_xl as txl
from tests.model.kinds import model_of
from tests.model.tiny import V
from transformer_xl.commands import command_line, conversation
from transformer_xl.commands.generate import generate
from transformer_xl.data.tokenizer import CharVocabulary, SymbolVocabulary, Vocabulary

LETTERS = CharVocabulary([*"\nabcdefghijklmnopqrstuvwxyz .,!", "<eod>"])
LINES = "sampling.n_tokens=12", "device=cpu"


def saved(folder: Path, kind: str, vocabulary: Vocabulary | None, **changes: Any) -> Path:
    model = model_of(kind, **changes)
    model.vocabulary = vocabulary
    txl.save_model(model.float(), folder)
    return folder


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert LETTERS.size == V
    return saved(tmp_path_factory.mktemp("models") / "letters", "transformer_xl", LETTERS, mem_len=60)


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "symbols", "gru", SymbolVocabulary(V))


@pytest.fixture(scope="module")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "nameless", "vaswani", None)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(model: Path, *arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = command_line.run("generate", generate, [f"run={model}", *LINES, *arguments])
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def give(text: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    return give


def test_a_prompt_is_continued_as_python_continues_it(letters: Path, run: Any) -> None:
    status, out, err = run(letters, "prompt=once upon, a", "sampling.temperature=1.2")
    model = txl.load_model(letters)
    expected = "".join(txl.generate(model, "once upon, a", n_tokens=12, temperature=1.2))
    assert (status, out) == (0, expected.removesuffix("\n") + "\n")
    assert "letters: transformer_xl" in err
    assert "tokens" in err.splitlines()[-1]


def test_it_prints_each_piece_at_once(letters: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_xl.commands import closed_pipe

    pieces: list[str] = []
    monkeypatch.setattr(closed_pipe, "say", pieces.append)
    assert run(letters, "prompt=a", "sampling.end_at_document=false")[0] == 0
    assert len([piece for piece in pieces if piece]) >= 12


def test_samples_and_prompts_come_in_order_each_as_alone(letters: Path, run: Any, tmp_path: Path) -> None:
    prompts = ["a", "once upon a time there was", "b"]
    path = tmp_path / "prompts, all.txt"
    path.write_text("\n".join(prompts) + "\n")
    sampling = "sampling.temperature=1.5"
    status, out, _ = run(
        letters,
        f"prompt_file={path}",
        "prompt_unit=line",
        "sampling.samples=3",
        "sampling.batch_size=4",
        "format=jsonl",
        sampling,
    )
    made = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [(text["prompt"], text["sample"]) for text in made] == [(p, s) for p in range(3) for s in range(3)]
    assert len({text["text"] for text in made[:3]}) == 3
    assert {text["ended"] for text in made} <= {"n_tokens", "document"}
    alone = [run(letters, f"prompt={prompt}", sampling)[1] for prompt in prompts]
    assert [text["text"].removesuffix("\n") + "\n" for text in made[::3]] == alone
    status, out, _ = run(letters, "prompt=b", "sampling.samples=2", sampling)
    texts = [text["text"].removesuffix("\n") for text in made[6:8]]
    assert out == f"--- sample 1 ---\n{texts[0]}\n--- sample 2 ---\n{texts[1]}\n"


def test_ids_go_in_and_out(nameless: Path, symbols: Path, run: Any, tmp_path: Path) -> None:
    status, out, _ = run(nameless, "prompt=12 7 9", "format=tokens", "sampling.temperature=0")
    ids = list(map(int, out.split()))
    assert (status, len(ids), out) == (0, 12, " ".join(map(str, ids)) + "\n")
    assert ids == list(txl.generate(txl.load_model(nameless), [12, 7, 9], n_tokens=12, temperature=0, segment_len=128))
    status, out, _ = run(symbols, "prompt=12 7 9")
    assert (status, len(out.split())) == (0, 12)
    path = tmp_path / "ids"
    path.write_text("1 2\n3\n4 5\n")
    status, out, _ = run(nameless, f"prompt_file={path}", "prompt_unit=line", "format=tokens")
    assert (status, [len(line.split()) for line in out.splitlines()]) == (0, [12, 12, 12])


def test_a_file_is_one_prompt_but_for_its_last_line_end(letters: Path, run: Any, typed: Any) -> None:
    expected = run(letters, "prompt=one\ntwo")[1]
    for contents in (b"one\ntwo", b"one\ntwo\n"):
        typed(contents)
        assert run(letters, "prompt_file=-")[1] == expected
    typed(b"one\ntwo\n\n")
    assert run(letters, "prompt_file=-")[1] == run(letters, "prompt=one\ntwo\n")[1] != expected


def test_a_stop_text_may_be_a_line_end(letters: Path, run: Any) -> None:
    many = "sampling.n_tokens=300", "sampling.temperature=3", "sampling.end_at_document=false"
    whole = run(letters, "prompt=a", *many)[1]
    assert "\n" in whole[1:200]
    status, out, err = run(letters, "prompt=a", *many, 'sampling.stop=["never", "\\n"]')
    assert (status, out) == (0, whole.partition("\n")[0] + "\n")
    assert "ended by sampling.stop" in err


MISTAKES = {
    ("sampling.temperature=-1", "sampling.top_p=0"): ["sampling.temperature is -1", "sampling.top_p is 0"],
    ("sampling.samples=0",): ["sampling.samples is 0"],
    ("sampling.stop=['']",): ["sampling.stop"],
    ("prompt=a", "prompt_file=b"): ["prompt and prompt_file"],
    ("prompt_unit=line",): ["prompt_unit is line without prompt_file"],
    ("interactive=true", "sampling.samples=2"): ["sampling.samples is 2 with interactive=true"],
    ("interactive=true", "format=jsonl"): ["format is jsonl"],
    ("format=tokens", "sampling.stop=[a]"): ["sampling.stop", "format=tokens"],
    ("prompt_file=/nowhere/汉",): ["/nowhere/汉", "No such file"],
    ("memory.mem_len=-1",): ["memory.mem_len is -1"],
    ("seed=-1",): ["seed is -1"],
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_end_in_one_sentence_before_a_model_is_loaded(
    arguments: tuple[str, ...], run: Any, tmp_path: Path
) -> None:
    status, out, err = run(tmp_path / "no model", *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    for words in MISTAKES[arguments]:
        assert words in err


def test_what_a_model_cannot_read_ends_in_one_sentence(letters: Path, symbols: Path, nameless: Path, run: Any) -> None:
    cases = {
        (letters, "prompt=Z"): "prompt: the text holds 'Z'",
        (letters, "prompt=12 32", "format=tokens"): "the id 32, and must hold ids from 0 to 31",
        (letters, "prompt=12 x", "format=tokens"): "'x'",
        (letters, "memory.mem_len=0", "memory.same_length=true"): "same_length is true with mem_len 0",
        (symbols,): "give a prompt",
        (symbols, "prompt=1", "memory.clamp_len=3"): "clamp_len is 3",
        (nameless, "prompt=a"): "no vocabulary",
        (nameless, "format=tokens"): "give ids",
    }
    for arguments, words in cases.items():
        status, out, err = run(*arguments)
        assert (status, out, len(err.splitlines())) == (2, "", 1), err
        assert words in err


def test_turns_are_remembered_until_they_are_forgotten(letters: Path, run: Any, typed: Any) -> None:
    def talk(*lines: str) -> list[str]:
        typed("".join(f"{line}\n" for line in lines).encode())
        status, out, err = run(letters, "interactive=true", "sampling.temperature=0", "sampling.n_tokens=5")
        assert status == 0
        assert err.count(">>> ") == [*lines, "/quit"].index("/quit") + 1
        return out.removesuffix("\n").split("\n")

    def alone(prompt: str) -> str:
        return run(letters, f"prompt={prompt}", "sampling.temperature=0", "sampling.n_tokens=5")[1].removesuffix("\n")

    first = alone("once")
    assert "\n" not in first, "else the test would need another prompt"
    assert talk("once") == [first]
    assert talk("once", "more")[1:] == alone(f"once{first}\nmore").split("\n")
    assert talk("once", "/reset", "once") == [first, first]
    assert talk("once", "") == [first, alone(f"once{first}")]
    assert talk("once", "/quit", "more") == [first]


def test_a_line_that_cannot_be_said_is_refused_and_the_talk_goes_on(letters: Path, run: Any, typed: Any) -> None:
    typed(b"Zz\nonce\n")
    status, out, err = run(letters, "interactive=true")
    assert status == 0
    assert "error: the line: the text holds 'Z'" in err
    typed(b"once\n")
    assert out == run(letters, "interactive=true")[1]


def test_ctrl_c_stops_an_answer_and_leaves_at_the_prompt(
    letters: Path, run: Any, typed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def interrupt(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(conversation, "say", interrupt)
    typed(b"once\nmore\n")
    assert run(letters, "interactive=true", "sampling.n_tokens=20", "sampling.end_at_document=false")[0] == 0
    assert said[3] == "\n" or said[2].endswith("\n")
    assert len(said) > 20

    def leave() -> bytes:
        raise KeyboardInterrupt

    pipe = SimpleNamespace(isatty=lambda: False, buffer=SimpleNamespace(readline=leave))
    monkeypatch.setattr(sys, "stdin", pipe)
    assert run(letters, "interactive=true")[0] == 0


@pytest.fixture
def closed_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.CaptureFixture[str]]:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        yield capsys
        monkeypatch.undo()


@pytest.mark.parametrize("arguments", [("prompt=a",), ("prompt=a", "sampling.samples=2")], ids=str)
def test_when_nobody_reads_any_more_it_ends_without_a_word(
    letters: Path, arguments: tuple[str, ...], closed_output: pytest.CaptureFixture[str]
) -> None:
    assert command_line.run("generate", generate, [f"run={letters}", *LINES, *arguments]) == 0
    assert closed_output.readouterr().err.count("\n") == 1
