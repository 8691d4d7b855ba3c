"""`txl-data`: prepare a corpus's token files ahead of training, and say what is in them."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Never

from transformer_xl.errors import UserError

if TYPE_CHECKING:
    from transformer_xl.config import Config
    from transformer_xl.data.corpus import Corpus

_COMMANDS = ("prepare", "inspect")
_DIFFERS = 1
_INTERRUPTED = 130
_DESCRIPTION = """\
Turn a corpus into the token files that train.py reads, and say what is in them.

  prepare   builds the files where they are not ready, so that a run starts at once
  inspect   builds them too, and shows files, splits, tokens, bytes a token, vocabulary, most frequent symbols, the
            share of <unk>, the longest document, first lines, and what is unusual for a run with these settings

Settings are those of train.py, and the same token files are found by both:

  txl-data prepare data=wikitext103
  txl-data prepare data=text data.path=FOLDER data.tokenizer=bpe
  txl-data inspect data=text data.path=FOLDER data.tokenizer=bpe model=txl_base data.batch_size=4
  txl-data inspect data=enwik8 --verify

`python train.py --help` lists all settings. Nothing is written but the token files, below data.cache_dir."""


def main() -> None:
    """Run the command line and exit with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a text may hold what the terminal cannot show
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the lines, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Prepare or inspect a corpus.

    Args:
        arguments: of the command line.

    Returns:
        The exit status: 0; 1 where `--verify` finds a file that is not as it was written; 2 after a mistake, which is
        said in one sentence.
    """
    try:
        options = _parser().parse_intermixed_args(arguments)
        command, *settings = options.words or [None]
        _check(command, verify=options.verify)
        return _run(command, settings, verify=options.verify)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (UserError, OSError) as error:
        from transformer_xl.commands import cli  # Hydra takes a moment, which `--help` need not wait for

        sentence = cli.sentence_of(error)
        if sentence is None:
            raise
        return cli.tell(sentence)


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals are mistakes like all others."""

    def error(self, message: str) -> Never:
        raise UserError(f"{message}; {self.prog} --help explains the command")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="txl-data",
        usage="%(prog)s prepare|inspect [group=choice] [key=value] ... [--verify]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="with inspect: first read every token file and source file, and compare their checksums",
    )
    return parser


def _check(command: str | None, *, verify: bool) -> None:
    if command not in _COMMANDS:
        asked = "no command is given" if command is None else f"{command!r} is no command"
        raise UserError(
            f"{asked}, and the first word must be {' or '.join(_COMMANDS)}, as in txl-data inspect data=ptb"
        )
    if verify and command != "inspect":
        raise UserError(f"--verify is given with {command}, and belongs to inspect")


def _run(command: str, settings: list[str], *, verify: bool) -> int:
    from transformer_xl.commands.cli import compose
    from transformer_xl.commands.corpus_report import prepared_lines

    config = compose(*settings)
    corpus = _open(config, command=command)
    if command == "prepare":
        for line in prepared_lines(corpus):
            print(line)
        return 0
    if verify and not _verify(corpus):
        return _DIFFERS
    _inspect(corpus, config)
    return 0


def _open(config: Config, *, command: str) -> Corpus:
    """Open the corpus as a run does that begins from no other."""
    from transformer_xl.data.corpus import open_corpus
    from transformer_xl.data_config import RecallConfig, StoredConfig

    if isinstance(config.data, RecallConfig):
        raise UserError(
            f"data={config.data.kind} is made up while it is read, and there is nothing to {command}: choose a corpus "
            "of files, as in data=stdlib"
        )
    for name, source in (("init_from", config.init_from), ("resume", config.resume)):
        if source is not None:
            raise UserError(
                f"{name} is {source!r}, and must be left out: txl-data reads a corpus by its own vocabulary, and "
                "train.py by a trained model's when it starts"
            )
    assert isinstance(config.data, StoredConfig)
    return open_corpus(config.data, announce=print, seed=config.seed)


def _inspect(corpus: Corpus, config: Config) -> None:
    from rich.console import Console

    from transformer_xl.commands import corpus_report
    from transformer_xl.commands.corpus_figures import figures_of, symbol_counts
    from transformer_xl.commands.corpus_warnings import warnings_about
    from transformer_xl.data.sources.files import SPLITS

    console = Console(highlight=False)
    for line in corpus_report.opening_lines(corpus):
        print(line)
    figures = {split: figures_of(corpus, config, split=split) for split in SPLITS}
    lengths_vary = config.data.segment_len_sd > 0 or config.data.half_segments > 0
    corpus_report.print_splits(console, figures, lengths_vary=lengths_vary)
    counts = symbol_counts(corpus.splits["train"], size=corpus.vocabulary.size)
    corpus_report.print_symbols(console, corpus, counts)
    for line in corpus_report.first_lines(corpus):
        print(line)
    for line in warnings_about(corpus, config, figures, counts):
        print(f"warning  {line}")


def _verify(corpus: Corpus) -> bool:
    """Compare all files with their checksums, say what came of it, and whether all are as they were."""
    from transformer_xl.commands.verifying import verify

    outcome = verify(corpus, announce=print)
    for line in outcome.differences:
        print(f"differs  {line}")
    if outcome.differences:
        print("         data.rebuild=true builds the token files again")
    else:
        print(f"verified {outcome.files:,} files, {outcome.bytes:,} bytes")
    return not outcome.differences
