"""What a person should know about a corpus before training on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from transformer_xl.commands.corpus_figures import SplitFigures
from transformer_xl.config import Config
from transformer_xl.data.building.cache import SIDECAR, token_file
from transformer_xl.data.corpus import Corpus
from transformer_xl.model.embedding import kept_cutoffs
from transformer_xl.scores import MUCH_UNKNOWN

_FAR_FROM_SORTED = 0.05
"""Of the training tokens: so many more could lie in the shortlist if ids were sorted by frequency."""


def warnings_about(
    corpus: Corpus, config: Config, figures: Mapping[str, SplitFigures], counts: NDArray[np.int64]
) -> list[str]:
    """Give a sentence for each thing about the corpus that a run would suffer from.

    Args:
        corpus: opened.
        config: of the run that would be trained on it.
        figures: of each split.
        counts: of each id in the training split.
    """
    return [
        *_equal_splits(corpus, figures),
        *(line for split, found in figures.items() for line in _about_length(split, found)),
        *(line for split, found in figures.items() for line in _about_unknown(corpus, split, found)),
        *_about_cutoffs(corpus, config, counts),
    ]


def _equal_splits(corpus: Corpus, figures: Mapping[str, SplitFigures]) -> list[str]:
    files = json.loads((corpus.folder / SIDECAR).read_bytes())["files"]
    checksums = {split: files[token_file(split)]["sha256"] for split, found in figures.items() if found.tokens}
    return [
        f"the {one} and {other} splits hold the same tokens, so that their scores say the same"
        for one, other in combinations(checksums, 2)
        if checksums[one] == checksums[other]
    ]


def _about_length(split: str, found: SplitFigures) -> list[str]:
    if not found.tokens:
        return [f"the {split} split is empty"]
    if found.refusal is not None:
        return [found.refusal]
    needed = found.batch_size * found.segment_len + 1
    if found.tokens >= needed:
        return []
    fits = [f"eval.batch_size={(found.tokens - 1) // found.segment_len}"] if found.tokens > found.segment_len else []
    fits += [f"eval.segment_len={(found.tokens - 1) // found.batch_size}"] if found.tokens > found.batch_size else []
    return [
        f"the {split} split has {found.tokens:,} tokens, fewer than a segment for each lane (eval.batch_size "
        f"{found.batch_size} and eval.segment_len {found.segment_len} would fill {needed:,}), so that memory hardly "
        "counts in its score: " + (" or ".join(fits) + " would fit" if fits else "a longer text is needed")
    ]


def _about_unknown(corpus: Corpus, split: str, found: SplitFigures) -> list[str]:
    share = found.unknown_share
    if share is None or share <= MUCH_UNKNOWN:
        return []
    return [
        f"{100 * share:.2f} % of the {split} split became <unk>, which the {corpus.vocabulary.kind} "
        f"vocabulary of {corpus.vocabulary.size:,} writes for what it lacks: its scores are easier than they look"
    ]


def _about_cutoffs(corpus: Corpus, config: Config, counts: NDArray[np.int64]) -> list[str]:
    cutoffs = kept_cutoffs(config.model, vocab_size=corpus.vocabulary.size)
    if not cutoffs:
        return []
    setting = f"model.cutoffs is {cutoffs}, which needs ids sorted by frequency"
    if not corpus.vocabulary.by_frequency:
        return [
            f"{setting}, and those of the {corpus.vocabulary.kind} vocabulary are not: train.py would refuse; use "
            "model.cutoffs=[] model.div_val=1"
        ]
    shortlist, total = cutoffs[0], int(counts.sum())
    held = int(counts[:shortlist].sum()) / total
    could_hold = int(-np.partition(-counts, shortlist)[:shortlist].sum()) / total
    if could_hold - held <= _FAR_FROM_SORTED:
        return []
    return [
        f"{setting}, and they are not: those below {shortlist:,} are {100 * held:.1f} % of the training tokens, and "
        f"the {shortlist:,} most frequent are {100 * could_hold:.1f} %; use model.cutoffs=[] model.div_val=1"
    ]
