"""What a model must beat: token frequencies, and general-purpose compressors."""

from __future__ import annotations

import gzip
import lzma
import math

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.lanes import NOT_COUNTED, Dataset, LaneSource
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.scores import Score

_POSITIONS_AT_ONCE = 1 << 20


def unigram_score(data: Dataset) -> Score:
    """Score the test split by the training split's token frequencies, one added to each."""
    size = data.vocabulary.size
    train = _target_counts(data.lanes("train", batch_size=1, segment_len=1, evaluation=True), size)
    test = _target_counts(data.lanes("test", batch_size=1, segment_len=1, evaluation=True), size)
    log_probs = np.log(train + 1) - math.log(train.sum() + size)
    return Score(float(-(test * log_probs).sum() / test.sum()), int(test.sum()))


def _target_counts(lanes: LaneSource, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    counts = np.zeros(size, np.int64)
    for start in range(0, lanes.lane_len, _POSITIONS_AT_ONCE):
        stop = min(start + _POSITIONS_AT_ONCE, lanes.lane_len)
        targets = lanes.read(epoch=0, lanes=range(1), start=start, stop=stop).targets_BT
        counts += np.bincount(targets[targets != NOT_COUNTED], minlength=size)
    return counts


def compressed_bits(data: Dataset, *, max_tokens: int) -> tuple[dict[str, float], int]:
    """Compress the test split's text itself, unlike a model, which has never seen it.

    Returns:
        bits a token for `gzip` and `xz` at their strongest, and how many tokens they were given.
    """
    lanes = data.lanes("test", batch_size=1, segment_len=1, evaluation=True)
    tokens = min(lanes.lane_len, max_tokens)
    ids = lanes.read(epoch=0, lanes=range(1), start=0, stop=tokens).tokens_BT[0]
    text = _bytes_of(ids, data.vocabulary)
    return {
        "gzip": len(gzip.compress(text, 9)) * 8 / tokens,
        "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) * 8 / tokens,
    }, tokens


def _bytes_of(ids: NDArray[np.int64], vocabulary: Tokenizer) -> bytes:
    """Write tokens as the bytes that they stand for; those of a text that is no UTF-8 as they are.

    The end of a document stands for none.
    """
    if vocabulary.end_of_document is not None:
        ids = ids[ids != vocabulary.end_of_document]
    return vocabulary.decode_bytes(ids)
