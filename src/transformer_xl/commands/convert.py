"""`txl-convert`: write a model in another format."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_xl.commands import cli
from transformer_xl.commands.call import take_plugins
from transformer_xl.errors import UserError


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Convert a model, say what was written, and return the exit status, as `cli.ended` does."""
    return cli.ended(lambda: _convert(arguments))


def _convert(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="txl-convert",
        usage="txl-convert SOURCE TARGET [--to native|transformers] [plugins=[FILE]]",
        description="Write a Transformer-XL in another format. Nothing that is in its files is run.",
    )
    parser.add_argument(
        "source", help="what txl.load_model loads: a run folder, a checkpoint, a model's folder, a Hub name"
    )
    parser.add_argument("target", help="a new folder")
    parser.add_argument(
        "--to", choices=("native", "transformers"), default="native", help="the format; default: native"
    )
    options = parser.parse_args(take_plugins(arguments))
    target = Path(os.path.expanduser(options.target))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists, and must be a new or empty folder")
    from transformer_xl.interop.load import load_model  # torch takes seconds, which `--help` need not wait for
    from transformer_xl.interop.native import save_model
    from transformer_xl.interop.published import save_transformers

    model = load_model(options.source)
    (save_model if options.to == "native" else save_transformers)(model, target)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = f"{parameters:,} parameters, {model.vocab_size:,} symbols"
    known = "" if model.vocabulary is None else f", its {model.vocabulary.kind} vocabulary"
    print(f"wrote {target} ({options.to}): {model.config.label}, {size}{known}")
    return 0
