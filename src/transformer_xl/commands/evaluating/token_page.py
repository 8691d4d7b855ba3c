"""A page of HTML that shows a text, each token coloured by what it cost the model; it needs nothing but itself."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from torch import Tensor

from transformer_xl.commands.evaluating.token_markup import STYLE, legend, plain, span
from transformer_xl.commands.evaluating.token_texts import Piece, TokenTexts
from transformer_xl.data.batch import Batch
from transformer_xl.data.lanes import NOT_COUNTED
from transformer_xl.data.tokenizer import Vocabulary
from transformer_xl.errors import naming_file

_PAGE_BEGINS = """\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{notes}
<p class="legend">What a token cost, in nats, from: {legend}</p>
<main dir="auto">"""

_PAGE_ENDS = """</main>
<p>{summary}</p>
</body>
</html>
"""


class TokenPage:
    """Writes the page as tokens come, in constant memory, to a temporary name, which `with` renames at its end.

    Attributes:
        tokens: how many were predicted so far.
    """

    def __init__(
        self, path: Path, vocabulary: Vocabulary, *, title: str, notes: Sequence[str], max_tokens: int
    ) -> None:
        """Begin a page.

        Args:
            path: of the page.
            vocabulary: of the tokens.
            title: what was read by which model.
            notes: lines below it, such as the lengths.
            max_tokens: predictions that it shows; further ones are left out.
        """
        self.tokens = 0
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._vocabulary = vocabulary
        self._title = title
        self._notes = notes
        self._max_tokens = max_tokens
        self._texts: TokenTexts[float | None] = TokenTexts(vocabulary)
        self._has_begun = False
        self._nats = 0.0

    def __enter__(self) -> Self:
        with naming_file(self._temporary):
            self._file: TextIO = self._temporary.open("w", encoding="utf-8", newline="\n")
        notes = "\n".join(f"<p>{plain(note)}</p>" for note in self._notes)
        title = plain(self._title)
        self._write(_PAGE_BEGINS.format(title=title, style=STYLE, notes=notes, legend=legend()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._show(self._texts.finish())
            self._write(_PAGE_ENDS.format(summary=self._summary()))
        self._file.close()
        if kind is None:
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink()

    @property
    def is_full(self) -> bool:
        """Say whether further tokens would be left out."""
        return self.tokens >= self._max_tokens

    def take(self, batch: Batch, nll: Tensor) -> None:
        """Add what a segment or window counts of its first lane; as `read_split` wants it."""
        if self.is_full:
            return
        if not self._has_begun:
            self.add(int(batch.tokens_BT[0, 0]), None)
        targets, losses = batch.targets_BT[0].tolist(), nll[0].tolist()
        for target, loss in zip(targets, losses, strict=True):
            if target != NOT_COUNTED and not self.is_full:
                self.add(target, loss)

    def add(self, number: int, nats: float | None) -> None:
        """Add a token.

        Args:
            number: its id.
            nats: what it cost; None: it was not predicted.
        """
        self._has_begun = True
        if nats is not None:
            self.tokens += 1
            self._nats += nats
        self._show(self._texts.add(number, nats))

    def _show(self, pieces: Iterable[Piece[float | None]]) -> None:
        for piece in pieces:
            self._write(span(piece, self._vocabulary))

    def _write(self, text: str) -> None:
        with naming_file(self._temporary):
            self._file.write(text)

    def _summary(self) -> str:
        if not self.tokens:
            return "Nothing was predicted."
        mean = self._nats / self.tokens
        return f"{self.tokens:,} tokens, {mean:.4f} nats each ({mean / math.log(2):.4f} bits)."
