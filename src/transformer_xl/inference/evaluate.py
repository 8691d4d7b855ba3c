"""Scores of a split: every prediction is made once, with a memory that goes from segment to segment, or in windows.

Letters: B lanes, T tokens of a segment, P positions of a lane.
"""

from __future__ import annotations

import gzip
import lzma
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_xl.data.lanes import NOT_COUNTED, Dataset, LaneSource, lanes_that_fill_memory
from transformer_xl.data.stream import EvalStream
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.model.streaming import stream
from transformer_xl.scores import Score

_POSITIONS_AT_ONCE = 1 << 16
_BUCKETS = 41
"""Powers of two, far beyond the longest text."""

Autocast = Callable[[], AbstractContextManager[object]]


def context_of(lengths: Any) -> Context:
    """Return the context that settings ask for which have these attributes, such as those of `eval.*`."""
    return Context(**{field.name: getattr(lengths, field.name) for field in fields(Context)})


class SplitLosses(NamedTuple):
    """The mean loss of a split, or of its beginning, and that of each position (lanes, positions), NaN: none."""

    score: Score
    losses: NDArray[np.floating[Any]]


@torch.no_grad()
def read_split(
    model: LanguageModel,
    source: LaneSource,
    context: Context,
    *,
    max_tokens: int | None = None,
    limit: int | None = None,
    zero_start: bool = False,
    autocast: Autocast,
    answers: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SplitLosses:
    """Read a split, every prediction once; windows (`context.stride`) never see memory.

    Args:
        model: in evaluation mode.
        source: the split's lanes.
        context: how to read.
        max_tokens: stop after the segment or window by which this many predictions are counted; None: read all.
        limit: stop after so many segments or windows; None: read all.
        zero_start: begin with a memory of zeros that are attended to, instead of an empty one.
        autocast: gives the context in which the model is called.
        answers: whether targets are answers, whose accuracy is measured too.
        progress: called after each segment with the predictions counted so far.
    """
    device, lanes = next(model.parameters()).device, source.batch_size
    session = stream(model, batch_size=lanes, **context.lengths)
    batches = EvalStream(
        source=source, segment_len=context.segment_len, stride=context.stride, lanes=range(lanes), device=device
    )
    overlap = 0 if context.stride is None else context.segment_len - context.stride
    nll_sum, right_sum = torch.zeros(2, dtype=torch.float64, device=device)
    tokens, found = 0, []
    with autocast():  # once for all segments: it keeps the weights that it rounds until it ends
        for batch in batches:
            if zero_start and batch.step == 1:
                batch.resets_BT[:, 0] = False  # which would hide the zeros
                session.start_from(model.zero_memory(batch_size=lanes, mem_len=context.mem_len))
            targets = batch.targets_BT.to(device)
            read, resets = batch.tokens_BT.to(device), batch.resets_BT.to(device)
            if answers:
                nll, right = session.answers(read, targets, resets)
                right_sum.add_(right.sum())
            else:
                nll = session.nll(read, targets, resets)
            nll_sum.add_(nll.sum(dtype=torch.float64))
            found.append(nll.masked_fill(targets == NOT_COUNTED, math.nan)[:, overlap if batch.step > 1 else 0 :])
            tokens += batch.counted
            if progress is not None:
                progress(tokens)
            if batch.step == limit or (max_tokens is not None and tokens >= max_tokens):
                break
    joined = torch.cat(found, dim=1)
    known = joined.to(torch.promote_types(joined.dtype, torch.float32)).cpu().numpy()
    losses = np.full((lanes, source.lane_len), math.nan, known.dtype)
    losses[:, : known.shape[1]] = known
    accuracy = float(right_sum) / tokens if answers and tokens else None
    return SplitLosses(Score(float(nll_sum) / tokens if tokens else math.nan, tokens, accuracy), losses)


class Classes(NamedTuple):
    """A class for each position (lanes, positions), and the first place, or distance, of each class."""

    of: NDArray[np.integer[Any]]
    labels: NDArray[np.int64]


class ClassMeans(NamedTuple):
    """Losses averaged by class: predictions, means, and standard errors as if losses were independent; NaN: none."""

    labels: NDArray[Any]
    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    errors: NDArray[np.float64]


def position_classes(source: LaneSource, context: Context) -> Classes:
    """Sort positions by their place in the segment or window, from 1.

    Without memory the first place has read one token, the second two, and so on: the fragmentation of the context. With
    a memory all have read about as much. Of windows that overlap only the first counts its first places.
    """
    longest = min(context.segment_len, source.lane_len)
    positions = np.arange(source.lane_len)
    step = context.segment_len if context.stride is None else context.stride
    windows = np.maximum(0, -(-(positions - context.segment_len + 1) // step))
    places = (positions - windows * step).astype(np.min_scalar_type(longest))
    return Classes(np.broadcast_to(places, (source.batch_size, source.lane_len)), np.arange(1, longest + 1))


def distance_classes(source: LaneSource) -> Classes:
    """Sort positions by how many tokens of its document a prediction can look back on, its input among them.

    The class k holds those of 2^k tokens and more, up to 2^(k+1) - 1. A document begins at a reset; in a corpus without
    borders of documents the whole lane is one.
    """
    buckets = np.empty((source.batch_size, source.lane_len), np.uint8)
    begun = np.zeros((source.batch_size, 1), np.int64)
    for start in range(0, source.lane_len, _POSITIONS_AT_ONCE):
        stop = min(start + _POSITIONS_AT_ONCE, source.lane_len)
        resets = source.read(epoch=0, lanes=range(source.batch_size), start=start, stop=stop).resets_BT
        positions = np.arange(start, stop)
        begins = np.maximum(np.maximum.accumulate(np.where(resets, positions, 0), axis=1), begun)
        begun = begins[:, -1:]
        buckets[:, start:stop] = np.frexp(positions - begins + 1)[1] - 1
    return Classes(buckets, 2 ** np.arange(_BUCKETS))


def mean_by_class(losses: NDArray[np.floating[Any]], classes: Classes) -> ClassMeans:
    """Average losses (lanes, positions), or differences, by class, up to the last that has any; NaN counts nowhere."""
    known = ~np.isnan(losses)
    values, chosen = losses[known].astype(np.float64), classes.of[known]
    counts, sums, squares = (np.bincount(chosen, weights) for weights in (None, values, values**2))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums / counts
        errors = np.sqrt(np.maximum(squares - sums * means, 0) / (counts * (counts - 1)))
    return ClassMeans(classes.labels[: len(counts)], counts, means, errors)


def unigram_score(data: Dataset) -> Score:
    """Score the test split by the training split's token frequencies, one added to each."""
    size = data.vocabulary.size
    train, test = (np.zeros(size, np.int64) for _ in range(2))
    for counts, split in ((train, "train"), (test, "test")):
        lanes = data.lanes(split, batch_size=1, segment_len=1, evaluation=True)
        for start in range(0, lanes.lane_len, _POSITIONS_AT_ONCE):
            stop = min(start + _POSITIONS_AT_ONCE, lanes.lane_len)
            targets = lanes.read(epoch=0, lanes=range(1), start=start, stop=stop).targets_BT
            counts += np.bincount(targets[targets != NOT_COUNTED], minlength=size)
    log_probs = np.log(train + 1) - math.log(train.sum() + size)
    return Score(float(-(test * log_probs).sum() / test.sum()), int(test.sum()))


def compressed_bits(data: Dataset, *, max_tokens: int) -> tuple[dict[str, float], int]:
    """Compress the test split's text itself, unlike a model, which has never seen it.

    Returns:
        bits per token for `gzip` and `xz` at their strongest, and how many tokens they were given.
    """
    lanes, vocabulary = data.lanes("test", batch_size=1, segment_len=1, evaluation=True), data.vocabulary
    tokens = min(lanes.lane_len, max_tokens)
    ids = lanes.read(epoch=0, lanes=range(1), start=0, stop=tokens).tokens_BT[0]
    text = vocabulary.decode_bytes(ids[ids != vocabulary.end_of_document])  # which stands for no text
    sizes = {"gzip": len(gzip.compress(text, 9)), "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))}
    return {name: size * 8 / tokens for name, size in sizes.items()}, tokens


class AttentionByDistance(NamedTuple):
    """What attention weighs, by how many tokens a key lies before the query; 0 is the query's own token.

    Attributes:
        weight_by_distance: (L, N, D), mean weight over all predictions; sums to 1 over the distances.
        share_seen: (D,), share of the predictions that see a key so far back.
        memory_share: (L, N), mean weight of all keys from before the segment together.
        predictions: how many the means are taken over.
    """

    weight_by_distance: NDArray[np.float64]
    share_seen: NDArray[np.float64]
    memory_share: NDArray[np.float64]
    predictions: int


@torch.no_grad()
def attention_by_distance(
    model: LanguageModel, source: LaneSource, context: Context, *, max_tokens: int, autocast: Autocast
) -> AttentionByDistance:
    """Read a split with the model's own memory, and average attention's weights by distance.

    Of the lanes only the first are read, so few that most predictions have a full memory. Letters: L layers, N heads,
    M memory slots, D = M + T distances from 0 on. Arguments as in `read_split`.
    """
    device = next(model.parameters()).device
    segment_len, mem_len = context.segment_len, (context.mem_len or 0) if context.stride is None else 0
    lanes = lanes_that_fill_memory(
        lanes=source.batch_size, segment_len=segment_len, mem_len=mem_len, max_tokens=max_tokens
    )
    reader = model.with_context(clamp_len=context.clamp_len, same_length=context.same_length)
    memory = reader.empty_memory(lanes, mem_len)
    weight_sum = memory_sum = torch.zeros((), dtype=torch.float64, device=device)
    seen, predictions = torch.zeros(mem_len + segment_len, dtype=torch.float64, device=device), 0
    batches = EvalStream(
        source=source, segment_len=segment_len, stride=context.stride, lanes=range(lanes), device=device
    )
    with autocast():
        for batch in batches:
            weights, memory = reader.attention_weights(batch.tokens_BT.to(device), memory, batch.resets_BT.to(device))
            queries, keys = weights.shape[-2:]
            counted = batch.targets_BT.to(device) != NOT_COUNTED
            place = torch.arange(keys, device=device)
            # a key that comes later has no weight, and adds nothing to distance 0
            distance = (place[keys - queries :, None] - place).clamp(min=0).flatten()
            summed = (weights * counted[:, None, :, None]).sum(dim=1, dtype=torch.float64)
            by_distance = summed.new_zeros(*summed.shape[:2], len(seen)).index_add_(2, distance, summed.flatten(2))
            weight_sum = weight_sum + by_distance
            memory_sum = memory_sum + summed[..., : keys - queries].sum(dim=(2, 3))
            visible = (weights[0] > 0).any(dim=1) & counted[..., None]  # of the first layer: all see the same
            seen.index_add_(0, distance, visible.sum(dim=0, dtype=torch.float64).flatten())
            predictions += int(counted.sum())
            if predictions >= max_tokens:
                break
    weight, share, memory_share = ((x / predictions).cpu().numpy() for x in (weight_sum, seen, memory_sum))
    return AttentionByDistance(weight, share, memory_share, predictions)
