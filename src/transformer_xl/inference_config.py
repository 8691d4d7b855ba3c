"""All settings of `evaluate.py`, `score.py` and `generate.py`; the numbers stand in `conf/`, as for training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from transformer_xl.data_config import Data
from transformer_xl.settings import Amount, Count, Length, Seed, Settings

Own = Literal["own"]
"""The model's own value: that of its run where it comes from one, else of the network."""

SegmentLen = Annotated[int, Field(ge=1, lt=1 << 31)]
"""A number of tokens that can be read at once."""

Precision = Literal["own", "32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]


class ModelChoice(Settings):
    """Which model, and where it runs; common to all three commands."""

    run: str | list[str]
    checkpoint: Literal["best", "last"]
    device: str


class ReadingConfig(Settings):
    """How a text is read, independent of training's lengths; a list gives a row for each of its values."""

    batch_size: Count | Own
    segment_len: SegmentLen | Own | list[SegmentLen | Own]
    mem_len: Length | Own | list[Length | Own]
    clamp_len: Length | Own | list[Length | Own | None] | None
    same_length: bool | Own | list[bool | Own]
    stride: Count | Own | None
    precision: Precision
    max_tokens: Count | None
    long: bool
    attention: bool
    attention_tokens: Count

    @property
    def is_varied(self) -> bool:
        """Whether a list is given, of which each value makes a reading."""
        return any(
            isinstance(value, list) for value in (self.segment_len, self.mem_len, self.clamp_len, self.same_length)
        )


class EvaluateConfig(ModelChoice):
    """`evaluate.py`, whole."""

    split: Literal["train", "valid", "test"]
    data: Data | None
    wandb: bool
    eval: ReadingConfig


class ContextConfig(Settings):
    """What a session remembers."""

    mem_len: Length | Own
    clamp_len: Length | Own | None
    same_length: bool | Own

    def rules(self) -> Iterator[str]:
        if self.same_length is True and self.mem_len == 0:
            yield "same_length is true with memory.mem_len 0, and needs a memory.mem_len of at least 1"


CARRIES_NOTHING = (
    "context is carry and memory.mem_len is 0, so that nothing but one token would be carried from text to text: a "
    "model with a memory is needed, or context=none"
)


class ScoreConfig(ModelChoice):
    """`score.py`, whole."""

    precision: Precision
    texts: str
    unit: Literal["line", "document"]
    context: Literal["none", "carry"]
    unknown: Literal["refuse", "skip"]
    tokens: bool
    format: Literal["table", "jsonl"]
    segment_len: SegmentLen | Own
    memory: ContextConfig

    def rules(self) -> Iterator[str]:
        if self.context == "carry" and self.memory.mem_len == 0:
            yield CARRIES_NOTHING


class SamplingParams(Settings):
    """What is done to log-probabilities before a token is sampled, in this order.

    Attributes:
        repetition_penalty: multiplies the log-probabilities of all tokens that the text holds already, prompt and
            sampled ones; 1: off. Keskar et al., 2019 (CTRL, section 4.1) divide scores by it, which above 1 would
            favour what is negative, as log-probabilities are: as everywhere since, such are multiplied.
        temperature: divides log-probabilities; 0, or too small for float32: the likeliest token is taken.
        top_k: only so many of the likeliest tokens are left; None: all.
        top_p: of these only the likeliest are left, as few as have at least this probability together, once those of
            all that are left add up to 1; None: all. The nucleus of Holtzman et al., 2019 (section 3.1).
        min_p: of these only tokens are left that are at least so likely, as a share of the likeliest; None: all. Nguyen
            et al., 2024 (min-p sampling, section 4).
    """

    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    temperature: Amount
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None


class SamplingConfig(SamplingParams):
    """How tokens are sampled, and when a text ends."""

    n_tokens: Count
    samples: Count
    batch_size: Count
    stop: list[str] | str
    end_at_document: bool
    segment_len: SegmentLen | Own


class GenerateConfig(ModelChoice):
    """`generate.py`, whole."""

    precision: Precision
    seed: Seed
    prompt: str | None
    prompt_file: str | None
    prompt_unit: Literal["file", "line"]
    interactive: bool
    echo: bool
    format: Literal["text", "tokens", "jsonl"]
    sampling: SamplingConfig
    memory: ContextConfig

    def rules(self) -> Iterator[str]:
        stop = self.sampling.stop
        if "" in ([stop] if isinstance(stop, str) else stop):
            yield f"sampling.stop is {stop!r}, and must hold texts of at least 1 character"
        elif stop and self.format == "tokens":
            yield f"sampling.stop is {stop!r} with format=tokens, and needs format=text or jsonl"
        if self.prompt is not None and self.prompt_file is not None:
            yield "prompt and prompt_file are both given, and only one of them can be"
        if self.prompt_file == "":
            yield "prompt_file is empty, and must name a file, or be - for standard input"
        if self.prompt_file is None and self.prompt_unit != "file":
            yield f"prompt_unit is {self.prompt_unit} without prompt_file, and needs one"
        if self.interactive:
            yield from self._rules_of_chat()

    def _rules_of_chat(self) -> Iterator[str]:
        if self.sampling.samples != 1:
            yield f"sampling.samples is {self.sampling.samples} with interactive=true, and must be 1"
        if self.prompt_unit != "file":
            yield f"prompt_unit is {self.prompt_unit} with interactive=true, and must be file"
        if self.format == "jsonl":
            yield "format is jsonl with interactive=true, and must be text or tokens"
        if self.prompt_file == "-":
            yield "prompt_file is - with interactive=true, which asks for lines there: name a file"
