"""`evaluate.py`: score models on a split, by every way to read it that the command asks for."""

from __future__ import annotations

from transformer_xl.commands import cli
from transformer_xl.commands.call import Call
from transformer_xl.inference_config import EvaluateConfig
from transformer_xl.settings import parse


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: cli.run("evaluate", evaluate), outlives_screen=True)


def evaluate(call: Call) -> float | None:
    """Evaluate one model or several.

    Args:
        call: the command.

    Returns:
        The loss of the first model's first row, in nats.
    """
    settings = call.values(call.compose())
    del settings["recipe"]  # only what conf/data refers to
    config = parse(EvaluateConfig, {"data": None} | settings)

    from transformer_xl.commands.evaluation import evaluate_models  # takes seconds, which `--help` need not wait for

    return evaluate_models(config, command=call.command, given=call.given)
