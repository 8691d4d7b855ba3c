"""`txl-data`: prepare a corpus's token files ahead of training, and say what is in them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_xl.commands import cli
from transformer_xl.commands.tables import print_table, printable
from transformer_xl.data.lanes import beside_scores
from transformer_xl.errors import UserError

if TYPE_CHECKING:
    from transformer_xl.config import Config
    from transformer_xl.data.corpus import Corpus

_SYMBOLS_SHOWN = 20
_CHARACTERS_SHOWN = 200
_TOKENS_DECODED = 1000
"""More than `_CHARACTERS_SHOWN` bytes can be: what is shown does not end within a character."""
_AT_ONCE = 1 << 20
_HELP = """\
usage: txl-data prepare|inspect [group=choice] [key=value] ...

  prepare   builds the token files of a corpus where they are not ready, so that a run starts at once
  inspect   builds them too, and shows splits, tokens, documents, vocabulary, most frequent symbols, the share of <unk>,
            first lines, and what is unusual for a run with these settings

Settings are those of txl-train, whose --help lists them:

  txl-data prepare data=wikitext103
  txl-data inspect data=text data.path=FOLDER data.tokenizer=bpe model=txl_base data.batch_size=4"""


def main() -> None:
    """Run the command line and exit with its status."""
    cli.main(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Prepare or inspect a corpus, as the arguments of the command line say; return the exit status."""
    if {"-h", "--help"} & set(arguments):
        print(_HELP)
        return 0
    return cli.ended(lambda: _run(list(arguments)))


def _run(words: list[str]) -> int:
    command = next((word for word in words if "=" not in word), None)
    if command not in ("prepare", "inspect"):
        raise UserError(f"{command or 'nothing'} is no command: txl-data prepare|inspect SETTINGS (txl-data --help)")
    from transformer_xl.commands.compose import compose
    from transformer_xl.data.build import open_corpus
    from transformer_xl.data_config import StoredConfig

    words.remove(command)
    config = compose(*words)
    if not isinstance(config.data, StoredConfig):
        raise UserError(f"data={config.data.kind} is made up while it is read, and there is nothing to {command}")
    corpus = open_corpus(config.data, announce=print, seed=config.seed)
    print(f"folder   {printable(str(corpus.folder))}")
    if command == "inspect":
        _inspect(corpus, config)
        return 0
    for split, tokens in corpus.counts().items():
        text = f", {corpus.text_bytes[split]:,} bytes of text" if corpus.text_bytes else ""
        print(f"{split:8} {tokens:,} tokens{text}")
    return 0


def _inspect(corpus: Corpus, config: Config) -> None:
    splits, vocabulary, fingerprint = corpus.sidecar["splits"], corpus.vocabulary, corpus.fingerprint
    print(f"data     {corpus.name}{beside_scores(corpus)}")
    files = "1 file" if fingerprint.files == 1 else f"{fingerprint.files:,} files"
    print(f"source   {files}, {fingerprint.bytes:,} bytes, sha256 {fingerprint.sha256}")
    order = "sorted by frequency" if vocabulary.by_frequency else "not sorted by frequency"
    print(f"vocab    {vocabulary.kind}, {vocabulary.size:,} symbols, {order}")
    rows = [["tokens", *(f"{tokens:,}" for tokens in corpus.counts().values())]]
    if corpus.starts:
        edges = {split: np.append(corpus.starts[split][:], tokens) for split, tokens in corpus.counts().items()}
        rows.append(["documents", *(f"{len(some) - 1:,}" for some in edges.values())])
        rows.append(["longest document (tokens)", *(f"{np.diff(some, prepend=0).max():,}" for some in edges.values())])
    if corpus.text_bytes:
        rows.append(["bytes of text", *(f"{found['text_bytes']:,}" for found in splits.values())])
        rows.append(["bytes per token", *(_ratio(found, "text_bytes", "{:.3f}") for found in splits.values())])
        rows.append(["bytes that do not come back", *(f"{found['lost_bytes']:,}" for found in splits.values())])
        rows.append(["became <unk>", *(_ratio(found, "unknown", "{:.2%}") for found in splits.values())])
    print_table(["split", *splits], rows, boxed=True)
    counts, training = np.zeros(vocabulary.size, np.int64), corpus.tokens["train"]
    for first in range(0, len(training), _AT_ONCE):
        counts += np.bincount(training[first : first + _AT_ONCE], minlength=vocabulary.size)
    used = int((counts > 0).sum())
    print(f"Most frequent in training, where {used:,} of {vocabulary.size:,} symbols occur:")
    symbols = [
        [vocabulary.symbol(symbol), f"{symbol:,}", f"{counts[symbol]:,}", f"{counts[symbol] / len(training):.2%}"]
        for symbol in (-counts).argsort(kind="stable")[: min(_SYMBOLS_SHOWN, used)].tolist()
    ]
    print_table(["symbol", "id", "count", "share"], symbols, boxed=True)
    _print_first_lines(corpus)
    needed = {"train": config.data.batch_size * config.data.segment_len}
    least = config.eval.batch_size * config.eval.segment_len
    short = [f"{split} {count:,}" for split, count in corpus.counts().items() if count <= needed.get(split, least)]
    if short:
        print(f"warning  too few tokens ({', '.join(short)}): fewer than a segment for each lane of this run")


def _ratio(found: dict[str, int], name: str, form: str) -> str:
    return form.format(found[name] / found["tokens"]) if found["tokens"] else "-"


def _print_first_lines(corpus: Corpus) -> None:
    """Print the beginning of each split as its ids decode, what a terminal must not be given as escapes."""
    for split, tokens in corpus.tokens.items():
        text = corpus.vocabulary.decode(tokens[:_TOKENS_DECODED])
        is_whole = len(tokens) <= _TOKENS_DECODED and len(text) <= _CHARACTERS_SHOWN
        lines = f"{text[:_CHARACTERS_SHOWN]}{'' if is_whole else ' ...'}".split("\n")
        for place, line in enumerate(lines):
            print(f"{'' if place else split:8} {printable(line)}".rstrip())
