"""`score.py`: what each text of a file, or of standard input, costs a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from omegaconf import DictConfig, OmegaConf

from transformer_xl.commands import command_line
from transformer_xl.commands.command_line import RunContext
from transformer_xl.errors import UserError
from transformer_xl.inference_config import ScoreConfig
from transformer_xl.model_checks import at_least
from transformer_xl.parsing import parse

STANDARD_INPUT = "-"


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(command_line.run("score", score))


def score(composed: DictConfig, context: RunContext) -> None:
    """Score texts, and print what each cost.

    Args:
        composed: what Hydra made of the command line.
        context: the command.
    """
    config = parse(ScoreConfig, OmegaConf.to_container(composed, resolve=True))
    check(config, given=context.given)
    from transformer_xl.commands.scoring_run import ScoringRun  # takes seconds, which `--help` need not wait for

    ScoringRun(config).run()


def check(config: ScoreConfig, *, given: Collection[str]) -> None:
    """Refuse what cannot be scored, before the model is loaded.

    Args:
        config: of the command.
        given: the keys that the command names.

    Raises:
        UserError: every problem found, in one sentence.
    """
    memory = config.memory
    problems = at_least(1, segment_len=_number(config.segment_len))
    problems += at_least(0, memory__mem_len=_number(memory.mem_len), memory__clamp_len=_number(memory.clamp_len))
    if memory.same_length is True and memory.mem_len == 0:
        problems.append("memory.same_length is true with memory.mem_len 0, and needs a memory.mem_len of at least 1")
    if config.tokens and config.format == "table" and "format" in given:
        problems.append("format is table with tokens=true, which writes JSON lines: give format=jsonl, or leave it out")
    problems += _check_files(config)
    if problems:
        raise UserError("; ".join(problems))


def _check_files(config: ScoreConfig) -> list[str]:
    problems = []
    texts = os.path.expanduser(config.texts)
    if config.texts != STANDARD_INPUT and not os.path.exists(texts):
        problems.append(f"texts={config.texts} names no file, and must name one, or be - for standard input")
    elif os.path.isdir(texts):
        problems.append(f"texts={config.texts} is a folder, and must be a file, or - for standard input")
    if config.state is None:
        return problems
    if config.context == "none":
        problems.append(f"state is {config.state} with context none, where no text reads on: it needs context=carry")
    state = os.path.expanduser(config.state)
    if os.path.isdir(state) or not os.path.isdir(os.path.dirname(os.path.abspath(state))):
        problems.append(f"state={config.state} must be a file in a folder that exists")
    return problems


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
