"""`score.py`: what each text of a file, or of standard input, costs a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from transformer_xl.commands import cli
from transformer_xl.errors import UserError
from transformer_xl.inference_config import ScoreConfig

STANDARD_INPUT = "-"


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(cli.run("score", score))


def score(call: cli.Call) -> None:
    """Score texts, and print what each cost.

    Args:
        call: the command.
    """
    config = call.settings(ScoreConfig)
    check(config, given=call.given)
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
    problems = []
    if config.tokens and config.format == "table" and "format" in given:
        problems.append("format is table with tokens=true, which writes JSON lines: give format=jsonl, or leave it out")
    problems += _check_texts(config.texts) + _check_carrying(config)
    if problems:
        raise UserError("; ".join(problems))


def check_carried(config: ScoreConfig, *, mem_len: int | None) -> list[str]:
    """Refuse to carry what a model forgets.

    Args:
        config: of the command.
        mem_len: which it reads with; None: not known yet.
    """
    if config.context == "none" or mem_len != 0:
        return []
    return [
        f"context is {config.context} and memory.mem_len is 0, so that nothing but one token would be carried from "
        "text to text: a model with a memory is needed, or context=none"
    ]


def _check_texts(texts: str) -> list[str]:
    path = os.path.expanduser(texts)
    if texts != STANDARD_INPUT and not os.path.exists(path):
        return [f"texts={texts} names no file, and must name one, or be - for standard input"]
    if os.path.isdir(path):
        return [f"texts={texts} is a folder, and must be a file, or - for standard input"]
    return []


def _check_carrying(config: ScoreConfig) -> list[str]:
    problems = check_carried(config, mem_len=None if config.memory.mem_len == "own" else config.memory.mem_len)
    if config.unknown == "skip" and config.context == "carry":
        problems.append("unknown is skip with context carry, where each text needs the one before: give context=none")
    return problems
