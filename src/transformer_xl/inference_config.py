"""All settings of `score.py` and `generate.py`, and what `evaluate.py` shares; the numbers stand in `conf/`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from transformer_xl.settings import Amount, Count, Length, Seed, Settings

Own = Literal["own"]
"""The model's own value: that of its run where it comes from one, else of the network."""

SegmentLen = Annotated[int, Field(ge=1, lt=1 << 31)]
"""A number of tokens that can be read at once."""

StopText = Annotated[str, Field(min_length=1)]

Precision = Literal["own", "32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]


class ModelChoice(Settings):
    """Which model, and where it runs; common to all three commands."""

    run: str | list[str]
    checkpoint: Literal["best", "last"]
    device: str


class ContextConfig(Settings):
    """What a session remembers."""

    mem_len: Length | Own
    clamp_len: Length | Own | None
    same_length: bool | Own


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


class SamplingParams(Settings):
    """What is done to log-probabilities before a token is sampled, in this order, and when a text ends.

    Attributes:
        repetition_penalty: multiplies the log-probabilities of tokens that the text holds already; 1: off. Keskar et
            al., 2019 (CTRL, section 4.1), for log-probabilities, which are negative.
        temperature: divides log-probabilities; 0, or too small for float32: the likeliest token is taken.
        top_k: only so many of the likeliest tokens are left; None: all.
        top_p: of these the fewest likeliest that have this probability together, renormalised; None: all. Holtzman et
            al., 2019 (section 3.1).
        min_p: of these those at least so likely, as a share of the likeliest; None: all. Nguyen et al., 2024.
        n_tokens: the most tokens that are sampled.
        stop: texts at which the text ends.
        end_at_document: whether it ends where a document does.
    """

    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    temperature: Amount
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n_tokens: Count
    stop: list[StopText] | StopText = Field(default_factory=list)
    end_at_document: bool = False


class SamplingConfig(SamplingParams):
    """How `generate.py` samples."""

    samples: Count
    batch_size: Count
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
        if self.prompt is not None and self.prompt_file is not None:
            yield "prompt and prompt_file are both given, and only one of them can be"
        if self.prompt_file is None and self.prompt_unit != "file":
            yield f"prompt_unit is {self.prompt_unit} without prompt_file, and needs one"
        is_one_text = self.sampling.samples == 1 and self.prompt_unit == "file" and self.format != "jsonl"
        if self.interactive and not (is_one_text and self.prompt_file != "-"):
            yield (
                "interactive is true, and needs sampling.samples=1, prompt_unit=file, format=text or tokens, and no "
                "prompt_file=-"
            )
