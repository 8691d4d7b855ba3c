"""What `evaluate.py` does: score models, keep the numbers, then print, draw, and tell W&B."""

from __future__ import annotations

import itertools
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ConfigDict
from rich.console import Console
from rich.progress import Progress

from transformer_xl import run_folder
from transformer_xl.commands.evaluate import EvaluateConfig, ReadingConfig
from transformer_xl.commands.evaluation_rows import Row, draw, print_rows
from transformer_xl.commands.models import OUTPUTS, LoadedModel, NamedModel, find_models
from transformer_xl.config import EvalConfig, Logger, RecipeConfig, WandbConfig, reading_problems
from transformer_xl.data.build import open_corpus
from transformer_xl.data.files import locked
from transformer_xl.data.lanes import Dataset, lanes_that_fill_memory, unit_of
from transformer_xl.data.recall import Task
from transformer_xl.data_config import Data, DataConfig, StoredConfig, TaskConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError
from transformer_xl.inference import evaluate
from transformer_xl.init_from import fitting
from transformer_xl.interop.native import naming, read_json, write_json
from transformer_xl.settings import Settings, parse, plain, replace
from transformer_xl.training import metrics
from transformer_xl.training import wandb as monitors

RECORD = "evaluation.json"
_FORMAT = 1
_SHARES = {"data.test_fraction", "data.valid_fraction", "data.split"}
"""Settings that say which part of a text is the test split."""


class SavedConfig(Settings):
    """What commands about a trained model read of its run's configuration, whichever version wrote the rest."""

    model_config = ConfigDict(extra="ignore")

    init_from: str | None
    recipe: RecipeConfig
    data: Data
    eval: EvalConfig
    logger: Logger


class Subject(NamedTuple):
    """A model, loaded, its corpus, opened, and the ways to read it."""

    named: NamedModel
    loaded: LoadedModel
    data: Dataset
    data_path: str | None
    readings: list[EvalConfig]


def evaluate_models(config: EvaluateConfig, *, command: Sequence[str], given: frozenset[str]) -> float:
    """Evaluate the models that `run=` names, by a command as typed; `given` are the keys that it names."""
    models = find_models(config.run, checkpoint=config.checkpoint)
    folder = None
    if len(models) == 1:
        folder = models[0].run or OUTPUTS / run_folder.slug(models[0].name)
        read_record(folder / RECORD)
    for model in models if config.wandb else ():
        check_can_publish(model)
    for model in models[1:]:  # what cannot be read is said before anything is
        open_subject(model, config, given=given)
    rows: list[Row] = []
    try:
        for model in models:
            subject = open_subject(model, config, given=given)
            _tell(f"{model.name}: {subject.loaded.described}; {subject.data.name}, {config.split} split")
            for reading in subject.readings:
                rows.append(measure(subject, reading, config))
    finally:  # what was measured is kept, whatever ends the rest
        if rows:
            pictures = run_folder.claim((folder or OUTPUTS) / "evaluation", f"{run_folder.moment()}-{config.split}")
            record = add_record(folder or pictures, rows, command=command, pictures=pictures)
    print_rows(rows)
    print(f"Numbers: {record}; pictures: {pictures}/")
    draw(rows, pictures)
    for model in models if config.wandb else ():
        print(f"{model.name}: {publish(next(row for row in rows if row.named is model))}")
    return rows[0].loss


# ---- models and their texts


