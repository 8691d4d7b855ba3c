"""What `evaluate.py` does: score models, keep the numbers, then print, draw, and tell W&B."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from transformer_xl.commands import tables
from transformer_xl.commands.evaluation_rows import Row, measure, open_subject, readings_of, tell
from transformer_xl.commands.models import NamedModel, find_models
from transformer_xl.commands.tables import printable
from transformer_xl.config import WandbConfig
from transformer_xl.data.lanes import beside_scores
from transformer_xl.errors import UserError, atomic_write, first_line, locked
from transformer_xl.inference import plots
from transformer_xl.inference.evaluate import mean_by_class
from transformer_xl.inference_config import EvaluateConfig
from transformer_xl.run_folder import (
    Identity,
    SavedConfig,
    Summary,
    claim,
    read_config,
    read_identity,
    refuse_if_in_use,
    slug,
)
from transformer_xl.scores import BITS_PER_BYTE, MUCH_UNKNOWN, Unit, in_words
from transformer_xl.training import metrics
from transformer_xl.training import wandb as monitors

RECORD = "evaluation.json"
_FORMAT = 1
_EQUAL_NATS = 1e-4
"""Losses nearer to each other than this are printed alike."""


def evaluate_models(config: EvaluateConfig, *, command: Sequence[str], given: frozenset[str]) -> float:
    """Evaluate the models that `run=` names; return the loss of the first one's first row, in nats.

    Args:
        config: of the command.
        command: the arguments as typed.
        given: the keys that it names.
    """
    models = find_models(config.run, checkpoint=config.checkpoint)
    one = models[0].folder if len(models) == 1 else None
    if one is not None:
        read_record(one / RECORD)
    for model in models if config.wandb else ():
        check_can_publish(model)
    if one is None:  # what cannot be read is said before anything is
        for model in models:
            readings_of(open_subject(model, config, given=given), config)
    moment = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    place = (one / "evaluation", f"{moment}-{config.split}") if one else (Path("outputs"), f"evaluation-{moment}")
    rows: list[Row] = []
    with _folder_of_pictures(*place) as folder:
        try:
            for model in models:
                rows.extend(_measure_all(model, config, given=given))  # one by one: those before a failure are kept
        finally:
            if rows:
                record = _add_record(one or folder, rows, command=command, pictures=folder)
        heading = " or ".join(dict.fromkeys(f"{row.data.name}{beside_scores(row.data)}" for row in rows))
        _print_all(rows, heading=heading)
        _print(f"Numbers: {record}; pictures: {folder}/")
        name = f"{models[0].name}, " if one else ""
        draw(rows, folder, title=f"{name}{heading}, {config.split} split")
    for model in models if config.wandb else ():
        _print(f"{model.name}: {publish(next(row for row in rows if row.model == model))}")
    return rows[0].score.loss


def _measure_all(model: NamedModel, config: EvaluateConfig, *, given: frozenset[str]) -> Iterator[Row]:
    """Read one model in every way; attention is looked at in the one with the longest memory."""
    subject = open_subject(model, config, given=given)
    counts = subject.data.counts()
    tell(
        f"{model.name}: {subject.loaded.described}; {subject.data.name}{beside_scores(subject.data)}, {config.split} "
        f"split, {counts[config.split]:,} of {sum(counts.values()):,} tokens"
    )
    readings = readings_of(subject, config)
    looked_at = max(readings, key=lambda one: one.context.mem_len or 0) if config.eval.is_varied else readings[0]
    for reading in readings:
        attention = config.eval.attention and reading is looked_at
        yield measure(subject, reading, config, attention=attention)


@contextmanager
def _folder_of_pictures(root: Path, name: str) -> Iterator[Path]:
    """Make a folder that no other command has; it goes again where nothing was written into it."""
    folder = claim(root, name)
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def _add_record(folder: Path, rows: Sequence[Row], *, command: Sequence[str], pictures: Path) -> Path:
    """Add what was measured to a folder's `evaluation.json`, whole or not at all."""
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "pictures": str(pictures),
        "results": [row.record for row in rows],
    }
    path = folder / RECORD
    waiting = f"waiting for another process, which writes {path}"
    with locked(folder / f".{RECORD}.lock", tell, waiting):
        content = {"format": _FORMAT, "evaluations": [*read_record(path), entry]}
        with atomic_write(path) as file:
            file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
    return path


