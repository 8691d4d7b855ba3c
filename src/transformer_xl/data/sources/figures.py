"""How many tokens and symbols the paper's corpora have, and where a corpus here differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformer_xl.data_config import PublishedConfig


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Tokens of each split and size of the vocabulary, as published; None: not known."""

    train: int | None = None
    valid: int | None = None
    test: int | None = None
    vocabulary: int | None = None


EXPECTED: dict[tuple[str, str], Figures] = {
    ("wikitext103", "keep"): Figures(train=103_227_021, valid=217_646, test=245_569, vocabulary=267_735),
    ("wikitext2", "keep"): Figures(train=2_088_628, valid=217_646, test=245_569, vocabulary=33_278),
    ("enwik8", "drop"): Figures(vocabulary=204),
    ("enwik8", "keep"): Figures(train=90_000_000, valid=5_000_000, test=5_000_000, vocabulary=205),
    ("text8", "drop"): Figures(train=90_000_000, valid=5_000_000, test=5_000_000, vocabulary=27),
    ("lm1b", "keep"): Figures(vocabulary=793_471),
    # 9,999 words, `<unk>` and N among them, and `<eos>`
    ("ptb", "keep"): Figures(train=929_589, valid=73_760, test=82_430, vocabulary=10_000),
}
"""By `data.kind` and `data.newline`, with the corpus's default tokenizer."""

_CHARACTERS = ("enwik8", "text8")
_NAMES = {"train": "training tokens", "valid": "validation tokens", "test": "test tokens"}


def deviations(config: PublishedConfig, counts: Mapping[str, int], vocab_size: int) -> list[str]:
    """Say which figures of a corpus are not the published ones, a sentence each.

    Args:
        config: of the corpus; nothing is compared where its tokenizer, line ends or documents are not the published
            ones.
        counts: tokens of `train`, `valid` and `test`.
        vocab_size: symbols of its vocabulary.
    """
    figures = EXPECTED.get((config.kind, config.newline))
    tokenizer = "char" if config.kind in _CHARACTERS else "word"
    if figures is None or config.tokenizer != tokenizer or config.documents != "none":
        return []
    published = {"train": figures.train, "valid": figures.valid, "test": figures.test}
    compared = [(_NAMES[split], counts[split], expected) for split, expected in published.items()]
    compared.append(("symbols in its vocabulary", vocab_size, figures.vocabulary))
    return [
        f"{config.kind} has {here:,} {what} here, and {expected:,} where it was published"
        for what, here, expected in compared
        if expected is not None and here != expected
    ]
