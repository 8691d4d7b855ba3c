"""`evaluate.py`: score models on a split, by every way to read it that the command asks for."""

from __future__ import annotations

import io
import sys

from omegaconf import DictConfig, OmegaConf

from transformer_xl.commands import command_line
from transformer_xl.commands.closed_pipe import go_on_without_screen
from transformer_xl.commands.command_line import RunContext
from transformer_xl.inference_config import EvaluateConfig
from transformer_xl.settings import parse


def main() -> None:
    """Run the command line and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a run may hold what the terminal cannot show
    go_on_without_screen()
    sys.exit(command_line.run("evaluate", evaluate))


def evaluate(composed: DictConfig, context: RunContext) -> float | None:
    """Evaluate one model or several.

    Args:
        composed: what Hydra made of the command line.
        context: the command.

    Returns:
        The loss of the first model's first row, in nats.
    """
    settings = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(settings, dict)
    del settings["recipe"]  # only what conf/data refers to
    config = parse(EvaluateConfig, {"data": None} | {str(name): value for name, value in settings.items()})

    from transformer_xl.commands.evaluation import evaluate_models  # takes seconds, which `--help` need not wait for

    return evaluate_models(config, command=context.command, given=context.given)