def read_record(path: Path) -> list[Any]:
    """Return the evaluations of an `evaluation.json` that may not be there yet.

    Raises:
        UserError: a file of this name is none of this program's.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and content.get("format") == _FORMAT and isinstance(content.get("evaluations"), list):
        evaluations: list[Any] = content["evaluations"]
        return evaluations
    raise UserError(f"{path} is damaged, or was not written by this program: move it away")


def _print(line: str) -> None:
    Console(highlight=False).print(line, soft_wrap=True, markup=False)


def _print_all(rows: Sequence[Row], *, heading: str) -> None:
    print_table(rows, heading=heading)
    for line in (*comparability(rows), *_in_words(rows)):
        _print(line)


def print_table(rows: Sequence[Row], *, heading: str) -> None:
    """Print a row for each score; what is the same in all stands in the title, so that 80 columns hold the rest.

    Args:
        rows: at least one, of one split.
        heading: names the corpus.
    """
    one_model = len({row.model.path for row in rows}) == 1
    columns: dict[str, list[str]] = {"reading": [row.reading.label for row in rows]}
    if not one_model:
        columns = {"model": [f"{row.model.name}\n{row.network.label}" for row in rows]}
        columns["params"] = [_short(row.parameters) for row in rows]
    columns["loss"] = [_figure(row.score.loss) for row in rows]
    for name in _units(rows):
        columns[in_words(name)] = [_figure(row.unit.figures(row.score.loss)[name]) for row in rows]
    columns["segment / memory"] = [_lengths(row) for row in rows]
    columns["clamp"] = ["off" if (clamp := row.reading.context.clamp_len) is None else f"{clamp:,}" for row in rows]
    columns["same length"] = ["yes" if row.reading.context.same_length else "no" for row in rows]
    columns["predictions"] = [f"{row.score.tokens:,}" for row in rows]
    counts = rows[0].data.counts()
    title = [rows[0].model.name] if one_model else []
    title += [heading, f"{rows[0].split} split of {counts[rows[0].split]:,} tokens"]
    checkpoints = " or ".join(dict.fromkeys(row.model.checkpoint for row in rows))
    title += [f"checkpoint {checkpoints}"] if checkpoints else []
    for name in ("clamp", "same length", "predictions", *(["segment / memory"] if not one_model else [])):
        if len(set(columns[name])) == 1:
            value = columns.pop(name)[0]
            title += [f"{value} predictions" if name == "predictions" else f"{name} {value}"]
    hidden = {"clamp off", "same length no"}  # what most models have need not be said
    shown = printable(", ".join(part for part in title if part not in hidden))
    rows_of_cells = zip(*columns.values(), strict=True)
    cells = [["\n".join(map(printable, cell.split("\n"))) for cell in row] for row in rows_of_cells]
    tables.print_table(list(columns), cells, title=shown, boxed=True)


def _units(rows: Sequence[Row]) -> list[str]:
    """Return the names of the figures in which all rows can be read."""
    if len({row.vocabulary_hash for row in rows}) == 1:
        return list(rows[0].unit.shown(0.0))
    return [BITS_PER_BYTE] if all(row.unit.tokens_per_byte is not None for row in rows) else []


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def _lengths(row: Row) -> str:
    context = row.reading.context
    beside = f", stride {context.stride}" if context.stride else f" / {row.memory}"
    return f"{context.segment_len}{beside}"


def _short(count: int) -> str:
    """Write a count of parameters in millions, small ones in full."""
    return f"{count / 1e6:,.1f}M" if count >= 1_000_000 else f"{count:,}"


def comparability(rows: Sequence[Row]) -> list[str]:
    """Return what keeps scores from being compared, a sentence each; nothing where nothing does."""
    notes = []
    if len({row.text for row in rows}) > 1:
        notes.append(
            "The models have read different texts (their splits or checksums differ), so these numbers do not tell "
            "which of them is better."
        )
    if len({row.vocabulary_hash for row in rows}) > 1:
        all_text = all(row.unit.tokens_per_byte is not None for row in rows)
        rest = "bits per byte do." if all_text else "nothing does, for not all of them read text."
        notes.append(f"The vocabularies differ, so losses per token do not compare: {rest}")
    elif len({row.score.tokens for row in rows}) > 1 and not notes:
        counts = [row.score.tokens for row in rows]
        notes.append(f"The rows count different predictions, from {min(counts):,} to {max(counts):,}.")
    unknown = {row.model.name: row.unknown for row in rows if row.unknown > MUCH_UNKNOWN}
    if unknown:
        shares = ", ".join(f"{printable(name)} {share:.1%}" for name, share in unknown.items())
        notes.append(
            f"Many tokens are unknown, which is easy to predict ({shares}): these scores, bits per byte too, compare "
            "only with those of the same vocabulary."
        )
    return notes


def _in_words(rows: Sequence[Row]) -> Iterator[str]:
    """Say how much each lane read, whether that tells of memory, and which row is the best."""
    if not all(row.score.tokens for row in rows):
        yield "Nothing was predicted where no loss stands."
        return
    if len({row.model.path for row in rows}) == 1:
        yield from _about_memory(rows)
    for row in rows:
        if row.attention is not None:
            shares = ", ".join(f"{share:.0%}" for share in row.attention.memory_share.mean(axis=1))
            about = f" ({row.reading.label})" if len(rows) > 1 else ""
            yield f"Attention's share on memory, first layer to last{about}: {shares}"
    if len(rows) > 1 and len({(row.text, row.vocabulary_hash) for row in rows}) == 1:
        labelled = sorted(zip(rows, labels_of(rows), strict=True), key=lambda one: one[0].score.loss)
        (best, label), (row, other) = labelled[:2]
        less = row.score.loss - best.score.loss
        sentence = f"Least loss: {best.score.loss:.4f} nats per token, {label}"
        if less < _EQUAL_NATS:
            yield f"{sentence} and {other} alike."
            return
        error = 2 * paired_error(row, best)
        margin = "" if math.isnan(error) else f" (± {error:.4f}, two standard errors of the difference, token by token)"
        yield f"{sentence}; {less:.4f} less than {other}{margin}."


def _about_memory(rows: Sequence[Row]) -> Iterator[str]:
    longest = max(row.memory for row in rows)
    reading, tokens = rows[0].reading, rows[0].score.tokens
    needed, lanes = longest + reading.context.segment_len, reading.batch_size
    if longest and tokens // lanes < 2 * needed:
        fewer = max(1, tokens // (4 * needed))
        advice = f"eval.batch_size={fewer}, or more text, would tell" if fewer < lanes else "a longer text would tell"
        yield (
            f"Each of the {lanes:,} lanes read {tokens // lanes:,} tokens, beginning with an empty memory: too few to "
            f"show what a memory of {longest:,} gives; {advice}."
        )
    run = rows[0].model.config
    trained = 0 if run is None or not rows[0].attends else run.model.mem_len
    if any(row.memory < trained for row in rows) and longest >= trained:
        yield (
            f"Rows with less than the memory of {trained:,} it was trained with show the model cut off from what it "
            "relies on; what memory is worth is told by a model trained without it (model.mem_len=0)."
        )


def units_to_compare(rows: Sequence[Row]) -> list[Unit | None]:
    """Return the unit in which each row can stand beside the others.

    It is the vocabulary's where there is one for all, else bits per byte where all is text, else none: nats.
    """
    if len({row.vocabulary_hash for row in rows}) == 1:
        return [row.unit for row in rows]
    if any(row.unit.tokens_per_byte is None for row in rows):
        return [None] * len(rows)
    return [Unit(name=BITS_PER_BYTE, tokens_per_byte=row.unit.tokens_per_byte) for row in rows]


def draw(rows: Sequence[Row], folder: Path, *, title: str) -> None:
    """Draw where the losses lie, a line for each row; what cannot be drawn is said, and fails nothing."""
    drawings = {
        "loss_by_position": partial(_draw_losses, rows, "positions", axis="place in the segment"),
        "loss_by_distance": partial(
            _draw_losses, rows, "distances", axis="tokens read since the document (without borders: the lane) began"
        ),
    }
    if len({row.memory for row in rows}) > 1:
        drawings["score_by_memory"] = partial(_draw_by_memory, rows)
    several = len({row.model.path for row in rows}) > 1
    for row in rows:
        if row.attention is not None:
            name = f"attention-{slug(row.model.name)}" if several else "attention"
            drawings[name] = partial(_draw_attention, row, several=several)
    for name, drawing in drawings.items():
        try:
            drawing(folder / f"{name}.png", title=title)
        except Exception as error:  # a picture is decoration: the numbers are on disk
            tell(f"note: {folder / name}.png cannot be drawn: {first_line(error)}")


def _draw_losses(rows: Sequence[Row], classes: str, path: Path, *, axis: str, title: str) -> None:
    lines = [
        plots.LossLine(
            label=label,
            losses=mean_by_class(row.losses.losses, getattr(row, classes)),
            unit=unit,
            difference=row.difference_by(getattr(row, classes), rows[0]),
        )
        for label, row, unit in zip(labels_of(rows), rows, units_to_compare(rows), strict=True)
    ]
    plots.draw_losses(lines, path, axis=axis, title=title)


def _draw_attention(row: Row, path: Path, *, several: bool, title: str) -> None:
    assert row.attention is not None
    plots.draw_attention(row.attention, path, title=f"{row.model.name}, {title}" if several else title)


def labels_of(rows: Sequence[Row]) -> list[str]:
    """Return what tells each row from the others."""
    if len({row.model.path for row in rows}) == 1:
        return [row.reading.label for row in rows]
    several = len({row.reading.label for row in rows}) > 1
    return [f"{row.model.name}, {row.reading.label}" if several else row.model.name for row in rows]


def _draw_by_memory(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Draw a line for each model, and for each way to read it other than the length of memory."""
    groups: dict[tuple[str, str], list[tuple[Row, Unit | None]]] = {}
    for row, unit in zip(rows, units_to_compare(rows), strict=True):
        groups.setdefault((row.model.name, row.reading.apart), []).append((row, unit))
    lines = []
    for (name, label), group in groups.items():
        ordered = sorted((row for row, _ in group), key=lambda row: row.memory)
        longest = ordered[-1]
        has_length = longest.reading.context.stride is None and longest.attends
        lines.append(
            plots.MemoryLine(
                label=f"{name}, {label}" if label and sum(key[0] == name for key in groups) > 1 else name,
                memory=[row.memory for row in ordered] if has_length else [],
                losses=[row.score.loss for row in ordered],
                errors=[paired_error(row, longest) for row in ordered],
                unit=group[0][1],  # one model has one unit
            )
        )
    plots.draw_by_memory(lines, path, title=title)


