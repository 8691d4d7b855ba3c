"""`txl-convert`: write a model in another format."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_xl import registry
from transformer_xl.errors import UserError

_FORMATS = ("native", "transformers")


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Convert a model; give the exit status: 0, or 2 after a mistake, which is said in one sentence.

    Args:
        arguments: of the command line.
    """
    try:
        options = _parser().parse_args(registry.take_plugins(arguments))
        print(_convert(options.source, Path(os.path.expanduser(options.target)), options.to))
    except (UserError, OSError) as error:
        from transformer_xl.commands.cli import sentence_of

        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return 2
    return 0


def _convert(source: str, target: Path, to: str) -> str:
    """Convert a model and say what was written."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target} exists, and must be a new or empty folder")
    from transformer_xl.interop.load import load_model  # torch takes seconds, which `--help` need not wait for
    from transformer_xl.interop.native import save_model
    from transformer_xl.interop.published import save_transformers

    model = load_model(source)
    save = {"native": save_model, "transformers": save_transformers}[to]
    save(model, target)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    vocabulary = "no vocabulary" if model.vocabulary is None else f"its {model.vocabulary.kind} vocabulary"
    size = f"{parameters:,} parameters, {model.vocab_size:,} symbols"
    return f"wrote {target} ({to}): {model.config.kind}, {size}, {vocabulary}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="txl-convert",
        usage="txl-convert SOURCE TARGET [--to native|transformers] [plugins=[FILE]]",
        description="Write a Transformer-XL in another format. Nothing that is in its files is run.",
    )
    parser.add_argument(
        "source",
        help="what txl.load_model loads: a run folder, a checkpoint, a folder of this program or of transformers, a "
        "checkpoint of NVIDIA's, exported weights of the published code, or owner/name[@revision] on the Hub",
    )
    parser.add_argument("target", help="a new folder")
    parser.add_argument(
        "--to",
        choices=_FORMATS,
        default="native",
        help="native: config.json, model.safetensors, vocabulary.json (default); transformers: what its "
        "TransfoXLLMHeadModel.from_pretrained reads",
    )
    return parser
