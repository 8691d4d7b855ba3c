"""The table and picture of a benchmark of memories: what each costs, and how well tasks and text are predicted."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from transformer_xl.commands.tables import print_table
from transformer_xl.inference.plots import draw_by_distance
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model.streaming import stream
from transformer_xl.run_folder import config_of, shown
from transformer_xl.scores import ACCURACY, BITS_PER_BYTE, BITS_PER_CHARACTER, PERPLEXITY

if TYPE_CHECKING:
    from transformer_xl.commands.sweep import Job

_UNITS = (ACCURACY, PERPLEXITY, BITS_PER_CHARACTER, BITS_PER_BYTE)
_TOKENS = 512


def print_memories(jobs: Sequence[tuple[Sequence[str], Job]], folder: Path) -> None:
    """Print a line for each row: sizes, test scores over seeds, speeds; and draw scores by distance into `folder`.

    Args:
        jobs: those that have run, after their overrides.
        folder: of the picture.
    """
    of_rows: dict[str, list[tuple[str, float, Job]]] = {}  # task, score, job
    units: dict[str, str] = {}
    for overrides, job in sorted(jobs, key=lambda one: one[1].number):
        chosen, test = dict(line.split("=", 1) for line in overrides), job.summary.metrics.get("test", {})
        unit = next((name for name in _UNITS if test.get(name) is not None), None)
        if job.exit_code == 0 and unit is not None:
            units[chosen["task"]] = unit
            of_rows.setdefault(chosen["row"], []).append((chosen["task"], test[unit], job))
    cells, lines = [], {}
    for row, results in of_rows.items():
        configs = {task: config_of(job.folder) for task, _, job in results}
        model = make_model(next(iter(configs.values())).model, vocab_size=2).eval()
        scores = {one: _spread([score for task, score, _ in results if task == one]) for one in configs}
        sizes = [max(job.summary.parameters for *_, job in results), state_bytes(model)]
        speeds = [statistics.median(speed for *_, job in results for speed in _training_speeds(job)), _speed(model)]
        shown_scores = ["{:.3f} ± {:.3f}".format(*scores[task]) if task in scores else "-" for task in units]
        cells.append([row, *(f"{size:,}" for size in sizes), *shown_scores, *(f"{speed:,.0f}" for speed in speeds)])
        distances = {task: getattr(config.data, "distance", None) for task, config in configs.items()}
        lines[row] = {distance: scores[task] for task, distance in distances.items() if distance is not None}
    heads = [f"{task} ({unit})" for task, unit in units.items()]
    print_table(["row", "parameters", "state bytes", *heads, "training tokens/s", "session tokens/s"], cells)
    path = folder / "memories.png"
    draw_by_distance(lines, path, title="recall by distance: mean and deviation over seeds")
    print(f"Scores are of the test split, mean ± deviation over seeds. Picture: {shown(path)}")


def _spread(scores: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0


def _training_speeds(job: Job) -> list[float]:
    entries = map(json.loads, (job.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [entry["value"] for entry in entries if entry["name"] == "tokens_per_second"]


@torch.no_grad()
def state_bytes(model: LanguageModel) -> int:
    """Return the bytes of what a model remembers of one lane that has read much."""
    memory, piece = model.empty_memory(batch_size=1), torch.zeros(1, 8, dtype=torch.int64)
    for _ in range(_TOKENS // 8):
        memory = model(piece, memory).memory
    return sum(value.nbytes for value in memory.state_dict().values() if isinstance(value, torch.Tensor))


def _speed(model: LanguageModel) -> float:
    """Return the tokens per second of a session that reads one token at a time."""
    session, token = stream(model, batch_size=1), torch.zeros(1, 1, dtype=torch.int64)
    session.log_probs(token.expand(1, 8))
    began = time.perf_counter()
    for _ in range(_TOKENS):
        session.log_probs(token)
    return _TOKENS / (time.perf_counter() - began)
