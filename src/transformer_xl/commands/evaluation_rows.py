"""The rows of an evaluation, and what is printed and drawn of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.commands.models import NamedModel
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import Dataset, LaneSource, beside_scores
from transformer_xl.errors import first_line
from transformer_xl.inference import evaluate, plots
from transformer_xl.run_folder import slug
from transformer_xl.scores import ACCURACY, BITS_PER_BYTE, LOSS, PERPLEXITY, Unit, in_words

_SETTINGS = ("checkpoint", "batch_size", "segment_len", "mem_len", "clamp_len", "same_length", "stride", "precision")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model, read in one way; `record` is what `evaluation.json` says of it."""

    record: dict[str, Any]
    named: NamedModel
    attends: bool
    data: Dataset
    source: LaneSource
    reading: EvalConfig
    unit: Unit
    losses: evaluate.SplitLosses
    attention: evaluate.AttentionByDistance | None

    @property
    def loss(self) -> float:
        """In nats per token."""
        return self.losses.score.loss

    @property
    def mem_len(self) -> int:
        """How many tokens from before a segment are looked at; 0 too where a memory has no length."""
        return self.reading.mem_len if self.reading.stride is None and self.attends else 0

    @property
    def settings(self) -> dict[str, str]:
        """All that the score depends on, by name."""
        split, record = self.record["split"], self.record
        values = {name: "null" if record[name] is None else str(record[name]).lower() for name in _SETTINGS}
        if not self.attends and self.reading.mem_len:
            del values["mem_len"]  # but for 0, any lets the state go on
        return {
            "model": self.named.name,
            "data": f"{self.data.name}{beside_scores(self.data)}",
            "split": f"{split} split of {self.data.counts()[split]:,} tokens",
            **{name: f"{name}={value}" for name, value in values.items()},
            "predictions": f"{record['tokens']:,} predictions",
        }

    def difference(self, other: Row) -> NDArray[np.floating[Any]] | None:
        """Return the losses less those of another row, token by token; None where they did not read the same tokens.

        Their mean has a far smaller error than either loss: what makes a token hard is the same for both.
        """
        mine, theirs = self.losses.losses, other.losses.losses
        is_paired = self is not other and mine.shape == theirs.shape and _is_shared([self, other], *_TEXT)
        return mine.astype(np.float64) - theirs if is_paired else None


_TEXT = ("data_checksum", "split", "vocabulary_hash")


def _is_shared(rows: Sequence[Row], *keys: str) -> bool:
    return len({tuple(row.record[key] for key in keys) for row in rows}) == 1


def labelled(rows: Sequence[Row], *, without: str = "") -> tuple[str, list[str]]:
    """Return the settings that all rows share, for a title, and those that tell each row from the others."""
    settings = [{name: value for name, value in row.settings.items() if name != without} for row in rows]
    names = list(dict.fromkeys(name for of_row in settings for name in of_row))
    shared = [name for name in names if len({of_row.get(name) for of_row in settings}) == 1]
    labels = [", ".join(value for name, value in of_row.items() if name not in shared) for of_row in settings]
    return ", ".join(settings[0][name] for name in shared), [label or rows[0].named.name for label in labels]


def print_rows(rows: Sequence[Row]) -> None:
    """Print a row for each score, and what can be learnt from them."""
    title, labels = labelled(rows)
    units = list(rows[0].unit.shown(0.0))
    if not _is_shared(rows, "vocabulary_hash"):
        units = [BITS_PER_BYTE] if all(row.unit.tokens_per_byte is not None for row in rows) else []
    shown = [LOSS, *units, *([ACCURACY] if any(row.data.answers for row in rows) else [])]
    cells = []
    for label, row in zip(labels, rows, strict=True):
        figures = [row.unit.scored(row.losses.score).get(name, math.nan) for name in shown]
        cells.append([printable(label), *("-" if math.isnan(figure) else f"{figure:.4f}" for figure in figures)])
    print(printable(title))
    print_table(["", *map(in_words, shown)], cells, boxed=True)
    for line in _in_words(rows, comparable=units):
        print(line)


