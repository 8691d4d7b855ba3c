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


class SamplingConfig(Settings):
    """How tokens are drawn, and when a text ends."""

    n_tokens: Count
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)]
    temperature: Amount
    top_k: Count | None
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    min_p: Annotated[float, Field(ge=0, le=1)] | None
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