def open_subject(named: NamedModel, config: EvaluateConfig, *, given: frozenset[str]) -> Subject:
    """Load a model and open its run's corpus, or the one that the command names.

    Raises:
        UserError: nobody says which corpus, or it cannot be read with the model's vocabulary, or as it is asked for.
    """
    loaded = named.load(device=config.device, precision=config.eval.precision)
    run = _run_of(named)
    own = None if run is None else run.data
    settings = own if config.data is None else config.data
    if settings is None:
        raise UserError(f"run={named.path} comes from no run: say on which corpus, by data=CHOICE (see --help)")
    if isinstance(settings, StoredConfig):
        settings = replace(settings, rebuild=False)
    is_other_text = isinstance(settings, TextConfig | TokensConfig) and settings.path != getattr(own, "path", None)
    if is_other_text and config.split == "test" and not given & _SHARES:  # it is read as a whole
        settings = settings.model_copy(update={"valid_fraction": 0.0, "test_fraction": 1.0, "max_eval_tokens": None})
    data = _open_corpus(named, loaded, settings, None if config.data is not None else run)
    lengths = run.eval if run is not None else None
    if lengths is None:
        context = loaded.model.own_context(segment_len=settings.segment_len)
        lengths = parse(EvalConfig, asdict(context) | {"batch_size": settings.batch_size})
    predictions = data.counts()[config.split] - 1
    readings = readings_of(lengths, config.eval, predictions=predictions, is_own=config.data is None)
    if run is not None and run.recipe.long_eval is not None and config.eval.long and len(readings) == 1:
        long = replace(readings[0], stride=None, **plain(run.recipe.long_eval))
        readings += [long] if long != readings[0] else []
    problems = [problem for reading in readings for problem in reading_problems(reading, loaded.model.config)]
    if readings[0].batch_size > predictions:
        problems.append(f"eval.batch_size is {readings[0].batch_size}, and must be at most {predictions}")
    if config.eval.attention and not loaded.model.attends:
        problems.append(f"eval.attention is true, and must be false for {loaded.model.config.label}")
    if problems:
        raise UserError("; ".join(dict.fromkeys(problems)))
    return Subject(named, loaded, data, getattr(settings, "path", None), readings)


def _run_of(named: NamedModel) -> SavedConfig | None:
    if named.run is None:
        return None
    with naming(named.run / "config.yaml"):
        return parse(SavedConfig, named.settings)


def _open_corpus(named: NamedModel, loaded: LoadedModel, settings: DataConfig, run: SavedConfig | None) -> Dataset:
    """Open a corpus; `run` is the run whose own text it is, None for another text."""
    vocabulary = loaded.model.vocabulary
    seed = named.settings.get("seed", 1)  # conf/train.yaml's
    if isinstance(settings, TaskConfig):
        data: Dataset = Task(config=settings, seed=seed)
    else:
        assert isinstance(settings, StoredConfig)
        learns = vocabulary is None or (run is not None and run.init_from is None)  # as in training
        given = None if learns else fitting(vocabulary, settings)
        data = open_corpus(settings, announce=_tell, seed=seed, vocabulary=given)
    if vocabulary is None:
        fits = data.vocabulary.size == loaded.model.vocab_size
    else:
        fits = fitting(vocabulary, settings).hash() == data.vocabulary.hash()
    if not fits:
        raise UserError(
            f"run={named.path} was trained with a vocabulary of {loaded.model.vocab_size} symbols, and "
            f"data={data.name} has another one, of {data.vocabulary.size}: "
            + ("the text has changed since" if run is not None else "choose a text that its vocabulary can say")
        )
    return data


def readings_of(own: EvalConfig, asked: ReadingConfig, *, predictions: int, is_own: bool) -> list[EvalConfig]:
    """Return every combination of the lengths that are asked for, put in place of a model's own.

    Of another text than the run's as many lanes are read as leave most of its predictions a full memory.
    """
    given = {name: getattr(asked, name) for name in EvalConfig.model_fields}
    listed = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    readings = []
    for chosen in itertools.product(*listed.values()):
        values = dict(own) | {name: value for name, value in zip(listed, chosen, strict=True) if value != "own"}
        if values["mem_len"] == 0 and asked.same_length == "own":
            values["same_length"] = False  # without memory there is nothing to keep at one length
        readings.append(parse(EvalConfig, values, "eval"))
    if not readings:
        raise UserError(f"eval.{next(name for name, values in listed.items() if not values)} is an empty list")
    if asked.batch_size == "own" and not is_own:
        segment_len, mem_len = (max(getattr(one, name) for one in readings) for name in ("segment_len", "mem_len"))
        lanes = lanes_that_fill_memory(
            lanes=own.batch_size, segment_len=segment_len, mem_len=mem_len, max_tokens=predictions
        )
        readings = [replace(reading, batch_size=lanes) for reading in readings]
    return readings


# ---- rows


