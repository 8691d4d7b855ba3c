"""In which units the scores of a corpus are read, and what must stand beside them."""

from __future__ import annotations

import math

from transformer_xl.data.corpus import SPLITS
from transformer_xl.data.lanes import Dataset
from transformer_xl.scores import BITS_PER_BYTE, PERPLEXITY, Unit


def unit_of(data: Dataset, split: str) -> Unit:
    """Give the unit of a split's scores: the vocabulary's, but perplexity for sub-words of what is no text."""
    name = data.vocabulary.unit
    if not data.text_bytes:
        return Unit(name=PERPLEXITY if name == BITS_PER_BYTE else name, tokens_per_byte=None)
    text_bytes = data.text_bytes[split]
    return Unit(name=name, tokens_per_byte=data.counts()[split] / text_bytes if text_bytes else math.nan)


def units_of(data: Dataset) -> dict[str, Unit]:
    """Give the units of all splits, by the split."""
    return {split: unit_of(data, split) for split in SPLITS}


def beside_scores(data: Dataset) -> str:
    """Write what must stand beside each score of this corpus, ` (newline=drop)`; nothing for most."""
    return f" ({', '.join(f'{name}={value}' for name, value in data.read_as.items())})" if data.read_as else ""
