"""`txl-data`: prepare a corpus's token files ahead of training, and say what is in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_xl.commands import cli
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.errors import UserError

if TYPE_CHECKING:
    from transformer_xl.config import Config
    from transformer_xl.data.corpus import Corpus

_COMMANDS = ("prepare", "inspect")
_DIFFERS = 1
_READ_BY = ("tokenizer", "dtype", "newline", "documents", "reset_memory", "order", "split")
_FILES_SHOWN = 5
_SYMBOLS_SHOWN = 20
_CHARACTERS_SHOWN = 200
_TOKENS_DECODED = 1000
"""More than `_CHARACTERS_SHOWN` bytes can be: what is shown does not end within a character."""
_NOTHING = "-"
_HELP = """\
usage: txl-data prepare|inspect [group=choice] [key=value] ... [--verify]

Turn a corpus into the token files that training reads, and say what is in them.

  prepare   builds the files where they are not ready, so that a run starts at once
  inspect   builds them too, and shows files, splits, tokens, bytes per token, vocabulary, most frequent symbols, the
            share of <unk>, the longest document, first lines, and what is unusual for a run with these settings;
            with --verify it first reads every token file and source file, and compares their checksums

Settings are those of txl-train, and the same token files are found by both:

  txl-data prepare data=wikitext103
  txl-data prepare data=text data.path=FOLDER data.tokenizer=bpe
  txl-data inspect data=text data.path=FOLDER data.tokenizer=bpe model=txl_base data.batch_size=4
  txl-data inspect data=enwik8 --verify

`txl-train --help` lists all settings. Nothing is written but the token files, below data.cache_dir."""


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Prepare or inspect a corpus.

    Args:
        arguments: of the command line.

    Returns:
        The exit status, as `cli.ended` does; 1 where `--verify` finds a file that is not as it was written.
    """
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    words = [argument for argument in arguments if argument != "--verify"]
    return cli.ended(lambda: _run(words, verify="--verify" in arguments))


def _run(words: list[str], *, verify: bool) -> int:
    command = next((word for word in words if "=" not in word), None)
    if command not in _COMMANDS:
        asked = "no command is given" if command is None else f"{command!r} is no command"
        raise UserError(f"{asked}: txl-data prepare or inspect SETTINGS; txl-data --help explains both")
    if verify and command != "inspect":
        raise UserError(f"--verify is given with {command}, and belongs to inspect")
    from transformer_xl.commands.compose import compose

    words.remove(command)
    config = compose(*words)
    corpus = _open(config, command=command)
    if command == "prepare":
        _print_prepared(corpus)
    elif verify and not _verified(corpus):
        return _DIFFERS
    else:
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
                "training by a trained model's when it starts"
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
    from transformer_xl.data.inspect import figures_of_all, symbol_counts, warnings_about

    _print_opening(corpus)
    figures = figures_of_all(corpus, config)
    lengths_vary = config.data.segment_len_sd > 0 or config.data.half_segments > 0
    rows = {
        "tokens": [f"{found.tokens:,}" for found in figures.values()],
        "documents": [_number(found.documents) for found in figures.values()],
        "longest document (tokens)": [_number(found.longest_document) for found in figures.values()],
        "bytes of text": [_number(found.text_bytes) for found in figures.values()],
        "bytes per token": [_ratio(found.text_bytes, found.tokens, "{:.3f}") for found in figures.values()],
        "became <unk>": [_ratio(found.unknown, found.tokens, "{:.2%}") for found in figures.values()],
        "lanes x segment": [f"{found.batch_size:,} x {found.segment_len:,}" for found in figures.values()],
        "predictions left over": [_number(found.left_over) for found in figures.values()],
        f"segments of {'the first' if lengths_vary else 'an'} epoch": [
            _number(found.segments) for found in figures.values()
        ],
    }
    print_table(["split", *figures], [[label, *cells] for label, cells in rows.items()], boxed=True)
    counts = symbol_counts(corpus.splits["train"], size=corpus.vocabulary.size)
    total, used = int(counts.sum()), int((counts > 0).sum())
    print(f"Most frequent in training, where {used:,} of {_counted(len(counts), 'symbol')} occur:")
    symbols = [
        [corpus.vocabulary.symbol(symbol), f"{symbol:,}", f"{counts[symbol]:,}", f"{counts[symbol] / total:.2%}"]
        for symbol in (-counts).argsort(kind="stable")[: min(_SYMBOLS_SHOWN, used)].tolist()
    ]
    print_table(["symbol", "id", "count", "share"], symbols, boxed=True)
    _print_first_lines(corpus)
    for line in warnings_about(corpus, config, figures, counts):
        print(f"warning  {line}")


def _print_opening(corpus: Corpus) -> None:
    """Say what a corpus is made of, how it is read, and where its token files are."""
    from transformer_xl.data.corpus import SOURCES
    from transformer_xl.data.lanes import beside_scores

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


def _ratio(one: int | None, other: int, form: str) -> str:
    return form.format(one / other) if one is not None and other else _NOTHING