def measure(subject: Subject, reading: EvalConfig, config: EvaluateConfig) -> Row:
    """Read the split in one way; attention is looked at in the one with the longest memory."""
    named, loaded, data, path, readings = subject
    most = config.eval.max_tokens
    context = evaluate.context_of(reading)
    source = data.lanes(config.split, batch_size=reading.batch_size, segment_len=context.segment_len, evaluation=True)
    started = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as display:
        task = display.add_task(named.name, total=most or source.counted(epoch=0, start=0, stop=source.lane_len))
        losses = evaluate.read_split(
            loaded.model,
            source,
            context,
            max_tokens=most,
            autocast=loaded.autocast,
            answers=data.answers,
            progress=lambda tokens: display.update(task, completed=tokens),
        )
    seconds = time.perf_counter() - started
    found = None
    if config.eval.attention and reading is max(readings, key=lambda one: one.mem_len):
        tokens = config.eval.attention_tokens
        found = evaluate.attention_by_distance(
            loaded.model, source, context, max_tokens=tokens, autocast=loaded.autocast
        )
    unit = unit_of(data, config.split)
    figures = unit.scored(losses.score)
    positions = evaluate.mean_by_class(losses.losses, evaluate.position_classes(source, context))
    distances = evaluate.mean_by_class(losses.losses, evaluate.distance_classes(source))
    record = {
        "model": named.path,
        "kind": loaded.model.config.kind,
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
        "tokens": losses.score.tokens,
        "split": config.split,
        "checkpoint": named.checkpoint,
        **plain(reading),
        **data.read_as,
        "max_tokens": most,
        "precision": loaded.precision,
        "tokens_per_second": losses.score.tokens / seconds,
        "data": data.name,
        "data_path": path,
        "data_checksum": data.fingerprint.sha256,
        "vocabulary_hash": data.vocabulary.hash(),
        "loss_by_position": _numbers(positions),
        "loss_by_distance": {"tokens_read": distances.labels.tolist(), **_numbers(distances)},
    }
    if found is not None:
        record["attention"] = {name: np.asarray(value).tolist() for name, value in found._asdict().items()}
    return Row(
        record=record,
        named=named,
        attends=loaded.model.attends,
        data=data,
        source=source,
        reading=reading,
        unit=unit,
        losses=losses,
        attention=found,
    )


def _numbers(found: evaluate.ClassMeans) -> dict[str, list[Any]]:
    means = [value if math.isfinite(value) else None for value in found.means.tolist()]
    return {"loss": means, "predictions": found.counts.tolist()}


def read_record(path: Path) -> list[Any]:
    """Return the evaluations of an `evaluation.json` that may not be there yet; `UserError` where it is damaged."""
    evaluations: list[Any] = read_json(path)["evaluations"] if path.exists() else []
    return evaluations


def add_record(folder: Path, rows: Sequence[Row], *, command: Sequence[str], pictures: Path) -> Path:
    """Add what was measured to a folder's `evaluation.json`, whole or not at all."""
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "pictures": str(pictures),
        "results": [row.record for row in rows],
    }
    path = folder / RECORD
    with locked(folder / f".{RECORD}.lock", _tell, f"waiting for another process, which writes {path}"):
        write_json(path, {"format": _FORMAT, "evaluations": [*read_record(path), entry]})
    return path


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- W&B


def check_can_publish(model: NamedModel) -> tuple[Path, WandbConfig, run_folder.Identity]:
    """Return what opens the W&B run of a model's training run; `UserError` where there is none, or it is in use."""
    run, identity = _run_of(model), None if model.run is None else run_folder.read_identity(model.run)
    if model.run is None or run is None or identity is None or not isinstance(run.logger, WandbConfig):
        raise UserError(f"wandb is true, and {model.path} comes from no run with a W&B run (logger=wandb)")
    run_folder.refuse_if_in_use(model.run)  # two processes would write to one W&B run
    return model.run.absolute(), run.logger, identity


def publish(row: Row) -> str:
    """Put a score into the run's W&B run, at its last step; return the line that says where to look."""
    folder, logger, identity = check_can_publish(row.named)
    summary, settings = run_folder.Summary.read(folder), row.named.settings
    name = settings["name"] or folder.name
    monitor = monitors.open_wandb(logger, folder=folder, name=name, run_id=identity.run_id, settings=settings)
    under, figures = f"{metrics.EVALUATION}/{row.record['split']}", row.unit.scored(row.losses.score)
    try:
        if monitor.logger is not None:
            values = {f"{under}/{name}": value for name, value in figures.items() if math.isfinite(value)}
            monitor.logger.log_metrics(values, step=summary.step)
    finally:
        monitors.finish(summary.exit_code)
    return monitor.where
