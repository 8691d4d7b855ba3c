"""What a person reads after the last step: scores, what memory gave, a sample, a picture, and what to type next."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from transformer_xl.commands.screen import shown
from transformer_xl.config import EvalConfig, LongEvalConfig
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.units import beside_scores, unit_of
from transformer_xl.inference.baselines import compressed_bits, unigram_score
from transformer_xl.inference.evaluate import context_of, evaluate
from transformer_xl.model.base import LanguageModel
from transformer_xl.scores import BITS_PER_BYTE, BITS_PER_CHARACTER, MUCH_UNKNOWN, PERPLEXITY, Score, in_words
from transformer_xl.settings import plain, replace
from transformer_xl.training import names
from transformer_xl.training.loggers import UPLOAD_WITH

_COMPRESSED_BYTES = 20_000_000
_SMOOTHED_SHARE = 0.02
_NARROW = {"bits per byte": "bits /\nbyte", "segment / memory": "segment /\nmemory"}  # 80 columns hold a unit more


class Row(NamedTuple):
    """A line of the final table."""

    label: str
    split: str
    score: Score
    lengths: EvalConfig | None
    tokens_per_second: float | None = None


def memory_rows(
    model: LanguageModel,
    data: Dataset,
    *,
    lengths: EvalConfig,
    long_eval: LongEvalConfig | None,
    max_tokens: int,
    autocast: Callable[[], AbstractContextManager[object]],
) -> list[Row]:
    """Score the beginning of the test split with no memory, the run's own, and four times as much.

    A recipe that says how its paper scores the model (`long_eval`) adds a row of that. Windows read without memory.
    """
    readings = {}
    factors = (0, 1, 4) if model.attends else (0, 1)
    for factor in factors if lengths.stride is None else (0,):
        changed = replace(lengths, mem_len=lengths.mem_len * factor)
        if changed.mem_len == 0:
            changed = replace(changed, same_length=False)  # without memory there is nothing to keep at one length
        readings[f"test, memory {changed.mem_len}"] = changed
    if long_eval is not None:
        readings["test, at the paper's lengths"] = replace(lengths, stride=None, **plain(long_eval))
    return [
        _read(label, model, data, lengths=changed, max_tokens=max_tokens, autocast=autocast)
        for label, changed in readings.items()
    ]


def zero_start_row(
    model: LanguageModel,
    data: Dataset,
    *,
    lengths: EvalConfig,
    limit: int | None,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Row:
    """Score the test split from a memory of zeros that are attended to.

    Args:
        model: in evaluation mode.
        data: whose test split.
        lengths: how to read.
        limit: segments or windows to read; None: all.
        autocast: gives the context of a forward pass.
    """
    return _read(
        "test, memory starts as zeros", model, data, lengths=lengths, limit=limit, zero_start=True, autocast=autocast
    )


def _read(
    label: str,
    model: LanguageModel,
    data: Dataset,
    *,
    lengths: EvalConfig,
    max_tokens: int | None = None,
    limit: int | None = None,
    zero_start: bool = False,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Row:
    source = data.lanes("test", batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
    began = time.perf_counter()
    score = evaluate(
        model,
        source,
        context_of(lengths),
        max_tokens=max_tokens,
        limit=limit,
        zero_start=zero_start,
        autocast=autocast,
    )
    return Row(label, "test", score, lengths, score.tokens / (time.perf_counter() - began))


def worded(score: Score, data: Dataset, *, split: str) -> str:
    """Say a score in nats and in the units of its corpus."""
    if not score.tokens:
        return "no predictions"
    figures = unit_of(data, split).shown(score.loss)
    said = [f"{score.loss:.4f} nats", *(f"{value:.4f} {in_words(name)}" for name, value in figures.items())]
    return f"loss {', '.join(said)}{beside_scores(data)}"


def print_table(console: Console, rows: list[Row], data: Dataset) -> None:
    """Print the scores in nats and in the units of their corpus."""
    if not rows:
        console.print("Nothing was scored: validation and test are empty, or turned off.")
        return
    splits = [row.split for row in rows]
    units = list(dict.fromkeys(name for split in splits for name in unit_of(data, split).shown(0.0)))
    *firsts, last = ["nats a token", *map(in_words, units)]
    table = Table(title=f"{data.name}{beside_scores(data)}: {', '.join(firsts)}, and {last}", title_justify="left")
    table.add_column("split")
    for heading in ("loss", *map(in_words, units), "segment / memory", "predictions"):
        narrow = _NARROW.get(heading, heading) if len(units) > 1 else heading
        table.add_column(narrow, justify="right", no_wrap=True)
    for row in rows:
        lengths = "" if row.lengths is None else _lengths(row.lengths)
        figures = unit_of(data, row.split).figures(row.score.loss)
        cells = [f"{value:.4f}" for value in (row.score.loss, *(figures[unit] for unit in units))]
        if not row.score.tokens:
            cells = ["no predictions", *[""] * len(units)]
        table.add_row(row.label, *cells, lengths, f"{row.score.tokens:,}")
    console.print(table)
    _print_unknown(console, data)
    memory = [row for row in rows if row.label.startswith("test, memory ") and row.label[-1].isdigit()]
    if len(memory) > 1 and _tokens_a_lane(memory[0]) < 2 * _segment_len(memory[0]):
        console.print(
            f"For the memory rows a lane read {_tokens_a_lane(memory[0]):.0f} tokens, too few to show what memory "
            "gives: a smaller eval.batch_size or a larger callbacks.report.memory_tokens would.",
            soft_wrap=True,
        )
    elif len(memory) > 1:
        gain = memory[0].score.loss - memory[1].score.loss
        console.print(
            f"The memory rows read the beginning of each lane of the test split with the same weights: memory gave "
            f"{gain:.4f} nats a token.",
            soft_wrap=True,
        )


def _print_unknown(console: Console, data: Dataset) -> None:
    """Say of scores on much that is unknown that they look better than they are."""
    tokens = data.counts()
    shares = {split: data.unknown.get(split, 0) / tokens[split] for split in ("valid", "test") if tokens[split]}
    if shares and max(shares.values()) > MUCH_UNKNOWN:
        shown = ", ".join(f"{split} {share:.1%}" for split, share in shares.items())
        console.print(
            f"Of the tokens, {shown} are unknown, which is easy to foresee: these scores, bits a byte too, compare "
            "only with those of the same vocabulary.",
            soft_wrap=True,
        )


def _tokens_a_lane(row: Row) -> float:
    assert row.lengths is not None
    return row.score.tokens / row.lengths.batch_size


def _segment_len(row: Row) -> int:
    assert row.lengths is not None
    return row.lengths.segment_len


def _lengths(lengths: EvalConfig) -> str:
    if lengths.stride is not None:
        return f"{lengths.segment_len}, stride {lengths.stride}"
    return f"{lengths.segment_len} / {lengths.mem_len}"


def unigram_row(data: Dataset) -> Row:
    """Score the whole test split by training's token frequencies."""
    return Row("test, unigram model", "test", unigram_score(data), None)


