"""What `txl-data` prints about a corpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transformer_xl.commands.corpus_figures import SplitFigures, count_documents, most_frequent
from transformer_xl.commands.tables import printable
from transformer_xl.data.building.cache import SOURCES
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.sources.files import SPLITS
from transformer_xl.data.units import beside_scores
from transformer_xl.data_config import StoredConfig

_READ_BY = ("tokenizer", "dtype", "newline", "documents", "reset_memory", "order", "split")
_FILES_SHOWN = 5
_SYMBOLS_SHOWN = 20
_CHARACTERS_SHOWN = 200
_TOKENS_DECODED = 1000
"""More than `_CHARACTERS_SHOWN` bytes can be: what is shown does not end within a character."""
_NOTHING = "-"


def prepared_lines(corpus: Corpus) -> Iterator[str]:
    """Say where the token files are, and what each split holds."""
    yield f"folder   {printable(str(corpus.folder))}"
    for split, found in corpus.cached.splits.items():
        starts, tokens = found.starts, len(found.tokens)
        documents = "" if starts is None else f", {_counted(count_documents(starts, tokens=tokens), 'document')}"
        text = f", {corpus.text_bytes[split]:,} bytes of text" if corpus.text_bytes else ""
        yield f"{split:8} {_counted(tokens, 'token')}{documents}{text}"


def opening_lines(corpus: Corpus) -> Iterator[str]:
    """Say what a corpus is made of, how it is read, and where its token files are."""
    fingerprint, vocabulary = corpus.fingerprint, corpus.vocabulary
    yield f"data     {corpus.name}{beside_scores(corpus)}"
    yield (
        f"source   {_counted(fingerprint.files, 'file')}, {_counted(fingerprint.bytes, 'byte')}, "
        f"sha256 {fingerprint.sha256}"
    )
    sources = json.loads((corpus.folder / SOURCES).read_bytes())
    for source in sources[:_FILES_SHOWN]:
        yield f"         {printable(source['path'])}, {_counted(source['size'], 'byte')}, sha256 {source['sha256']}"
    if len(sources) > _FILES_SHOWN:
        listed = printable(str(corpus.folder / SOURCES))
        yield f"         and {len(sources) - _FILES_SHOWN:,} more, which {listed} lists"
    yield f"read     {', '.join(f'{name} {value}' for name, value in _read_by(corpus.config))}"
    order = "sorted by frequency" if vocabulary.by_frequency else "not sorted by frequency"
    yield f"vocab    {vocabulary.kind}, {_counted(vocabulary.size, 'symbol')}, {order}"
    yield f"folder   {printable(str(corpus.folder))}"


def _read_by(config: StoredConfig) -> Iterator[tuple[str, str]]:
    settings = vars(config)
    for name in _READ_BY:
        if settings.get(name) is not None:
            yield name, printable(str(settings[name]))


def print_splits(console: Console, figures: Mapping[str, SplitFigures], *, lengths_vary: bool) -> None:
    """Print the figures of all splits, a column each.

    Args:
        console: gets them.
        figures: of each split.
        lengths_vary: whether training draws the lengths of its segments anew for each epoch.
    """
    rows: dict[str, Callable[[SplitFigures], str]] = {
        "tokens": lambda found: f"{found.tokens:,}",
        "documents": lambda found: _number(found.documents),
        "longest document (tokens)": lambda found: _number(found.longest_document),
        "bytes of text": lambda found: _number(found.text_bytes),
        "bytes a token": lambda found: _NOTHING if (ratio := found.bytes_a_token) is None else f"{ratio:.3f}",
        "became <unk>": lambda found: _NOTHING if (share := found.unknown_share) is None else f"{100 * share:.2f} %",
        "lanes x segment": lambda found: f"{found.batch_size:,} x {found.segment_len:,}",
        "predictions left over": lambda found: _NOTHING if found.layout is None else f"{found.layout.left_over:,}",
        f"segments of {'the first' if lengths_vary else 'an'} epoch": lambda found: (
            _NOTHING if found.layout is None else f"{found.layout.segments:,}"
        ),
    }
    table = Table("split")
    for split in figures:
        table.add_column(split, justify="right", no_wrap=True)
    for label, shown in rows.items():
        table.add_row(label, *map(shown, figures.values()))
    console.print(table)


def print_symbols(console: Console, corpus: Corpus, counts: NDArray[np.int64]) -> None:
    """Print the most frequent symbols of the training split.

    Args:
        console: gets them.
        corpus: opened.
        counts: of each id in the training split.
    """
    total, used = int(counts.sum()), int(np.count_nonzero(counts))
    console.print(f"Most frequent in training, where {used:,} of {_counted(len(counts), 'symbol')} occur:")
    table = Table("symbol")
    for heading in ("id", "count", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for symbol in most_frequent(counts, number=_SYMBOLS_SHOWN):
        count = int(counts[symbol])
        table.add_row(
            Text(corpus.vocabulary.symbol(symbol)), f"{symbol:,}", f"{count:,}", f"{100 * count / total:.2f} %"
        )
    console.print(table)


def first_lines(corpus: Corpus) -> Iterator[str]:
    """Give the beginning of each split as its ids decode, what a terminal must not be given as escapes."""
    for split in SPLITS:
        tokens = corpus.splits[split]
        text = corpus.vocabulary.decode(tokens[:_TOKENS_DECODED])
        is_whole = len(tokens) <= _TOKENS_DECODED and len(text) <= _CHARACTERS_SHOWN
        lines = f"{text[:_CHARACTERS_SHOWN]}{'' if is_whole else ' ...'}".split("\n")
        for place, line in enumerate(lines):
            yield f"{'' if place else split:8} {printable(line)}".rstrip()


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"
