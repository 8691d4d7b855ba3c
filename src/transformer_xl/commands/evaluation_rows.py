"""The rows of an evaluation: each model opened with its text, and read in each way that the command asks for."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from transformer_xl.commands.models import LoadedModel, NamedModel
from transformer_xl.config import EvalConfig, reading_problems
from transformer_xl.data.build import open_corpus
from transformer_xl.data.lanes import Dataset, lanes_that_fill_memory, unit_of
from transformer_xl.data.recall import Recall
from transformer_xl.data_config import DataConfig, RecallConfig, StoredConfig, TextConfig, TokensConfig
from transformer_xl.errors import UserError
from transformer_xl.inference.attention import AttentionByDistance, attention_by_distance
from transformer_xl.inference.evaluate import (
    Classes,
    ClassMeans,
    Progress,
    SplitLosses,
    context_of,
    distance_classes,
    mean_by_class,
    paired_difference,
    position_classes,
    read_split,
)
from transformer_xl.inference_config import EvaluateConfig, ReadingConfig
from transformer_xl.init_from import fitting
from transformer_xl.model.base import Context
from transformer_xl.model_config import ModelConfig
from transformer_xl.run_folder import Summary
from transformer_xl.scores import Score, Unit
from transformer_xl.settings import parse, plain, replace

_LISTED = {"segment_len": "segment", "mem_len": "memory", "clamp_len": "clamp", "same_length": "same length"}
"""Settings of which a list may be given, and what a row is called by them."""
_SHARES = {"data.test_fraction", "data.valid_fraction", "data.split"}
"""Settings that say which part of a text is the test split."""
_SEED_WITHOUT_A_RUN = 1
"""Of synthetic data: `conf/train.yaml`'s."""
_SECONDS_BETWEEN_LINES, _SECONDS_ON_A_TERMINAL = 10.0, 0.5


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read a split.

    Attributes:
        context: the lengths.
        batch_size: lanes.
        label: what it is called.
        apart: what tells it from readings that differ in the length of memory alone.
    """

    context: Context
    batch_size: int
    label: str
    apart: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model, read in one way: the losses, and all that they depend on."""

    model: NamedModel
    network: ModelConfig
    parameters: int
    attends: bool
    precision: str
    data: Dataset
    data_path: str | None
    split: str
    max_tokens: int | None
    reading: Reading
    losses: SplitLosses
    positions: Classes
    distances: Classes
    seconds: float
    attention: AttentionByDistance | None

    @property
    def score(self) -> Score:
        """The mean loss."""
        return self.losses.score

    @property
    def unit(self) -> Unit:
        """How the split's losses are read, as the model's vocabulary cuts it."""
        return unit_of(self.data, self.split)

    @property
    def text(self) -> tuple[str, str]:
        """What was read: the checksum of the corpus, and the split."""
        return self.data.fingerprint.sha256, self.split

    @property
    def vocabulary_hash(self) -> str:
        """The mark of the vocabulary that cut the text."""
        return self.data.vocabulary.hash()

    @property
    def unknown(self) -> float:
        """The share of the split's tokens that the vocabulary lacks."""
        return self.data.unknown.get(self.split, 0) / self.data.counts()[self.split]

    @property
    def memory(self) -> int:
        """How many tokens from before a segment are seen."""
        return (self.reading.context.mem_len or 0) if self.reading.context.stride is None else 0

    def difference(self, other: Row) -> np.ndarray[Any, Any] | None:
        """Return the losses less those of another row, token by token; None where they did not read the same tokens."""
        same = self.text == other.text and self.vocabulary_hash == other.vocabulary_hash
        return paired_difference(self.losses, other.losses) if same else None

    def difference_by(self, classes: Classes, other: Row) -> ClassMeans | None:
        """Return the mean differences by class, None as for `difference`."""
        difference = None if self is other else self.difference(other)
        return None if difference is None else mean_by_class(difference, classes)

    @property
    def record(self) -> dict[str, Any]:
        """All of it as plain containers, for `evaluation.json`."""
        figures = {"loss": self.score.loss, **self.unit.figures(self.score.loss)}
        positions = mean_by_class(self.losses.losses, self.positions)
        distances = mean_by_class(self.losses.losses, self.distances)
        found: dict[str, Any] = {
            "model": self.model.path,
            "label": self.reading.label,
            "kind": self.network.kind,
            "parameters": self.parameters,
            **{name: value if math.isfinite(value) else None for name, value in figures.items()},
            "tokens": self.score.tokens,
            "split": self.split,
            "checkpoint": self.model.checkpoint,
            "batch_size": self.reading.batch_size,
            **asdict(self.reading.context),
            **self.data.read_as,
            "max_tokens": self.max_tokens,
            "precision": self.precision,
            "tokens_per_second": self.score.tokens / self.seconds,
            "data": self.data.name,
            "data_path": self.data_path,
            "data_checksum": self.data.fingerprint.sha256,
            "vocabulary_hash": self.vocabulary_hash,
            "loss_by_position": _numbers(positions),
            "loss_by_distance": {"tokens_read": _filled(distances, distances.labels), **_numbers(distances)},
        }
        if self.attention is not None:
            found["attention"] = {
                "weight_by_distance": np.round(self.attention.weight, 9).tolist(),
                "share_seen": self.attention.seen.tolist(),
                "memory_share": self.attention.memory_share.tolist(),
                "predictions": self.attention.predictions,
            }
        return found


