"""`txl-data`: prepare a corpus's token files ahead of training, and say what is in them."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never

from transformer_xl.commands.tables import printable
from transformer_xl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from transformer_xl.config import Config
    from transformer_xl.data.corpus import Corpus
    from transformer_xl.data.inspect import SplitFigures

_COMMANDS = ("prepare", "inspect")
_DIFFERS = 1
_INTERRUPTED = 130
_READ_BY = ("tokenizer", "dtype", "newline", "documents", "reset_memory", "order", "split")
_FILES_SHOWN = 5
_SYMBOLS_SHOWN = 20
_CHARACTERS_SHOWN = 200
_TOKENS_DECODED = 1000
"""More than `_CHARACTERS_SHOWN` bytes can be: what is shown does not end within a character."""
_NOTHING = "-"
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

    config = compose(*settings)
    corpus = _open(config, command=command)
    if command == "prepare":
        _print_prepared(corpus)
        return 0
    if verify and not _verified(corpus):
        return _DIFFERS
    _inspect(corpus, config)
    return 0


def _open(config: Config, *, command: str) -> Corpus:
    """Open the corpus as a run does that begins from no other."""
    from transformer_xl.data.build import open_corpus
    from transformer_xl.data_config import StoredConfig

    if not isinstance(config.data, StoredConfig):
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
    return open_corpus(config.data, announce=print, seed=config.seed)


def _verified(corpus: Corpus) -> bool:
    """Compare all files with their checksums, say what came of it, and return whether all are as they were."""
    from transformer_xl.data.inspect import verify

    print("data: reading all files, to compare them with their checksums")
    found = verify(corpus)
    for line in found.differences:
        print(f"differs  {line}")
    if found.differences:
        print("         data.rebuild=true builds the token files again")
    else:
        print(f"verified {found.files:,} files, {found.bytes:,} bytes")
    return not found.differences


def _print_prepared(corpus: Corpus) -> None:
    from transformer_xl.data.inspect import count_documents

    print(f"folder   {printable(str(corpus.folder))}")
    for split, found in corpus.files.splits.items():
        starts, tokens = found.starts, len(found.tokens)
        documents = "" if starts is None else f", {_counted(count_documents(starts, tokens=tokens), 'document')}"
        text = f", {corpus.text_bytes[split]:,} bytes of text" if corpus.text_bytes else ""
        print(f"{split:8} {_counted(tokens, 'token')}{documents}{text}")


def _inspect(corpus: Corpus, config: Config) -> None:
    from rich.console import Console

    from transformer_xl.data.inspect import figures_of_all, symbol_counts, warnings_about

    console = Console(highlight=False)
    _print_opening(corpus)
    figures = figures_of_all(corpus, config)
    lengths_vary = config.data.segment_len_sd > 0 or config.data.half_segments > 0
    console.print(_table_of_splits(figures, epoch="the first epoch" if lengths_vary else "an epoch"))
    counts = symbol_counts(corpus.splits["train"], size=corpus.vocabulary.size)
    _print_symbols(console, corpus, counts)
    _print_first_lines(corpus)
    for line in warnings_about(corpus, config, figures, counts):
        print(f"warning  {line}")


def _print_opening(corpus: Corpus) -> None:
    """Say what a corpus is made of, how it is read, and where its token files are."""
    from transformer_xl.data.corpus import SOURCES
    from transformer_xl.data.units import beside_scores

    fingerprint, vocabulary = corpus.fingerprint, corpus.vocabulary
    print(f"data     {corpus.name}{beside_scores(corpus)}")
    files, size = _counted(fingerprint.files, "file"), _counted(fingerprint.bytes, "byte")
    print(f"source   {files}, {size}, sha256 {fingerprint.sha256}")
    sources = json.loads((corpus.folder / SOURCES).read_bytes())
    for source in sources[:_FILES_SHOWN]:
        print(f"         {printable(source['path'])}, {_counted(source['size'], 'byte')}, sha256 {source['sha256']}")
    if len(sources) > _FILES_SHOWN:
        listed = printable(str(corpus.folder / SOURCES))
        print(f"         and {len(sources) - _FILES_SHOWN:,} more, which {listed} lists")
    settings = {name: getattr(corpus.config, name, None) for name in _READ_BY}
    shown = [f"{name} {printable(str(value))}" for name, value in settings.items() if value is not None]
    print(f"read     {', '.join(shown)}")
    order = "sorted by frequency" if vocabulary.by_frequency else "not sorted by frequency"
    print(f"vocab    {vocabulary.kind}, {_counted(vocabulary.size, 'symbol')}, {order}")
    print(f"folder   {printable(str(corpus.folder))}")


def _table_of_splits(figures: Mapping[str, SplitFigures], *, epoch: str) -> Table:
    from rich.table import Table

    rows: dict[str, Callable[[SplitFigures], str]] = {
        "tokens": lambda found: f"{found.tokens:,}",
        "documents": lambda found: _number(found.documents),
        "longest document (tokens)": lambda found: _number(found.longest_document),
        "bytes of text": lambda found: _number(found.text_bytes),
        "bytes per token": lambda found: _NOTHING if (ratio := found.bytes_per_token) is None else f"{ratio:.3f}",
        "became <unk>": lambda found: _NOTHING if (share := found.unknown_share) is None else f"{100 * share:.2f} %",
        "lanes x segment": lambda found: f"{found.batch_size:,} x {found.segment_len:,}",
        "predictions left over": lambda found: _number(found.left_over),
        f"segments of {epoch}": lambda found: _number(found.segments),
    }
    table = Table("split")
    for split in figures:
        table.add_column(split, justify="right", no_wrap=True)
    for label, shown in rows.items():
        table.add_row(label, *map(shown, figures.values()))
    return table


def _print_symbols(console: Console, corpus: Corpus, counts: Any) -> None:
    """Print the most frequent symbols of the training split."""
    from rich.table import Table
    from rich.text import Text

    total, used = int(counts.sum()), int((counts > 0).sum())
    console.print(f"Most frequent in training, where {used:,} of {_counted(len(counts), 'symbol')} occur:")
    table = Table("symbol")
    for heading in ("id", "count", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for symbol in (-counts).argsort(kind="stable")[: min(_SYMBOLS_SHOWN, used)].tolist():
        name, count = Text(corpus.vocabulary.symbol(symbol)), int(counts[symbol])
        table.add_row(name, f"{symbol:,}", f"{count:,}", f"{100 * count / total:.2f} %")
    console.print(table)


def _print_first_lines(corpus: Corpus) -> None:
    """Print the beginning of each split as its ids decode, what a terminal must not be given as escapes."""
    for split, tokens in corpus.splits.items():
        text = corpus.vocabulary.decode(tokens[:_TOKENS_DECODED])
        is_whole = len(tokens) <= _TOKENS_DECODED and len(text) <= _CHARACTERS_SHOWN
        lines = f"{text[:_CHARACTERS_SHOWN]}{'' if is_whole else ' ...'}".split("\n")
        for place, line in enumerate(lines):
            print(f"{'' if place else split:8} {printable(line)}".rstrip())


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"
