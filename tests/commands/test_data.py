"""`txl-data` as a person types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.commands.compose import configure
from transformer_xl.commands.data import run

SENTENCES = "".join(f"the {number} cats sat on the mat\n" for number in range(400))
TOKENS = ["data=tokens", "data.path=ids.jsonl", "data.vocab_size=9", "data.split=fraction", "data.batch_size=4"]
MISTAKES = {
    (): ["nothing is no command", "prepare|inspect"],
    ("inspekt", "data=text"): ["inspekt is no command", "prepare|inspect"],
    ("inspect", "-m", "data=stdlib"): ["-m", "sweep"],
    ("prepare", "data=recall"): ["data=recall", "nothing to prepare"],
    ("prepare", "data=text", "data.path=no/such"): ["no/such", "text file"],
    ("prepare", "data.batch_size=0"): ["data.batch_size is 0", "at least 1"],
    ("prepare", "data.cache_dir=/dev/null/cache"): ["data.cache_dir is '/dev/null/cache'", "can be written"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the commands of a test are typed in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, text: str) -> str:
    """Write a file of text, and give the setting that names it."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(text.encode())
    return f"data.path={name}"


def text_of(**splits: str) -> list[str]:
    """Write a folder of a text a split, and give the settings that read it."""
    for split, text in splits.items():
        written(f"splits/{split}.txt", text)
    return ["data=text", "data.path=splits", "data.batch_size=2"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Run a command that makes no mistake, and give what it printed."""
    assert run(arguments) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def row(output: str, label: str) -> list[str]:
    """Give the cells beside a label of a table."""
    (line,) = [line for line in output.splitlines() if re.match(rf"│ {re.escape(label)} +│", line)]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def warnings(output: str) -> list[str]:
    return [line.removeprefix("warning  ") for line in output.splitlines() if line.startswith("warning  ")]


def cache() -> Path:
    (found,) = [path for path in Path("outputs/corpora").iterdir() if path.is_dir()]
    return found


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.items(), ids=map(" ".join, MISTAKES))
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing(
    arguments: tuple[str, ...], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert all(word in captured.err for word in words), captured.err
    assert list(folder.iterdir()) == []


def test_what_is_prepared_is_what_train_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = "a, [b] = {汉}!.txt"  # which Hydra's grammar alone would refuse
    settings = ["data=text", written(path, SENTENCES), "data.tokenizer=char", "model=txl_small"]
    first = printed(capsys, "prepare", *settings)
    assert "into token files" in first
    assert f"folder   {cache().absolute()}\n" in first
    characters = len(SENTENCES.encode())
    shares = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) bytes of text", first)]
    assert len(shares) == 3
    assert sum(shares) == characters
    assert [line.split()[0] for line in first.splitlines()[-3:]] == ["train", "valid", "test"]

    assert "into token files" not in printed(capsys, "prepare", *settings)
    assert sorted(path.name for path in folder.iterdir()) == sorted([path, "outputs"])
    assert [path.name for path in Path("outputs").iterdir()] == ["corpora"]

    opened: list[tuple[str, list[str]]] = []

    def job(call: Call) -> None:
        from transformer_xl import build

        lines: list[str] = []
        config = configure(call)[0]
        data = build.open_data(config, vocabulary=None, extend=False, announce=lines.append)
        opened.append((str(data.folder), lines))  # type: ignore[attr-defined]

    assert cli.run("train", job, [*settings, f"hydra.run.dir={folder / 'run'}"]) == 0
    assert opened == [(str(cache().absolute()), [])]


def test_inspect_counts_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    documents = [[3] * 40, [1, 2] * 30, [5], [3, 7] * 20, [8] * 19]  # 160 ids, 60 in the longest document
    written("ids.jsonl", "".join(f"{json.dumps(ids)}\n" for ids in documents))
    shares = ["data.valid_fraction=0.25", "data.test_fraction=0.125"]
    output = printed(
        capsys, "inspect", *TOKENS, *shares, "data.segment_len=8", "data.end_of_document=false", "eval.batch_size=1"
    )
    assert "data     tokens\n" in output
    assert re.search(r"source   1 file, [\d,]+ bytes, sha256 [0-9a-f]{64}\n", output)
    assert "vocab    symbol, 9 symbols, not sorted by frequency\n" in output
    assert f"folder   {cache().absolute()}\n" in output
    assert sum(map(int, row(output, "tokens"))) == 160
    assert row(output, "longest document (tokens)")[0] == "60"
    assert "bytes of text" not in output
    counts = np.bincount(np.fromfile(cache() / "train.bin", np.uint8), minlength=9)
    assert row(output, "3") == ["3", str(counts[3]), f"{counts[3] / counts.sum():.2%}"]
    assert "│ 0 " not in output  # it does not occur
    assert warnings(output) == []


def test_bytes_a_token_and_the_share_of_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "inspect", "data=text", written("text.txt", SENTENCES), "data.tokenizer=word")
    tokens, text_bytes = (int(row(output, label)[0].replace(",", "")) for label in ("tokens", "bytes of text"))
    assert row(output, "bytes per token")[0] == f"{text_bytes / tokens:.3f}"
    assert row(output, "became <unk>")[0] == "0.00%"


def test_a_terminal_is_given_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\x1b[31mred\x07 \u202ebidi\x00\r\nsecond [bold]line[/bold]\n" + SENTENCES
    output = printed(capsys, "inspect", "data=text", written("text.txt", text), "data.tokenizer=char")
    assert "train    \\x1b[31mred\\x07 \\u202ebidi\\x00\\r\n         second [bold]line[/bold]\n" in output
    assert all(character.isprintable() or character == "\n" for character in output)


def test_a_multiple_of_what_is_shown_shows_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["data=text", "data.tokenizer=byte"]
    output = printed(capsys, "inspect", *settings, written("text.txt", "汉" * 9000))
    assert re.findall(r"^(?:train|valid|test) +(.+)$", output, re.MULTILINE) == [f"{'汉' * 200} ..."] * 3
    assert "\ufffd" not in output


def test_what_a_run_would_suffer_from_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    settings = text_of(train=SENTENCES, valid=SENTENCES[:1000], test=SENTENCES[1000:2000])

    def found(*more: str) -> list[str]:
        return warnings(printed(capsys, "inspect", *settings, *more))

    assert found() == []
    (training,) = found("data.batch_size=3000", "eval.batch_size=1")
    assert training.startswith("too few tokens (train 11,")
    (both,) = found("eval.batch_size=2", "eval.segment_len=501")
    assert "(valid 1,001, test 1,001)" in both


def started(*arguments: str, **options: object) -> subprocess.Popen[str]:
    code = "import sys; from transformer_xl.commands.data import main; sys.argv[0] = 'txl-data'; main()"
    pipes: Mapping[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_explains_both_commands_without_torch(flag: str) -> None:
    code = (
        "import sys; from transformer_xl.commands.data import run\n"
        f"print(run(['{flag}']), {{'torch'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "txl-data prepare data=" in done.stdout
    assert "txl-data inspect data=" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 set()"


def test_a_corpus_is_inspected_without_lightning() -> None:
    settings = ["data=text", written("text.txt", SENTENCES), "data.batch_size=2"]
    code = (
        "import sys; from transformer_xl.commands.data import run\n"
        f"run(['inspect', *{settings}]); print({{'lightning'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_reader_that_has_seen_enough_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["data=text", written("text.txt", SENTENCES), "data.batch_size=2"]
    printed(capsys, "prepare", *settings)
    process = started("inspect", *settings)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0
