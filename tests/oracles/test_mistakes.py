"""The likeliest mistakes: each ends before any long work, in one line that names the setting or file, with status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.oracles.runs_support import call, made_up_text, without

MISTAKES: list[tuple[str, list[str], list[str]]] = [
    # misspelt settings, groups and choices
    ("train", ["model.mem_lne=5"], ["model.mem_lne", "model.mem_len"]),
    ("train", ["data.batchsize=4"], ["data.batchsize", "data.batch_size"]),
    ("train", ["optimizer.learning_rate=0.1"], ["optimizer.learning_rate"]),
    ("train", ["model=txl_tny"], ["txl_tny", "txl_tiny"]),
    ("train", ["data=wikitext"], ["wikitext"]),
    ("train", ["modle=txl_tiny"], ["modle"]),
    ("train", ["optimizer=adamx"], ["adamx", "adam"]),
    ("train", ["seeds=3"], ["seeds"]),
    ("train", ["trainer.max_step=3"], ["trainer.max_step"]),
    ("train", ["mem_len=5"], [".mem_len"]),
    ("train", ["model.mem_len 5"], ["model.mem_len"]),
    # values of a wrong kind or out of bounds
    ("train", ["model.mem_len=long"], ["model.mem_len", "long"]),
    ("train", ["model.n_layer=0"], ["model.n_layer"]),
    ("train", ["model.n_layer=2.5"], ["model.n_layer", "2.5"]),
    ("train", ["model.dropout=1.5"], ["model.dropout"]),
    ("train", ["model.same_length=maybe"], ["model.same_length"]),
    ("train", ["optimizer.lr=-1"], ["optimizer.lr"]),
    ("train", ["data.batch_size=0"], ["data.batch_size"]),
    ("train", ["data.segment_len=-5"], ["data.segment_len"]),
    ("train", ["data.lane_chunks=9"], ["data.lane_chunks"]),
    ("train", ["trainer.precision=float16"], ["trainer.precision"]),
    ("train", ["model.cutoffs=[900,300]", "data.tokenizer=word"], ["model.cutoffs"]),
    ("train", ["data.tokenizer=letters"], ["data.tokenizer", "letters"]),
    ("train", ["trainer.devices=0"], ["trainer.devices"]),
    ("train", ["seed=-1"], ["seed"]),
    # texts
    ("train", ["data.path=nowhere.txt"], ["data.path", "nowhere.txt"]),
    ("train", ["data.path=null"], ["data.path"]),
    ("train", ["data.path=empty.txt"], ["empty.txt"]),
    ("train", ["data.path=short.txt"], ["data.batch_size"]),
    ("train", ["data.path=latin.txt", "data.tokenizer=char"], ["latin.txt", "data.encoding"]),
    ("train", ["data.path=broken.jsonl"], ["broken.jsonl", "line 2"]),
    # which run or model is meant
    ("train", ["resume=nowhere"], ["resume", "nowhere"]),
    ("train", ["resume=texts"], ["texts", "config.yaml"]),
    ("train", ["resume=auto"], ["resume", "name"]),
    ("train", ["init_from=nowhere"], ["nowhere"]),
    ("train", ["hydra.run.dir={run}"], ["{run}"]),
    ("train", ["resume={run}", "optimizer.lr=0.5"], ["optimizer.lr"]),
    ("train", ["resume={run}", "data.batch_size=3"], ["data.batch_size"]),
    ("evaluate", [], ["run"]),
    ("evaluate", ["run=nowhere"], ["nowhere"]),
    ("evaluate", ["run=texts"], ["texts"]),
    ("evaluate", ["run={run}", "split=dev"], ["split", "dev"]),
    ("evaluate", ["run={run}", "checkpoint=worst"], ["checkpoint", "worst"]),
    ("evaluate", ["run={run}", "eval.memlen=5"], ["eval.memlen", "eval.mem_len"]),
    ("evaluate", ["run={run}", "eval.mem_len=-5"], ["eval.mem_len"]),
    ("evaluate", ["-m", "run={run}", "eval.mem_len=0,5"], ["multirun"]),
    ("score", ["run={run}", "texts=nowhere.txt"], ["texts", "nowhere.txt"]),
    ("score", ["run={run}"], ["texts"]),
    ("generate", ["run={run}", "sampling.top_p=2"], ["sampling.top_p"]),
    ("generate", ["run={run}", "sampling.ntokens=2"], ["sampling.ntokens", "sampling.n_tokens"]),
    ("generate", ["run={run}", "prompt_file=nowhere.txt"], ["prompt_file", "nowhere.txt"]),
    ("data", ["prepare", "data=text", "data.path=nowhere.txt"], ["data.path", "nowhere.txt"]),
    ("data", ["prepare", "data=txt"], ["txt", "text"]),
    ("data", ["inspct", "data=text"], ["inspct"]),
    ("convert", ["nowhere", "there"], ["nowhere"]),
    ("convert", [], []),
]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    Path("empty.txt").touch()
    Path("short.txt").write_text("short\n")
    Path("latin.txt").write_bytes(made_up_text(9000).encode() + "wäßer\n".encode("latin-1"))
    records = [json.dumps({"text": "a text of words"})] * 300
    Path("broken.jsonl").write_text("\n".join([records[0], "{broken", *records]) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "given", "words"), MISTAKES, ids=[f"{m[0]} {' '.join(m[1])}"[:60] for m in MISTAKES]
)
def test_a_mistake_ends_in_one_line_that_names_it(
    base: list[str], trained: Path, texts: Path, command: str, given: list[str], words: list[str]
) -> None:
    given = [argument.replace("{run}", str(trained)) for argument in given]
    words = [word.replace("{run}", trained.name) for word in words]
    arguments = given
    if command == "train" and not given[0].startswith("resume=/"):
        chosen = [] if given[0].startswith(("hydra.run.dir", "resume=")) else ["hydra.run.dir=run"]
        arguments = [*without(base, *(argument.partition("=")[0] for argument in given)), *chosen, *given]
    before = sorted(path.name for path in texts.iterdir())
    result = call(command, *arguments)
    assert result.status == 2, result.printed
    assert "Traceback" not in result.printed
    lines = [line for line in result.err.strip().splitlines() if not line.startswith(("usage:", " "))]
    assert len(lines) == 1, result.err
    assert all(word in lines[0] for word in words), lines[0]
    after = [path for path in texts.iterdir() if path.name not in before]
    assert not any((path / "config.yaml").exists() for path in after)
