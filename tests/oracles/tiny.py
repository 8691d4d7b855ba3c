"""Runs at toy size, in process: their settings, and what they leave."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracles import adapter

HERE = Path(__file__).parent
SIZE = ["model.n_layer=2", "model.d_model=16", "model.mem_len=7"]
ATTENTION = ["model.n_head=2", "model.d_head=8", "model.d_inner=32"]
NETWORKS = {
    "txl": ["model=txl_tiny", *SIZE, *ATTENTION],
    "shaw": ["model=shaw", *SIZE, *ATTENTION],
    "vaswani": ["model=vaswani", *SIZE, *ATTENTION],
    "al_rfou": ["model=al_rfou", *SIZE, *ATTENTION],
    "transformer_rope": ["model=transformer_rope", *SIZE, *ATTENTION],
    "lstm": ["model=lstm", *SIZE],
    "gru": ["model=gru", *SIZE],
    "rnn": ["model=rnn", *SIZE],
}
"""The choice of `model=` and its size, for each kind of network."""

QUIET = [
    "logger=none",
    "callbacks.throughput.peak_flops=1e11",
    "callbacks.report.memory_tokens=0",
    "callbacks.sample.n_tokens=0",
    "trainer.enable_progress_bar=false",
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
]
WORDS = [
    *(
        "the cat sat on the mat",
        "a dog barked at it",
        "so it ran up a tree",
        "1 2 3, and then?",
        'nobody saw it: "why"',
    ),
    *("the old man and the sea", "who said (so)", "it's the 4,000th time", "x = y + 1", "of all the things"),
]


def text(lines: int, *, seed: int = 0) -> str:
    """Return made-up lines, the same on every machine."""
    state, made = seed + 1, []
    for _ in range(lines):
        state = state * 1103515245 % 2**31 + 12345
        made.append(WORDS[(state >> 16) % len(WORDS)] + " " + WORDS[(state >> 20) % len(WORDS)])
    return "\n".join(made) + "\n"


@dataclass(frozen=True)
class Run:
    """What a run of `train.py` left."""

    folder: Path
    status: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def values(self, name: str) -> dict[int, float | None]:
        return read_values(self.folder, name)


def read_values(folder: Path, name: str) -> dict[int, float | None]:
    """Read one metric of `metrics.jsonl` by step; a step that stands twice is a mistake."""
    values: dict[int, float | None] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["name"] == name:
            assert entry["step"] not in values
            values[entry["step"]] = entry["value"]
    return values


def settings(work: Path, *, network: str = "txl") -> list[str]:
    """Return a tiny run's settings; its text and corpora lie in `work`."""
    path = work / "text.txt"
    if not path.exists():
        path.write_text(text(300))
    return [
        *NETWORKS[network],
        "data=text",
        f"data.path={path}",
        f"data.cache_dir={work / 'corpora'}",
        "data.batch_size=4",
        "data.segment_len=5",
        *QUIET,
        "trainer.max_steps=20",
        "trainer.val_check_interval=10",
        "trainer.limit_val_batches=4",
        "trainer.limit_test_batches=2",
        "trainer.log_every_n_steps=5",
        "scheduler.warmup_steps=2",
        "optimizer.lr=0.01",
    ]


def train(work: Path, *overrides: str, network: str = "txl", name: str = "run", base: bool = True) -> Run:
    """Train a tiny run in this process, in the folder `name` of `work`."""
    folder = work / name
    arguments = [*(settings(work, network=network) if base else []), *overrides]
    if not any(argument.startswith("resume=") for argument in arguments):
        arguments.append(f"hydra.run.dir={folder}")
    return Run(folder, *adapter.command("train", *arguments))
