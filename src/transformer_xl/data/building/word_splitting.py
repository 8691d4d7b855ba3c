"""Texts to words, the different ones apart, so that each is looked up once a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.reading import Reading

_BLANKS = "\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a" + (
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What `str.split` takes for white space beyond ASCII's own."""


class Words(NamedTuple):
    """The words of some texts, one behind the other.

    Attributes:
        different: each word once, in the order of first occurrence.
        numbers: the place in `different` of each word of the texts.
        lengths: words of each text.
    """

    different: list[str]
    numbers: NDArray[np.int64]
    lengths: list[int]

    @property
    def counts(self) -> list[int]:
        """Count how often each of the different words comes."""
        counts: list[int] = np.bincount(self.numbers, minlength=len(self.different)).tolist()
        return counts


def split_texts(reading: Reading, texts: Sequence[str], *, ends: bool) -> Words:
    """Split texts into words as `reading` has it.

    Args:
        reading: of words.
        texts: documents, or parts of them that end after a line or a blank.
        ends: whether the last of them is the end of its document, as all others are.
    """
    import pyarrow
    from pyarrow import compute

    last = len(texts) - 1
    if reading.is_raw_wikitext:
        lists = [reading.words(text, is_whole=ends or number < last) for number, text in enumerate(texts)]
        lengths = list(map(len, lists))
        words = pyarrow.array([word for some in lists for word in some], pyarrow.string())
    else:
        blanked = [_blanked(reading.marked(text, is_whole=ends or number < last)) for number, text in enumerate(texts)]
        found = compute.ascii_split_whitespace(pyarrow.array(blanked, pyarrow.string()))
        # an empty text is split into one empty word
        lengths = [
            length if text else 0 for length, text in zip(found.value_lengths().to_pylist(), blanked, strict=True)
        ]
        words = found.flatten()
        if 0 in lengths:
            words = words.filter(compute.not_equal(words, ""))
    encoded = words.dictionary_encode()
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Words(different=encoded.dictionary.to_pylist(), numbers=numbers, lengths=lengths)


def _blanked(text: str) -> str:
    """Write all white space as ASCII's, none of it at the beginning and the end."""
    blanks = _BLANKS[:4] if text.isascii() else _BLANKS
    for blank in blanks:
        if blank in text:
            text = text.replace(blank, " ")
    return text.strip()
