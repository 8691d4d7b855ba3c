"""How an evaluation reads its split: the settings of `eval.*` laid on a model's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_xl.commands.sources import Source
from transformer_xl.config import EvalConfig, reading_problems
from transformer_xl.data.lanes import lanes_that_fill_memory
from transformer_xl.data_config import DataConfig
from transformer_xl.errors import UserError
from transformer_xl.inference_config import ReadingConfig
from transformer_xl.model.base import LanguageModel
from transformer_xl.settings import parse, plain, replace

LISTED = ("segment_len", "mem_len", "clamp_len", "same_length")
"""Settings of which a list may be given."""


class Reading(NamedTuple):
    """One way to read a split: what it is called, and the lengths."""

    label: str
    lengths: EvalConfig


def make_readings(
    asked: ReadingConfig, source: Source, model: LanguageModel, data: DataConfig, *, predictions: int | None
) -> list[Reading]:
    """Give what is read, one after the other: as asked, and at the paper's long memory where the recipe has one.

    Args:
        asked: the settings of the command.
        source: of the model.
        model: whose own lengths stand for those that its run does not say.
        data: settings of the corpus, whose segments stand in for a run's.
        predictions: of the split, where the corpus is not the run's own: where nobody says how many lanes, there are so
            few that most of it is read with a full memory.

    Raises:
        UserError: lengths that the model cannot read.
    """
    own = _own(source, model, data)
    varied = {name: value for name in LISTED if isinstance(value := getattr(asked, name), list)}
    if any(not values for values in varied.values()):
        raise UserError(f"eval.{next(name for name in varied if not varied[name])} is [], and must have a value")
    choices = {name: varied.get(name, [getattr(asked, name)]) for name in LISTED}
    combinations = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    if predictions is not None:
        own = _with_lanes_that_fill_memory(own, combinations, predictions=predictions)
    readings = [_reading(asked, own, combination, varied=list(varied)) for combination in combinations]
    recipe = None if source.config is None else source.config.recipe.long_eval
    if asked.long and recipe is not None and not varied:
        lengths = replace(readings[0].lengths, stride=None, **plain(recipe))
        if lengths != readings[0].lengths:
            readings.append(Reading("the paper's long memory", lengths))
    problems = [problem for reading in readings for problem in reading_problems(reading.lengths, model.config)]
    if problems:
        raise UserError("; ".join(dict.fromkeys(problems)))
    return readings


def _own(source: Source, model: LanguageModel, data: DataConfig) -> EvalConfig:
    if source.config is not None:
        return source.config.eval
    return EvalConfig(
        batch_size=data.batch_size,
        segment_len=data.segment_len,
        mem_len=model.mem_len,
        clamp_len=model.clamp_len,
        same_length=model.same_length,
        stride=None,
    )


def _with_lanes_that_fill_memory(
    own: EvalConfig, combinations: Sequence[dict[str, Any]], *, predictions: int
) -> EvalConfig:
    def longest(name: str) -> int:
        return max(int(getattr(own, name) if values[name] == "own" else values[name]) for values in combinations)

    lanes = lanes_that_fill_memory(
        lanes=own.batch_size,
        segment_len=longest("segment_len"),
        mem_len=longest("mem_len"),
        max_tokens=predictions,
    )
    return replace(own, batch_size=lanes)


def _reading(asked: ReadingConfig, own: EvalConfig, values: dict[str, Any], *, varied: Sequence[str]) -> Reading:
    given = {**values, "batch_size": asked.batch_size, "stride": asked.stride}
    given = {name: value for name, value in given.items() if value != "own"}
    lengths = parse(EvalConfig, dict(own) | given, "eval")
    if lengths.mem_len == 0 and values["same_length"] == "own":
        lengths = replace(lengths, same_length=False)  # without memory there is nothing to keep at one length
    words = [f"{_WORDS[name]} {_in_words(getattr(lengths, name))}" for name in varied]
    return Reading(", ".join(words) or ("own" if lengths == own else "as asked"), lengths)


_WORDS = {"segment_len": "segment", "mem_len": "memory", "clamp_len": "clamp", "same_length": "same length"}


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "off" if value is None else str(value)
