"""Seeded texts, scores and evaluations of the committed run folders, as they were recorded."""

from __future__ import annotations

import contextlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import transformer_xl as txl
from tests.oracles import adapter, recorded, tiny

RUNS = tiny.HERE / "runs"
PROMPT = "the old man"
SCORED = "the cat sat on the mat\n\nwho said (so)?\na\nit's the 4,000th time of all the things\n"
NUMBERS = ["loss", "ppl", "bpc", "bpb", "tokens", "split", "checkpoint", "batch_size", "segment_len", "mem_len"]
NUMBERS += ["clamp_len", "same_length", "stride", "max_tokens", "precision", "loss_by_position", "loss_by_distance"]


def text_of(run: str, *, work: Path, prompt: str | None = PROMPT, **settings: Any) -> str:
    return "".join(txl.generate(txl.load_model(RUNS / run), prompt, **{"n_tokens": 60, **settings}))


def ids_of(run: str, *, work: Path, **settings: Any) -> list[int]:
    return [int(number) for number in txl.generate(txl.load_model(RUNS / run), [3, 1, 4, 1, 5], **settings)]


def printed(run: str, *arguments: str, work: Path, files: dict[str, str] | None = None) -> list[str]:
    """Return the lines that generate.py prints."""
    for name, content in (files or {}).items():
        (work / name).write_text(content)
    done = adapter.command(
        "generate", f"run={RUNS / run}", *(argument.replace("WORK", str(work)) for argument in arguments)
    )
    assert done.status == 0, done.stderr
    return done.stdout.splitlines()


def scored(run: str, *arguments: str, work: Path, text: str = SCORED) -> list[Any]:
    """Return what score.py prints: JSON, or the columns of its table."""
    (work / "texts.txt").write_text(text)
    done = adapter.command("score", f"run={RUNS / run}", f"texts={work / 'texts.txt'}", *arguments)
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    if lines[0].startswith("{"):
        return [json.loads(line) for line in lines]
    rows = [line.split("\t") for line in lines]
    return [rows[0], *([number(cell) for cell in row] for row in rows[1:])]


def number(cell: str) -> float | str:
    return float(cell) if cell.replace(".", "", 1).isdigit() else cell


def evaluated(runs: list[str], *arguments: str, work: Path) -> list[dict[str, Any]]:
    """Return the numbers that evaluate.py writes, of a text that is like the runs' own."""
    path = work / "text.txt"
    path.write_text(tiny.text(60, seed=5))
    folders = [shutil.copytree(RUNS / run, work / run) for run in runs]
    data = ["data=text", f"data.path={path}", f"data.cache_dir={work / 'corpora'}", "data.valid_fraction=0.2"]
    run = f"run=[{','.join(map(str, folders))}]" if len(folders) > 1 else f"run={folders[0]}"
    with contextlib.chdir(work):  # where several models are compared, it is written below outputs/
        done = adapter.command("evaluate", run, *data, "data.test_fraction=0.2", *arguments)
    assert done.status == 0, done.stderr
    (path,) = work.rglob("evaluation.json")
    (entry,) = json.loads(path.read_text())["evaluations"]
    return [{key: result[key] for key in NUMBERS if key in result} for result in entry["results"]]


DRAWINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.3, "seed": 2},
    "greedy": {"temperature": 0},
    "top_k": {"temperature": 1.2, "top_k": 5, "seed": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.7, "seed": 4},
    "min_p": {"temperature": 1.5, "min_p": 0.1, "seed": 5},
    "all": {"temperature": 1.3, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2, "seed": 6},
    "stop": {"temperature": 1.0, "stop": ["\n", "the"], "seed": 7},
    "long memory": {"temperature": 0.8, "mem_len": 30, "same_length": True, "segment_len": 4},
    "clamped": {"temperature": 0.8, "mem_len": 30, "clamp_len": 6},
    "begun": {"temperature": 0.8, "prompt": None},
}
FOLDERS = sorted(path.name for path in RUNS.iterdir() if path.is_dir())
CASES: dict[str, Any] = {
    **{f"text, {how}": partial(text_of, "txl", **settings) for how, settings in DRAWINGS.items()},
    **{f"text of {run}": partial(text_of, run, seed=2) for run in FOLDERS},
    **{f"ids of {run}": partial(ids_of, run, n_tokens=30, temperature=1.1, top_p=0.9) for run in FOLDERS},
    "generate.py": partial(printed, "txl", f"prompt={PROMPT}", "sampling.n_tokens=50", "echo=true", "seed=4"),
    "generate.py, samples": partial(
        printed, "txl", f"prompt={PROMPT}", "sampling.n_tokens=30", "sampling.samples=3", "sampling.batch_size=2"
    ),
    "generate.py, jsonl": partial(
        printed, "lstm", f"prompt={PROMPT}", "format=jsonl", "sampling.n_tokens=20", "sampling.samples=2"
    ),
    "generate.py, ids": partial(printed, "shaw", "prompt=1 2 3", "format=tokens", "sampling.n_tokens=20"),
    "generate.py, lines": partial(
        printed,
        "txl_published",
        "prompt_file=WORK/prompts.txt",
        "prompt_unit=line",
        "format=jsonl",
        "sampling.n_tokens=20",
        "sampling.top_k=10",
        "sampling.stop=[sea]",
        files={"prompts.txt": "the cat\nwho said\nit\n"},
    ),
    "generate.py, memory": partial(
        printed, "gru", "sampling.n_tokens=40", f"prompt={PROMPT}", "sampling.segment_len=3", "checkpoint=last"
    ),
    **{f"score.py of {run}": partial(scored, run, "format=jsonl", "unit=line") for run in ("txl", "lstm", "rnn")},
    "score.py, table": partial(scored, "txl"),
    "score.py, documents": partial(scored, "txl", "unit=document"),
    "score.py, tokens": partial(scored, "txl_published", "tokens=true"),
    "score.py, carried": partial(scored, "shaw", "context=carry", "format=jsonl", "segment_len=4"),
    "score.py, memory": partial(scored, "txl", "memory.mem_len=3", "memory.same_length=true", "segment_len=2"),
    "score.py, unknown": partial(scored, "txl", "unknown=skip", text="the cat\n\u4ed6\nthe dog\n"),
    "score.py, ids": partial(scored, "gru", "format=jsonl", text="caf\u00e9\nx\n"),
    "evaluate.py": partial(evaluated, ["txl"]),
    "evaluate.py, lengths": partial(evaluated, ["txl"], "split=valid", "eval.mem_len=[0,7,20]", "eval.batch_size=3"),
    "evaluate.py, same length": partial(
        evaluated, ["txl"], "eval.same_length=[true,false]", "eval.segment_len=3", "eval.clamp_len=5"
    ),
    "evaluate.py, windows": partial(evaluated, ["vaswani"], "eval.stride=2", "eval.mem_len=0", "eval.segment_len=6"),
    "evaluate.py, several": partial(evaluated, ["shaw", "transformer_rope", "al_rfou"], "eval.max_tokens=300"),
    "evaluate.py, recurrent": partial(evaluated, ["lstm"], "checkpoint=last", "eval.batch_size=1"),
    "evaluate.py, words": partial(evaluated, ["txl_published"], "split=train", "eval.precision=64-true"),
}


def observe(name: str, work: Path) -> Any:
    return CASES[name](work=work)


@pytest.mark.parametrize("name", CASES)
def test_what_is_made_and_scored_is_the_recorded(name: str, tmp_path: Path) -> None:
    recorded.assert_same(observe(name, tmp_path), recorded.read("inference")[name], within=1e-5)
