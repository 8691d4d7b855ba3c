"""`evaluate.py`: score models on a split, by every way to read it that the command asks for."""

from __future__ import annotations

from typing import Literal

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.data_config import Data
from transformer_xl.inference_config import ModelChoice, Own, Precision, SegmentLen
from transformer_xl.settings import Count, Length, Settings, parse


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


class EvaluateConfig(ModelChoice):
    """`evaluate.py`, whole."""

    split: Literal["train", "valid", "test"]
    data: Data | None
    wandb: bool
    eval: ReadingConfig


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: cli.run("evaluate", evaluate), outlives_screen=True)


def evaluate(call: Call) -> float | None:
    """Evaluate one model or several; return the loss of the first one's first row, in nats."""
    settings = call.values(call.compose())
    del settings["recipe"]  # only what conf/data refers to
    config = parse(EvaluateConfig, {"data": None} | settings)

    from transformer_xl.commands.evaluation import evaluate_models  # takes seconds, which `--help` need not wait for

    return evaluate_models(config, command=call.command, given=call.given)
