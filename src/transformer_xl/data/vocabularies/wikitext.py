"""The vocabulary of raw text that is split into words as WikiText is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_xl.data.vocabularies.moses import moses_rules
from transformer_xl.data.vocabularies.words import ListedWords, plain_lines, require_eos_and_unk


class WikitextVocabulary(ListedWords):
    """Words of raw text, split as WikiText's were: `23,000-year-old's` is `23 @,@ 000 @-@ year @-@ old 's`.

    `<eos>` (id 0) ends every line, case is kept. It splits as transformers' TransfoXLTokenizer does.
    """

    kind = "wikitext"

    def __init__(self, symbols: Sequence[str]) -> None:
        require_eos_and_unk(symbols)
        super().__init__(symbols)

    def extended(self, symbols: Sequence[str]) -> WikitextVocabulary:
        """Append words, keeping the numbers of the old ones."""
        return WikitextVocabulary([*self.symbols, *symbols])

    def encode(self, text: str) -> NDArray[np.int64]:
        """Turn a text into ids, `<eos>` for every line end in it; unknown words become `<unk>`.

        A last line without a line end gets no `<eos>`, so that a prompt can stop inside a line; a corpus closes it.
        """
        return self.look_up(moses_rules().split(plain_lines(text))).ids

    def decode(self, ids: ArrayLike) -> str:
        """Write the words of ids as plain text, `<eos>` as a line end."""
        lines: list[list[str]] = [[]]
        for word in self.words(ids):
            if word == self.end:
                lines.append([])
            else:
                lines[-1].append(word)
        return "\n".join(map(moses_rules().join, lines))
