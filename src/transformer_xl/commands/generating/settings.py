"""What `generate.py` was asked for: checked before any model is loaded, and in the words of the library."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from transformer_xl.errors import UserError
from transformer_xl.inference.drawing_rule import DrawingRule
from transformer_xl.inference_config import GenerateConfig, SamplingConfig

if TYPE_CHECKING:
    from transformer_xl.commands.models import NamedModel
    from transformer_xl.inference.reading_on import ReadingRule

_SEGMENT_LEN = 128
"""Of a model that comes from no run."""
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def check(config: GenerateConfig) -> None:
    """Refuse values that cannot work, before any work begins.

    Raises:
        UserError: every problem found, in one sentence.
    """
    sampling = config.sampling
    problems = []
    stops = stop_texts(sampling)
    if "" in stops:
        problems.append(f"sampling.stop is {sampling.stop!r}, and must hold texts of at least 1 character")
    elif stops and config.format == "tokens":
        problems.append(f"sampling.stop is {sampling.stop!r} with format=tokens, and needs format=text or jsonl")
    problems += _check_prompts(config)
    if problems:
        raise UserError("; ".join(problems))


def _check_prompts(config: GenerateConfig) -> list[str]:
    problems = []
    if config.prompt is not None and config.prompt_file is not None:
        problems.append("prompt and prompt_file are both given, and only one of them can be")
    if config.prompt_file == "":
        problems.append("prompt_file is empty, and must name a file, or be - for standard input")
    if config.prompt_file is None and config.prompt_unit != "file":
        problems.append(f"prompt_unit is {config.prompt_unit} without prompt_file, and needs one")
    if not config.interactive:
        return problems
    for name, value, needed in (
        ("sampling.samples", config.sampling.samples, 1),
        ("prompt_unit", config.prompt_unit, "file"),
    ):
        if value != needed:
            problems.append(f"{name} is {value} with interactive=true, and must be {needed}")
    if config.format == "jsonl":
        problems.append("format is jsonl with interactive=true, and must be text or tokens")
    if config.prompt_file == "-":
        problems.append("prompt_file is - with interactive=true, which asks for lines there: name a file")
    return problems


def drawing_rule(sampling: SamplingConfig) -> DrawingRule:
    """Give the rule by which tokens are drawn."""
    return DrawingRule(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
    )


def reading_rule(config: GenerateConfig, source: NamedModel) -> ReadingRule:
    """Give the rule by which texts are read: the model's and its run's own where nothing else is asked for."""
    from transformer_xl.inference.reading_on import ReadingRule

    own = _SEGMENT_LEN if source.config is None else source.config.eval.segment_len
    memory, asked = config.memory, config.sampling.segment_len
    return ReadingRule(
        segment_len=own if asked == "own" else asked,
        mem_len=None if memory.mem_len == "own" else memory.mem_len,
        clamp_len="model" if memory.clamp_len == "own" else memory.clamp_len,
        same_length=None if memory.same_length == "own" else memory.same_length,
    )


def stop_texts(sampling: SamplingConfig) -> list[str]:
    r"""Give the texts that end generation, with line ends and tabs for `\n` and `\t` in them."""
    given = [sampling.stop] if isinstance(sampling.stop, str) else sampling.stop
    return [re.sub(r"\\([nt\\])", lambda match: _ESCAPES[match[1]], text) for text in given]
