"""What is counted in a corpus's token files, in memory that does not grow with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_xl.config import Config
from transformer_xl.data.corpus import Corpus
from transformer_xl.data.segments import EvalWindows, training_segments
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError

_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a run reads a split.

    Attributes:
        left_over: predictions at the end that no lane holds.
        segments: that an epoch reads, the first one where lengths are drawn.
    """

    left_over: int
    segments: int


@dataclass(frozen=True, kw_only=True)
class SplitFigures:
    """A split in numbers.

    Attributes:
        tokens: in all.
        documents: how many; None where the text is not divided into documents.
        longest_document: in tokens.
        text_bytes: of UTF-8; None where the tokens are of no text.
        unknown: tokens that stand for what the vocabulary lacks; None where another program wrote the ids.
        batch_size: lanes, of training or of evaluation.
        segment_len: tokens a step and lane, of training or of evaluation.
        layout: None where the split is too short for it.
        refusal: why it is.
    """

    tokens: int
    documents: int | None
    longest_document: int | None
    text_bytes: int | None
    unknown: int | None
    batch_size: int
    segment_len: int
    layout: Layout | None
    refusal: str | None

    @property
    def bytes_a_token(self) -> float | None:
        """Divide; None where there is nothing to divide."""
        return self.text_bytes / self.tokens if self.text_bytes and self.tokens else None

    @property
    def unknown_share(self) -> float | None:
        """Divide; None where there is nothing to divide."""
        return self.unknown / self.tokens if self.unknown is not None and self.tokens else None


def figures_of(corpus: Corpus, config: Config, *, split: str) -> SplitFigures:
    """Count what a split holds, and lay it out as a run would.

    Args:
        corpus: opened.
        config: whose `data` lays out training, and whose `eval` the other splits.
        split: train, valid or test.
    """
    cached = corpus.cached.splits[split]
    lengths = config.data if split == "train" else config.eval
    layout, refusal = None, None
    try:
        layout = _training_layout(corpus, config) if split == "train" else _evaluation_layout(corpus, config, split)
    except UserError as error:
        refusal = str(error)
    starts = cached.starts
    return SplitFigures(
        tokens=len(cached.tokens),
        documents=None if starts is None else count_documents(starts, tokens=len(cached.tokens)),
        longest_document=None if starts is None else _longest_document(starts, tokens=len(cached.tokens)),
        text_bytes=corpus.text_bytes.get(split),
        unknown=None if isinstance(corpus.config, TokensConfig) else cached.unknown,
        batch_size=lengths.batch_size,
        segment_len=lengths.segment_len,
        layout=layout,
        refusal=refusal,
    )


def _training_layout(corpus: Corpus, config: Config) -> Layout:
    data = config.data
    lanes = corpus.lanes("train", batch_size=data.batch_size, segment_len=data.segment_len, evaluation=False)
    segments = training_segments(
        lane_len=lanes.lane_len,
        segment_len=data.segment_len,
        segment_len_sd=data.segment_len_sd,
        half_segments=data.half_segments,
        seed=config.seed,
    )
    return Layout(left_over=lanes.left_over, segments=segments.count(0))


def _evaluation_layout(corpus: Corpus, config: Config, split: str) -> Layout:
    lengths = config.eval
    lanes = corpus.lanes(split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
    windows = EvalWindows(lane_len=lanes.lane_len, segment_len=lengths.segment_len, stride=lengths.stride)
    return Layout(left_over=lanes.left_over, segments=len(windows))


def count_documents(starts: NDArray[np.int64], *, tokens: int) -> int:
    """Count documents, one that began before the split's first token included.

    Args:
        starts: places where documents begin, ascending.
        tokens: in the split.
    """
    begins_before = tokens > 0 and (not len(starts) or int(starts[0]) > 0)
    return len(starts) + begins_before


def _longest_document(starts: NDArray[np.int64], *, tokens: int) -> int:
    longest, last = 0, 0
    for first in range(0, len(starts), _AT_ONCE):
        borders = starts[first : first + _AT_ONCE]
        longest = max(longest, int(np.diff(borders, prepend=last).max()))
        last = int(borders[-1])
    return max(longest, tokens - last)


def symbol_counts(tokens: NDArray[np.unsignedinteger[Any]], *, size: int) -> NDArray[np.int64]:
    """Count how often each id occurs.

    Args:
        tokens: ids, memory-mapped.
        size: of the vocabulary.
    """
    counts = np.zeros(size, np.int64)
    for first in range(0, len(tokens), _AT_ONCE):
        counts += np.bincount(tokens[first : first + _AT_ONCE], minlength=size)
    return counts


def most_frequent(counts: NDArray[np.int64], *, number: int) -> list[int]:
    """Give the ids that occur most often, the most frequent first; none that does not occur."""
    ids = np.argsort(-counts, kind="stable")[:number]
    return [int(symbol) for symbol in ids if counts[symbol]]