def paired_error(row: Row, other: Row) -> float:
    """Return the standard error of the mean difference between two rows' losses, token by token; NaN: there is none."""
    difference = None if row is other else row.difference(other)
    known = np.array([]) if difference is None else difference[~np.isnan(difference)]
    return float(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan


def check_can_publish(model: NamedModel) -> tuple[SavedConfig, WandbConfig, Identity]:
    """Return what opens the W&B run of a model's training run; `UserError` where there is none, or it is in use."""
    run, identity = model.config, read_identity(model.folder)
    if run is None or identity is None:
        raise UserError(
            f"wandb is true, and {model.path} comes from no run (with a run.json) whose W&B run takes scores"
        )
    if not isinstance(run.logger, WandbConfig) or run.trainer.fast_dev_run:
        raise UserError(f"wandb is true, and {model.folder} was trained without W&B (logger={run.logger.kind})")
    monitors.check_mode(run.logger)
    refuse_if_in_use(model.folder)  # two processes would write to one W&B run
    return run, run.logger, identity


def publish(row: Row) -> str:
    """Put a score into the run's W&B run, at its last step; return the line that says where to look."""
    folder, summary = row.model.folder, Summary.read(row.model.folder)
    run, logger, identity = check_can_publish(row.model)
    settings = read_config(folder) | ({} if identity.parent is None else {"parent": dict(identity.parent)})
    name = run.name or folder.absolute().name
    monitor = monitors.open_wandb(
        logger, folder=folder.absolute(), name=name, run_id=identity.run_id, settings=settings
    )
    under, figures = f"{metrics.EVALUATION}/{row.split}", {"loss": row.score.loss, **row.unit.figures(row.score.loss)}
    try:
        if monitor.logger is not None:
            values = {f"{under}/{name}": value for name, value in figures.items() if math.isfinite(value)}
            monitor.logger.log_metrics(values, step=summary.step)
    finally:
        monitors.finish(summary.exit_code)
    return monitor.where