def _in_words(rows: Sequence[Row], *, comparable: Sequence[str]) -> Iterator[str]:
    if not _is_shared(rows, "data_checksum"):
        yield "The models have read different texts: these numbers do not tell which of them is better."
    if not _is_shared(rows, "vocabulary_hash"):
        units = " and ".join(map(in_words, comparable)) or "nothing"
        yield f"The vocabularies differ: {units} can be compared, the loss cannot."
    is_one = len({row.named.path for row in rows}) == 1 and rows[0].named.settings and rows[0].attends
    trained = rows[0].named.settings["model"]["mem_len"] if is_one else 0
    if min(row.mem_len for row in rows) < trained <= max(row.mem_len for row in rows):
        yield (
            f"Rows with less than the memory of {trained:,} it was trained with show the model cut off from what it "
            "relies on; what memory is worth is told by a model trained without it (model.mem_len=0)."
        )


def _paired_error(row: Row, other: Row) -> float:
    """Return the standard error of the mean difference between two rows' losses, token by token; NaN: there is none."""
    difference = row.difference(other)
    known = np.array([]) if difference is None else difference[~np.isnan(difference)]
    return float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan


# ---- pictures


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Draw where the losses lie, a line for each row; what cannot be drawn is said, and fails nothing."""
    title, labels = labelled(rows)
    by_place = [evaluate.position_classes(row.source, evaluate.context_of(row.reading)) for row in rows]
    by_distance = [evaluate.distance_classes(row.source) for row in rows]
    far = "tokens read since the document (without borders: the lane) began"
    drawings = {
        "loss_by_position": partial(_draw_losses, rows, by_place, axis="place in the segment"),
        "loss_by_distance": partial(_draw_losses, rows, by_distance, axis=far),
    }
    if len({row.mem_len for row in rows if row.attends}) > 1:
        drawings["score_by_memory"] = partial(_draw_by_memory, rows)
    for row, label in zip(rows, labels, strict=True):
        if row.attention is not None:
            segment_len = row.reading.segment_len
            drawings[f"attention-{slug(label)}"] = partial(plots.draw_attention, row.attention, segment_len=segment_len)
    for name, drawing in drawings.items():
        try:
            drawing(path=folder / f"{name}.png", title=title)
        except Exception as error:  # a picture is decoration: the numbers are on disk
            print(f"note: {folder / name}.png cannot be drawn: {first_line(error)}", file=sys.stderr)


def _scales(rows: Sequence[Row]) -> tuple[str, list[float]]:
    """Return the unit in which rows are drawn, one linear in their losses, and what these are multiplied by."""
    name = rows[0].unit.name if _is_shared(rows, "vocabulary_hash") else BITS_PER_BYTE
    if name == PERPLEXITY or (name == BITS_PER_BYTE and any(row.unit.tokens_per_byte is None for row in rows)):
        return "nats per token", [1.0] * len(rows)
    return in_words(name), [row.unit.figures(1.0)[name] for row in rows]


def _draw_losses(
    rows: Sequence[Row], classes: Sequence[evaluate.Classes], *, path: Path, axis: str, title: str
) -> None:
    unit, scales = _scales(rows)
    lines = []
    for label, row, scale, of in zip(labelled(rows)[1], rows, scales, classes, strict=True):
        difference = row.difference(rows[0])
        means = None if difference is None else evaluate.mean_by_class(difference * scale, of)
        lines.append(plots.Line(label, evaluate.mean_by_class(row.losses.losses * scale, of), means))
    plots.draw_losses(lines, path, axis=axis, unit=unit, title=title)


def _draw_by_memory(rows: Sequence[Row], *, path: Path, title: str) -> None:
    """Draw a line for each model, and for each way to read it other than the length of memory."""
    unit, scales = _scales(rows)
    groups: dict[str, list[tuple[Row, float]]] = {}
    for label, row, scale in zip(labelled(rows, without="mem_len")[1], rows, scales, strict=True):
        groups.setdefault(label, []).append((row, scale))
    lines = []
    for label, group in groups.items():
        ordered = sorted(group, key=lambda one: one[0].mem_len)
        longest = ordered[-1][0]
        memory = [row.mem_len for row, _ in ordered]
        if not longest.attends or longest.reading.stride is not None:  # a score without a length of memory
            ordered, memory = ordered * 2, [0, max(row.mem_len for row in rows)]
        errors = np.array([_paired_error(row, longest) * scale for row, scale in ordered])
        scores = np.array([row.loss * scale for row, scale in ordered])
        means = evaluate.ClassMeans(np.array(memory), np.ones(len(memory), np.int64), scores, errors)
        lines.append(plots.Line(label, means))
    axis = "memory (tokens before the segment)"
    plots.draw_losses(lines, path, axis=axis, unit=unit, title=f"{title}; differences to the longest memory")
