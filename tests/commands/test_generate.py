"""`generate.py` as a user calls it, with models at toy size."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import transformer_xl as txl
from tests.conftest import REPOSITORY
from tests.model.kinds import model_of
from tests.model.tiny import V
from transformer_xl.commands import cli
from transformer_xl.commands import generate as generate_command
from transformer_xl.commands.generate import generate
from transformer_xl.data.characters import CharTokenizer, SymbolTokenizer
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.errors import UserError
from transformer_xl.settings import parse

LETTERS = CharTokenizer([*"\nabcdefghijklmnopqrstuvwxyz .,!", "<eod>"])
SHIPPED = yaml.safe_load((REPOSITORY / "conf" / "generate.yaml").read_text())
Run = Callable[..., tuple[str, str]]


def saved(folder: Path, kind: str, vocabulary: Tokenizer | None, **changes: Any) -> Path:
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
    return saved(tmp_path_factory.mktemp("models") / "symbols", "gru", SymbolTokenizer(V))


@pytest.fixture(scope="module")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "nameless", "vaswani", None)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Give a function that does the job itself, without what Hydra costs."""
    shipped = {name: value for name, value in SHIPPED.items() if name not in ("defaults", "hydra")}

    def call(model: Path, **settings: Any) -> tuple[str, str]:
        composed = OmegaConf.create(shipped)
        for name, value in {"run": str(model), "sampling__n_tokens": 12, "device": "cpu", **settings}.items():
            OmegaConf.update(composed, name.replace("__", "."), value)
        capfd.readouterr()
        plain = OmegaConf.to_container(composed, resolve=True)
        generate(SimpleNamespace(settings=lambda cls: parse(cls, plain), given=frozenset()))  # type: ignore[arg-type]
        return capfd.readouterr()

    return call


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def give(text: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    return give


def test_a_prompt_is_continued_as_python_continues_it(letters: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Through the whole command line."""
    prompt = "once upon, a"
    arguments = [f"run={letters}", f"prompt={prompt}", "sampling.temperature=1.2", "sampling.n_tokens=12", "device=cpu"]
    status = cli.run("generate", generate, arguments)
    out, err = capfd.readouterr()
    expected = "".join(txl.generate(txl.load_model(letters), prompt, n_tokens=12, temperature=1.2))
    assert (status, out) == (0, expected.removesuffix("\n") + "\n")
    assert "letters: a transformer" in err
    assert "tokens" in err.splitlines()[-1]
    status = cli.run("generate", generate, [f"run={letters}", "prompt=Z"])
    out, err = capfd.readouterr()
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: prompt: the text holds 'Z'")
    assert "leave it out" in err


def test_samples_and_prompts_come_in_order_each_as_alone(letters: Path, run: Run, tmp_path: Path) -> None:
    prompts = ["a", "once upon a time there was", "b"]
    path = tmp_path / "prompts, all.txt"
    path.write_text("\n".join(prompts) + "\n")
    several = {"sampling__samples": 3, "sampling__batch_size": 4, "format": "jsonl"}
    warm = {"sampling__temperature": 1.5}
    out, _ = run(letters, prompt_file=str(path), prompt_unit="line", **several, **warm)
    made = [json.loads(line) for line in out.splitlines()]
    assert [(text["prompt"], text["sample"]) for text in made] == [(p, s) for p in (1, 2, 3) for s in (1, 2, 3)]
    assert len({text["text"] for text in made[:3]}) == 3
    assert {text["ended"] for text in made} <= {"n_tokens", "document"}
    alone = [run(letters, prompt=prompt, **warm)[0] for prompt in prompts]
    assert [text["text"].removesuffix("\n") + "\n" for text in made[::3]] == alone
    out, _ = run(letters, prompt="b", sampling__samples=2, **warm)
    texts = [text["text"].removesuffix("\n") for text in made[6:8]]
    assert out == f"--- sample 1 ---\n{texts[0]}\n--- sample 2 ---\n{texts[1]}\n"


def test_ids_go_in_and_out(nameless: Path, symbols: Path, run: Run, tmp_path: Path) -> None:
    out, _ = run(nameless, prompt="12 7 9", format="tokens", sampling__temperature=0)
    ids = list(map(int, out.split()))
    assert (len(ids), out) == (12, " ".join(map(str, ids)) + "\n")
    assert ids == list(txl.generate(txl.load_model(nameless), [12, 7, 9], n_tokens=12, temperature=0))
    assert len(run(symbols, prompt="12 7 9")[0].split()) == 12
    path = tmp_path / "ids"
    path.write_text("1 2\n3\n4 5\n")
    out, _ = run(nameless, prompt_file=str(path), prompt_unit="line", format="tokens")
    assert [len(line.split()) for line in out.splitlines()] == [12, 12, 12]


def test_a_file_is_one_prompt_but_for_its_last_line_end(letters: Path, run: Run, typed: Any) -> None:
    expected = run(letters, prompt="one\ntwo")[0]
    for contents in (b"one\ntwo", b"one\ntwo\n"):
        typed(contents)
        assert run(letters, prompt_file="-")[0] == expected
    typed(b"one\ntwo\n\n")
    assert run(letters, prompt_file="-")[0] == run(letters, prompt="one\ntwo\n")[0] != expected


def test_a_stop_text_may_be_a_line_end(letters: Path, run: Run) -> None:
    many = {"sampling__n_tokens": 100, "sampling__temperature": 3, "sampling__end_at_document": False}
    whole = run(letters, prompt="a", **many)[0]
    assert "\n" in whole[1:60]
    out, err = run(letters, prompt="a", **many, sampling__stop=["never", "\\n"])
    assert out == whole.partition("\n")[0] + "\n"
    assert "ended by sampling.stop" in err


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"sampling__temperature": -1, "sampling__top_p": 0}, "sampling.temperature is -1.*sampling.top_p is 0"),
    ({"sampling__stop": ""}, "sampling.stop is '', and must be a list or a text of at least 1 character"),
    ({"prompt": "a", "prompt_file": "b"}, "prompt and prompt_file"),
    ({"prompt_unit": "line"}, "prompt_unit is line without prompt_file"),
    ({"interactive": True, "sampling__samples": 2}, "interactive is true, and needs sampling.samples=1"),
    ({"prompt_file": "/nowhere/\u6c49"}, "prompt_file=/nowhere/\u6c49 cannot be read: No such file"),
]


@pytest.mark.parametrize(("settings", "words"), MISTAKES, ids=str)
def test_nonsense_is_refused_before_a_model_is_looked_for(settings: dict[str, Any], words: str, run: Run) -> None:
    with pytest.raises(UserError, match=words):
        run(Path("no model"), **settings)


def test_what_a_model_cannot_read_ends_in_one_sentence(
    letters: Path, symbols: Path, nameless: Path, run: Run, tmp_path: Path
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"a\xff")
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (letters, {"prompt": "12 32", "format": "tokens"}, "the text holds '32', and symbols are the numbers 0 to 31"),
        (letters, {"prompt": "12 x", "format": "tokens"}, "'x'"),
        (letters, {"prompt_file": str(binary)}, "binary: the text holds .*DCFF"),
        (symbols, {}, "^prompt is empty, and the symbol vocabulary .*give a prompt"),
        (symbols, {"prompt": "1", "memory__clamp_len": 3}, "memory.clamp_len is 3"),
        (nameless, {"prompt": "a"}, "'a'"),
    ]
    for model, settings, words in cases:
        with pytest.raises(UserError, match=words):
            run(model, **settings)


def test_turns_are_remembered(letters: Path, run: Run, typed: Any) -> None:
    greedy = {"sampling__temperature": 0, "sampling__n_tokens": 5}

    def talk(*lines: str) -> list[str]:
        typed("".join(f"{line}\n" for line in lines).encode())
        out, err = run(letters, interactive=True, **greedy)
        assert ">>> " not in err  # nobody types
        return out.removesuffix("\n").split("\n")

    def alone(prompt: str) -> str:
        return run(letters, prompt=prompt, **greedy)[0].removesuffix("\n")

    first = alone("once")
    assert "\n" not in first, "else the test would need another prompt"
    assert talk("once") == [first]
    assert talk("once", "more")[1:] == alone(f"once{first}\nmore").split("\n")
    assert talk("once", "") == [first, alone(f"once{first}")]


def test_a_line_that_cannot_be_said_is_refused_and_the_talk_goes_on(letters: Path, run: Run, typed: Any) -> None:
    typed(b"Zz\n/slash\nonce\n")
    out, err = run(letters, interactive=True)
    assert "error: the line: the text holds 'Z'" in err
    assert "error: the line: the text holds '/'" in err
    typed(b"once\n")
    assert out == run(letters, interactive=True)[0]


def test_ctrl_c_stops_an_answer_and_leaves_at_the_prompt(
    letters: Path, run: Run, typed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def interrupt(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(generate_command, "_say", interrupt)
    typed(b"once\nmore\n")
    _, err = run(letters, interactive=True, sampling__n_tokens=20, sampling__end_at_document=False)
    assert err.count("(stopped)") == 1
    assert said[3] == "\n" or said[2].endswith("\n")
    assert len(said) > 20

    def leave() -> bytes:
        raise KeyboardInterrupt

    pipe = SimpleNamespace(isatty=lambda: False, buffer=SimpleNamespace(readline=leave))
    monkeypatch.setattr(sys, "stdin", pipe)
    assert run(letters, interactive=True)[0] == ""