def _numbers(found: ClassMeans) -> dict[str, list[Any]]:
    means = [value if math.isfinite(value) else None for value in _filled(found, found.means)]
    return {"loss": means, "predictions": _filled(found, found.counts)}


def _filled(found: ClassMeans, values: np.ndarray[Any, Any]) -> list[Any]:
    """Return values up to the last class that holds anything."""
    listed: list[Any] = values.tolist()
    return listed[: 1 + max(np.flatnonzero(found.counts), default=-1)]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, loaded, and its corpus, opened."""

    model: NamedModel
    loaded: LoadedModel
    data: Dataset
    settings: DataConfig
    is_own: bool


def open_subject(model: NamedModel, config: EvaluateConfig, *, given: frozenset[str]) -> Subject:
    """Load a model and open its run's corpus, or the one that the command names.

    Args:
        model: as the command names it.
        config: of the command.
        given: the keys that the command names.

    Raises:
        UserError: nobody says which corpus, or it cannot be read with the model's vocabulary.
    """
    loaded = model.load(device=config.device, precision=config.eval.precision)
    own = None if model.config is None else model.config.data
    settings = own if config.data is None else config.data
    if settings is None:
        raise UserError(f"run={model.path} comes from no run: say on which corpus, by data=CHOICE (see --help)")
    if isinstance(settings, StoredConfig):
        settings = replace(settings, rebuild=False)
    is_own = own is not None and settings == (replace(own, rebuild=False) if isinstance(own, StoredConfig) else own)
    if not is_own and config.split == "test" and not given & _SHARES:
        settings = _read_whole(settings, own)
    data = _open_corpus(model, loaded, settings, is_own=is_own)
    return Subject(model=model, loaded=loaded, data=data, settings=settings, is_own=is_own)


def _read_whole(settings: DataConfig, own: DataConfig | None) -> DataConfig:
    """Let a text that is named for the evaluation be its test split as a whole, unless its files say which is."""
    if not isinstance(settings, TextConfig | TokensConfig) or settings.path == getattr(own, "path", None):
        return settings
    # without a training part, which no run could have
    return settings.model_copy(update={"valid_fraction": 0.0, "test_fraction": 1.0, "max_eval_tokens": None})


def _open_corpus(model: NamedModel, loaded: LoadedModel, settings: DataConfig, *, is_own: bool) -> Dataset:
    seed = _SEED_WITHOUT_A_RUN if model.config is None else model.config.seed
    vocabulary = loaded.model.vocabulary
    if isinstance(settings, RecallConfig):
        data: Dataset = Recall(config=settings, seed=seed)
    else:
        given = None if vocabulary is None else fitting(vocabulary, settings)
        if is_own and model.config is not None and model.config.init_from is None:
            given = None  # the text's own: as in training
        assert isinstance(settings, StoredConfig)
        data = open_corpus(settings, announce=tell, seed=seed, vocabulary=given)
    if vocabulary is None:
        if data.vocabulary.size != loaded.model.vocab_size:
            raise UserError(
                f"run={model.path} brings no vocabulary and has {loaded.model.vocab_size} symbols, but that of "
                f"data={data.name} has {data.vocabulary.size}: put its vocabulary beside its weights"
            )
        tell(f"note: {model.name} brings no vocabulary: its ids are taken for this text's")
    elif fitting(vocabulary, settings).hash() != data.vocabulary.hash():
        reason = "the text has changed since" if is_own else "choose a text that its vocabulary can say"
        raise UserError(
            f"run={model.path} was trained with a {vocabulary.kind} vocabulary of {loaded.model.vocab_size} symbols, "
            f"and data={data.name} has a {data.vocabulary.kind} vocabulary of {data.vocabulary.size}: {reason}"
        )
    if is_own and Summary.read(model.folder).data_checksum not in (None, data.fingerprint.sha256):
        tell(f"note: the text of {model.name} has changed since it was trained: its checksum is another")
    return data


def readings_of(subject: Subject, config: EvaluateConfig) -> list[Reading]:
    """Return what is read, one after the other: as asked, and at the paper's long memory where the recipe has one.

    Raises:
        UserError: lengths that the model cannot read, or a split that is too short.
    """
    asked, split, model, data = config.eval, config.split, subject.loaded.model, subject.data
    if data.counts()[split] < 2:
        raise UserError(f"split is {split!r}, which has {data.counts()[split]} tokens: choose another")
    if asked.attention and not model.attends:
        raise UserError(f"eval.attention is true, and must be false for {model.config.label}, which has no attention")
    run, settings = subject.model.config, subject.settings
    own = model.own_context(segment_len=settings.segment_len) if run is None else context_of(run.eval)
    contexts = _contexts(own, asked)
    lanes = settings.batch_size if run is None else run.eval.batch_size
    predictions = data.lanes(split, batch_size=1, segment_len=1, evaluation=True).predictions
    if not subject.is_own:  # as many as leave most of the split to be read with a full memory
        segment_len, mem_len = (max(getattr(one, name) for one in contexts) for name in ("segment_len", "mem_len"))
        lanes = lanes_that_fill_memory(lanes=lanes, segment_len=segment_len, mem_len=mem_len, max_tokens=predictions)
    is_own = contexts == [own] and asked.batch_size in ("own", lanes)
    lanes = lanes if asked.batch_size == "own" else asked.batch_size
    long = None if run is None or not asked.long else run.recipe.long_eval
    if long is not None and not any(_varied(asked)) and (at_length := Context(**plain(long))) != contexts[0]:
        contexts.append(at_length)
    names = ["own" if is_own else "as asked", "the paper's long memory"]
    readings = []
    for number, context in enumerate(contexts):
        varied = {name: f"{_LISTED[name]} {_shown(getattr(context, name))}" for name in _varied(asked)}
        label = ", ".join(varied.values()) or names[number]
        apart = ", ".join(words for name, words in varied.items() if name != "mem_len")
        readings.append(Reading(context=context, batch_size=lanes, label=label, apart=apart))
    lengths = [parse(EvalConfig, {"batch_size": lanes, **asdict(context)}, "eval") for context in contexts]
    problems = [problem for one in lengths for problem in reading_problems(one, model.config)]
    if lanes > predictions:
        problems.append(f"eval.batch_size is {lanes}, and must be at most {predictions}, the split's predictions")
    if problems:
        raise UserError("; ".join(dict.fromkeys(problems)))
    return readings


def _shown(value: object) -> str:
    return {"None": "off", "True": "yes", "False": "no"}.get(str(value), str(value))


def _varied(asked: ReadingConfig) -> list[str]:
    return [name for name in _LISTED if isinstance(getattr(asked, name), list)]


def _contexts(own: Context, asked: ReadingConfig) -> list[Context]:
    """Return every combination of the lengths that are asked for, put in place of a model's own."""
    listed = {name: value if isinstance(value := getattr(asked, name), list) else [value] for name in _LISTED}
    for name, values in listed.items():
        if not values:
            raise UserError(f"eval.{name} is [], and must have a value")
    contexts = []
    for chosen in itertools.product(*listed.values()):
        given = dict(zip(listed, chosen, strict=True))
        context = own.resolved(**given, stride=asked.stride)
        if context.mem_len == 0 and given["same_length"] == "own":
            # without memory there is nothing to keep at one length
            context = dataclasses.replace(context, same_length=False)
        contexts.append(context)
    return contexts


