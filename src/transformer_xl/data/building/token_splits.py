"""From files of token ids to the token files of a corpus's splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.cache import VOCABULARY, start_file, token_file
from transformer_xl.data.building.encoding import Tokens
from transformer_xl.data.building.splitting import between, by_shares, share_of
from transformer_xl.data.building.text import Stretch, total_size
from transformer_xl.data.building.token_reading import TokenChunk, read_tokens
from transformer_xl.data.building.writing import START_DTYPE, Written, token_dtype, write_tokens
from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.sources.files import SPLITS, Cut, Origin, Sources
from transformer_xl.data.tokenizer import Tokenizer, load_vocabulary
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError

_TOKENS_AT_ONCE = 1 << 21
_ROWS_AT_ONCE = 1 << 16
_SEARCHED_TOKENS = 1 << 20


def write_token_splits(config: TokensConfig, sources: Sources, *, folder: Path) -> tuple[Tokenizer, dict[str, Written]]:
    """Check ids, split them, and write each split's files.

    Args:
        config: of the corpus.
        sources: its files.
        folder: gets the files of the splits, and the vocabulary.

    Returns:
        What the ids stand for, and what each split's files hold.

    Raises:
        UserError: a file does not hold ids below the vocabulary's size, or there are none.
    """
    vocabulary = _vocabulary(config)
    reader = _Reader(config, vocabulary, folder)
    whole = [reader.read(origin) for origin in sources.whole]
    named = {split: [reader.read(origin) for origin in sources.splits.get(split, ())] for split in SPLITS}
    documents = sum(len(stretch.rows) for stretch in [*whole, *(part for parts in named.values() for part in parts)])
    if config.end_of_document and config.documents != "none" and documents > 1:
        vocabulary = vocabulary.with_end_of_document()
    vocabulary.save(folder / VOCABULARY)
    if sources.cut is not None:
        named = _cut([stretch for stretch in whole if stretch.size], sources.cut, config, reader.dtype)
    if not total_size(named["train"]):
        raise UserError(f"{sources.setting}, which has no tokens for training")
    written = {}
    for split in SPLITS:
        written[split] = write_tokens(
            _tokens(named[split], reader.dtype),
            vocabulary=vocabulary,
            tokens=folder / token_file(split),
            starts=folder / start_file(split),
            are_documents=config.documents != "none",
            max_tokens=None if split == "train" else config.max_eval_tokens,
        )
        if config.documents == "none":
            (folder / start_file(split)).unlink()
            written[split] = written[split]._replace(documents=1)
    reader.remove_files()
    return vocabulary, written


def _vocabulary(config: TokensConfig) -> Tokenizer:
    if config.vocabulary is not None:
        return load_vocabulary(config.vocabulary)
    assert config.vocab_size is not None
    return SymbolTokenizer(config.vocab_size)


class _Reader:
    """Reads files of ids into flat ones."""

    def __init__(self, config: TokensConfig, vocabulary: Tokenizer, folder: Path) -> None:
        self.dtype = token_dtype(vocabulary.size)
        self._config = config
        self._vocab_size = vocabulary.size
        self._folder = folder
        self._paths: list[Path] = []

    def read(self, origin: Origin) -> Stretch:
        """Check a file's ids, and give them as a stretch of documents, its rows counting tokens."""
        path = self._folder / f"ids-{len(self._paths)}"
        starts = path.with_suffix(".starts")
        documents = self._config.documents
        assert documents in ("none", "file", "record")
        written = write_tokens(
            map(_plain, read_tokens(origin, vocab_size=self._vocab_size, documents=documents)),
            vocabulary=SymbolTokenizer(self._vocab_size),
            tokens=path,
            starts=starts,
            are_documents=True,
            max_tokens=None,
        )
        self._paths += [path, starts]
        edges = np.fromfile(starts, START_DTYPE)
        if not len(edges):
            edges = np.zeros(1, np.int64)
        rows = np.stack([edges, np.append(edges[1:], written.tokens)], axis=1)
        return Stretch(path=path, rows=rows[rows[:, 0] < rows[:, 1]], source=origin.file.path)

    def remove_files(self) -> None:
        """Remove the flat files."""
        for path in self._paths:
            path.unlink()


