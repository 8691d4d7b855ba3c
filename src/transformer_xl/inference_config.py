"""Typed schema of `evaluate.py`, `score.py` and `generate.py`; the numbers stand in `conf/`, as for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformer_xl.data_config import AnyDataConfig

Own = Literal["own"]
"""The model's own value: that of its run where it comes from one, else of the network."""

Precision = Literal["own", "32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which model, and where it runs; common to all three commands."""

    run: str | list[str]
    checkpoint: Literal["best", "last"]
    device: str


@dataclass(frozen=True, kw_only=True)
class ReadingConfig:
    """How a text is read, independent of training's lengths; a list gives a row for each of its values."""

    batch_size: int | Own
    segment_len: int | Own | list[int | Own]
    mem_len: int | Own | list[int | Own]
    clamp_len: int | Own | list[int | Own | None] | None
    same_length: bool | Own | list[bool | Own]
    stride: int | Own | None
    precision: Precision
    max_tokens: int | None
    long: bool
    attention: bool
    attention_tokens: int

    @property
    def is_varied(self) -> bool:
        """Whether a list is given, of which each value makes a reading."""
        return any(
            isinstance(value, list) for value in (self.segment_len, self.mem_len, self.clamp_len, self.same_length)
        )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ModelChoice):
    """`evaluate.py`, whole."""

    split: Literal["train", "valid", "test"]
    data: AnyDataConfig | None
    wandb: bool
    eval: ReadingConfig


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """What a session remembers."""

    mem_len: int | Own
    clamp_len: int | Own | None
    same_length: bool | Own


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(ModelChoice):
    """`score.py`, whole."""

    precision: Precision
    texts: str
    unit: Literal["line", "document"]
    context: Literal["none", "carry"]
    unknown: Literal["refuse", "skip"]
    tokens: bool
    format: Literal["table", "jsonl"]
    segment_len: int | Own
    memory: ContextConfig


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn, and when a text ends."""

    n_tokens: int
    repetition_penalty: float
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    samples: int
    batch_size: int
    stop: list[str] | str
    end_at_document: bool
    segment_len: int | Own


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(ModelChoice):
    """`generate.py`, whole."""

    precision: Precision
    seed: int
    prompt: str | None
    prompt_file: str | None
    prompt_unit: Literal["file", "line"]
    interactive: bool
    echo: bool
    format: Literal["text", "tokens", "jsonl"]
    sampling: SamplingConfig
    memory: ContextConfig