def measure(subject: Subject, reading: Reading, config: EvaluateConfig, *, attention: bool) -> Row:
    """Read the split in one way."""
    loaded, data, context = subject.loaded, subject.data, reading.context
    source = data.lanes(config.split, batch_size=reading.batch_size, segment_len=context.segment_len, evaluation=True)
    counted, most = source.counted(epoch=0, start=0, stop=source.lane_len), config.eval.max_tokens
    label = f"{subject.model.name}, {reading.label}"
    progress = _progress(label, total=counted if most is None else min(most, counted))
    started = time.perf_counter()
    losses = read_split(loaded.model, source, context, max_tokens=most, autocast=loaded.autocast, progress=progress)
    seconds = time.perf_counter() - started
    found = None
    if attention:
        at_most = config.eval.attention_tokens
        found = attention_by_distance(loaded.model, source, context, max_tokens=at_most, autocast=loaded.autocast)
    return Row(
        model=subject.model,
        network=loaded.model.config,
        parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        attends=loaded.model.attends,
        precision=loaded.precision,
        data=data,
        data_path=getattr(subject.settings, "path", None),
        split=config.split,
        max_tokens=most,
        reading=reading,
        losses=losses,
        positions=position_classes(source, context),
        distances=distance_classes(source),
        seconds=seconds,
        attention=found,
    )


def _progress(label: str, *, total: int) -> Progress:
    """Return what shows how far a reading is: a line that changes on a terminal, elsewhere one now and then."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    started = last = time.monotonic()

    def progress(read: int, nll_sum: Tensor) -> None:
        nonlocal last
        now = time.monotonic()
        if read >= total and on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if read >= total or now - last < (_SECONDS_ON_A_TERMINAL if on_terminal else _SECONDS_BETWEEN_LINES):
            return
        last, seconds = now, now - started
        left = int(seconds / max(1, read) * max(0, total - read))
        speed = f"{read / seconds:,.0f} tokens/s, {left // 60}:{left % 60:02d} left"
        line = f"{label}: {read:,} of {total:,}, loss {float(nll_sum) / max(read, 1):.4f} so far, {speed}"
        print(f"\r\x1b[K{line}" if on_terminal else line, end="" if on_terminal else "\n", file=sys.stderr, flush=True)

    return progress


def tell(line: str) -> None:
    """Say what is no result: on standard error."""
    print(line, file=sys.stderr, flush=True)