def print_compressors(console: Console, data: Dataset) -> None:
    """Say what gzip and xz make of the test text, and why that is no score."""
    unit = unit_of(data, "test")
    if unit.tokens_per_byte is None:
        return
    bits, tokens = compressed_bits(data, max_tokens=max(1, int(_COMPRESSED_BYTES * unit.tokens_per_byte)))
    name = BITS_PER_CHARACTER if unit.name == BITS_PER_CHARACTER else BITS_PER_BYTE  # nobody reads one in perplexity
    figures = ", ".join(f"{by} {unit.figures(value * math.log(2))[name]:.3f}" for by, value in bits.items())
    written = " as the vocabulary writes it, unknown words as <unk>" if unit.name == PERPLEXITY else ""
    console.print(
        f"Footnote: {figures} {in_words(name)} on the first {tokens:,} tokens of the test text{written}, "
        "which they saw themselves.",
        soft_wrap=True,
    )


def draw_losses(folder: Path, data: Dataset) -> Path:
    """Draw training and validation loss against the step into `loss.png`, in the unit of the vocabulary."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    train = logged_values(folder / "metrics.jsonl", names.TRAIN_LOSS)
    val = logged_values(folder / "metrics.jsonl", f"{names.VALIDATION}/{names.LOSS}")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    unit = unit_of(data, "train")
    values = [unit.of(loss) for _, loss in train]
    validated = [unit_of(data, "valid").of(loss) for _, loss in val]
    steps = [step for step, _ in train]
    axes.plot(steps, values, color="tab:blue", alpha=0.25, linewidth=0.8)
    axes.plot(steps, _smoothed(values), color="tab:blue", label="training (smoothed)")
    axes.plot([step for step, _ in val], validated, "o-", color="tab:orange", label="validation")
    tail = [*values[len(values) // 20 :], *validated]
    tail = [value for value in tail if math.isfinite(value)]
    if tail and max(tail) > 0:
        axes.set_ylim(min(tail) * 0.97, max(tail) * 1.03)
    axes.set(xlabel="optimizer step", ylabel=f"{in_words(unit.name)}{beside_scores(data)}")
    axes.grid(alpha=0.3)
    axes.legend()
    path = folder / "loss.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def logged_values(path: Path, name: str) -> list[tuple[int, float]]:
    """Read a figure by step from a `metrics.jsonl`; steps without a number are left out."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    return [
        (entry["step"], entry["value"]) for entry in entries if entry["name"] == name and entry["value"] is not None
    ]


def _smoothed(values: list[float]) -> list[float]:
    keep = 1 - 1 / max(1.0, len(values) * _SMOOTHED_SHARE)
    smoothed, average = [], values[0] if values else 0.0
    for value in values:
        average = keep * average + (1 - keep) * value
        smoothed.append(average)
    return smoothed


def next_commands(folder: Path, monitor: str, data: Dataset, *, trained: bool) -> list[str]:
    """Give the commands that a person would type next; there is no model to use where none was trained."""
    where = shlex.quote(shown(folder))
    _, _, upload = monitor.partition(UPLOAD_WITH)
    watch = upload or f"ls {where}"
    if not trained:
        return [watch]
    more, generate = "data=text data.path=YOUR_TEXT", f"python generate.py run={where}"
    if data.name == "tokens":
        more = f"data=tokens data.path=YOUR_IDS data.vocab_size={data.vocabulary.size}"
    elif not data.text_bytes:
        more = f"data={data.name}"
    if not data.text_bytes:
        generate += " format=tokens prompt=0"
    return [f"python evaluate.py run={where}", generate, watch, f"python train.py init_from={where} {more}"]