def _plain(chunk: TokenChunk) -> Tokens:
    """Take ids that are not of a text; documents get their end later, when their number is known."""
    begins = len(chunk.starts) > 0 and chunk.starts[0] == 0
    return Tokens(ids=chunk.ids, starts=chunk.starts, begins=begins, unknown=0, ends=False, text_bytes=0)


def _cut(
    stretches: Sequence[Stretch], cut: Cut, config: TokensConfig, dtype: np.dtype[Any]
) -> dict[str, list[Stretch]]:
    if cut.by == "hash":
        return by_shares(stretches, cut, shares=partial(_shares, dtype=dtype))
    total = total_size(stretches)
    test_from = int(total * (1 - cut.test)) if cut.test else total
    valid_from = int(total * (1 - (cut.valid + cut.test))) if cut.valid else test_from
    if config.max_eval_tokens is not None:
        test_from = max(test_from, total - config.max_eval_tokens)
        valid_from = max(valid_from, test_from - config.max_eval_tokens) if cut.valid else test_from
    are_documents = config.documents != "none"
    second = _border(stretches, at=test_from, bound=total) if are_documents else test_from
    same = valid_from == test_from
    first = second if same else _border(stretches, at=valid_from, bound=test_from) if are_documents else valid_from
    edges = (0, first, max(first, second), total)
    return {split: between(stretches, edges[part], edges[part + 1]) for part, split in enumerate(SPLITS)}


def _border(stretches: Sequence[Stretch], *, at: int, bound: int) -> int:
    """Move a cut forward to the next document, where one begins before `bound` and not far away."""
    position = 0
    for stretch in stretches:
        if at <= position + stretch.size:
            edges = position + np.append(0, (stretch.rows[:, 1] - stretch.rows[:, 0]).cumsum())
            border = int(edges[np.searchsorted(edges, at)])
            return border if border < bound and border - at <= _SEARCHED_TOKENS else at
        position += stretch.size
    return at


def _mapped(stretch: Stretch, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.memmap(stretch.path, dtype, mode="r")


def _shares(stretch: Stretch, dtype: np.dtype[Any]) -> Iterator[float]:
    tokens = _mapped(stretch, dtype)
    for start, stop in stretch.rows.tolist():
        # the same whatever the type, which grows with the vocabulary
        yield share_of(hashlib.blake2b(tokens[start:stop].astype("<u4").tobytes(), digest_size=8).digest())


def _tokens(stretches: Sequence[Stretch], dtype: np.dtype[Any]) -> Iterator[Tokens]:
    """Yield the ids of documents, in chunks."""
    for stretch in stretches:
        tokens = _mapped(stretch, dtype)
        first, count = 0, len(stretch.rows)
        while first < count:
            rows = stretch.rows[first : first + _ROWS_AT_ONCE]
            lengths = rows[:, 1] - rows[:, 0]
            together = max(1, int(np.searchsorted(lengths.cumsum(), _TOKENS_AT_ONCE, side="right")))
            yield from _chunks(tokens, rows[:together], begins=stretch.begins or first > 0)
            first += together


def _chunks(tokens: NDArray[Any], rows: NDArray[np.int64], *, begins: bool) -> Iterator[Tokens]:
    if len(rows) > 1:
        ids = np.concatenate([tokens[start:stop] for start, stop in rows.tolist()])
        starts = np.concatenate([np.zeros(1, np.int64), (rows[:, 1] - rows[:, 0]).cumsum()[:-1]])
        yield Tokens(
            ids=ids, starts=starts if begins else starts[1:], begins=begins, unknown=0, ends=True, text_bytes=0
        )
        return
    start, stop = rows[0].tolist()
    for place in range(start, stop, _TOKENS_AT_ONCE):
        is_first = begins and place == start
        yield Tokens(
            ids=tokens[place : min(place + _TOKENS_AT_ONCE, stop)],
            starts=np.zeros(int(is_first), np.int64),
            begins=is_first,
            unknown=0,
            ends=place + _TOKENS_AT_ONCE >= stop,
            text_bytes=0,
        )
