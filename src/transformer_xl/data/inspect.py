"""What is in a corpus's token files, what a run would suffer from, and whether they are as they were written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.config import Config
from transformer_xl.data.build import find_sources
from transformer_xl.data.corpus import SIDECAR, SOURCES, Corpus, file_sha256, token_file
from transformer_xl.data.lanes import SPLITS, Segments, eval_starts
from transformer_xl.data_config import TokensConfig
from transformer_xl.errors import UserError
from transformer_xl.scores import MUCH_UNKNOWN

_AT_ONCE = 1 << 20
_MUCH_LOST = 0.01
"""Share of a text's bytes."""
_FAR_FROM_SORTED = 0.05
"""Of the training tokens: so many more could lie in the shortlist if ids were sorted by frequency."""


@dataclass(frozen=True, kw_only=True)
class SplitFigures:
    """A split in numbers, and laid out as a run would.

    Attributes:
        tokens: in all.
        documents: how many; None where the text is not divided into documents.
        longest_document: in tokens; None likewise.
        text_bytes: of UTF-8; None where the tokens are of no text.
        unknown: tokens that stand for what the vocabulary lacks; None where another program wrote the ids.
        batch_size: lanes, of training or of evaluation.
        segment_len: tokens per step and lane, of training or of evaluation.
        left_over: predictions at the end that no lane holds; None where the split is too short.
        segments: that an epoch reads, the first one where lengths are drawn; None likewise.
        refusal: why the split is too short.
    """

    tokens: int
    documents: int | None
    longest_document: int | None
    text_bytes: int | None
    unknown: int | None
    batch_size: int
    segment_len: int
    left_over: int | None
    segments: int | None
    refusal: str | None


def figures_of(corpus: Corpus, config: Config, *, split: str) -> SplitFigures:
    """Count what a split holds and lay it out as `config` does, in memory that does not grow with it."""
    files = corpus.files.splits[split]
    lengths = config.data if split == "train" else config.eval
    left_over = segments = refusal = None
    try:
        left_over, segments = _layout(corpus, config, split)
    except UserError as error:
        refusal = str(error)
    starts, tokens = files.starts, len(files.tokens)
    return SplitFigures(
        tokens=tokens,
        documents=None if starts is None else count_documents(starts, tokens=tokens),
        longest_document=None if starts is None else _longest_document(starts, tokens=tokens),
        text_bytes=corpus.text_bytes.get(split),
        unknown=None if isinstance(corpus.config, TokensConfig) else files.unknown,
        batch_size=lengths.batch_size,
        segment_len=lengths.segment_len,
        left_over=left_over,
        segments=segments,
        refusal=refusal,
    )


def _layout(corpus: Corpus, config: Config, split: str) -> tuple[int, int]:
    """Return the predictions that no lane holds, and the segments of an epoch."""
    if split != "train":
        lengths = config.eval
        lanes = corpus.lanes(split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
        windows = eval_starts(lane_len=lanes.lane_len, segment_len=lengths.segment_len, stride=lengths.stride)
        return lanes.left_over, len(windows)
    data = config.data
    lanes = corpus.lanes(split, batch_size=data.batch_size, segment_len=data.segment_len, evaluation=False)
    segments = Segments(
        lane_len=lanes.lane_len,
        segment_len=data.segment_len,
        segment_len_sd=data.segment_len_sd,
        half_segments=data.half_segments,
        seed=config.seed,
    )
    return lanes.left_over, segments.count(0)


def count_documents(starts: Any, *, tokens: int) -> int:
    """Count documents by their `starts`, one that began before the split's first token included."""
    begins_before = tokens > 0 and (not len(starts) or int(starts[0]) > 0)
    return len(starts) + begins_before


def _longest_document(starts: Any, *, tokens: int) -> int:
    longest, last = 0, 0
    for first in range(0, len(starts), _AT_ONCE):
        borders = starts[first : first + _AT_ONCE]
        longest = max(longest, int(np.diff(borders, prepend=last).max()))
        last = int(borders[-1])
    return max(longest, tokens - last)


def symbol_counts(tokens: Any, *, size: int) -> NDArray[np.int64]:
    """Count how often each of `size` ids occurs."""
    counts = np.zeros(size, np.int64)
    for first in range(0, len(tokens), _AT_ONCE):
        counts += np.bincount(tokens[first : first + _AT_ONCE], minlength=size)
    return counts


def warnings_about(
    corpus: Corpus, config: Config, figures: Mapping[str, SplitFigures], counts: NDArray[np.int64]
) -> list[str]:
    """Return a sentence for each thing about the corpus that a run would suffer from; `counts` are those of the ids."""
    return [
        *_equal_splits(corpus, figures),
        *_about_lengths(figures),
        *_about_unknown(corpus, figures),
        *_about_lost_text(corpus),
        *_about_cutoffs(corpus, config, counts),
    ]


def _about_lost_text(corpus: Corpus) -> Iterator[str]:
    splits = corpus.files.splits.items()
    shares = {split: found.lost_bytes / max(found.lost_bytes + found.text_bytes, 1) for split, found in splits}
    much = [f"{100 * share:.1f} % of the {split} split" for split, share in shares.items() if share > _MUCH_LOST]
    if much:
        yield (
            f"{', '.join(much)} does not come back from the {corpus.vocabulary.kind} tokenizer: its bytes are not in "
            "bits per byte"
        )


def _equal_splits(corpus: Corpus, figures: Mapping[str, SplitFigures]) -> Iterator[str]:
    files = json.loads((corpus.folder / SIDECAR).read_bytes())["files"]
    checksums = {split: files[token_file(split)]["sha256"] for split, found in figures.items() if found.tokens}
    for one, other in combinations(checksums, 2):
        if checksums[one] == checksums[other]:
            yield f"the {one} and {other} splits hold the same tokens, so that their scores say the same"


def _about_lengths(figures: Mapping[str, SplitFigures]) -> Iterator[str]:
    short = {}
    for split, found in figures.items():
        if not found.tokens:
            yield f"the {split} split is empty"
        elif found.refusal is not None:
            yield found.refusal
        elif found.tokens <= found.batch_size * found.segment_len:
            short[split] = found
    if not short:
        return
    least = min(short.values(), key=lambda found: found.tokens)
    tokens, lanes, length = least.tokens, least.batch_size, least.segment_len
    fits = [f"eval.batch_size={(tokens - 1) // length}"] if tokens > length else []
    fits += [f"eval.segment_len={(tokens - 1) // lanes}"] if tokens > lanes else []
    have = " and ".join(f"the {split} split has {found.tokens:,} tokens" for split, found in short.items())
    yield (
        f"{have}, fewer than a segment for each lane (eval.batch_size {lanes} and eval.segment_len {length} would fill "
        f"{lanes * length + 1:,}), so that memory hardly counts in its score: "
        + (" or ".join(fits) + " would fit" if fits else "a longer text is needed")
    )


def _about_unknown(corpus: Corpus, figures: Mapping[str, SplitFigures]) -> Iterator[str]:
    shares = {split: (found.unknown or 0) / max(found.tokens, 1) for split, found in figures.items()}
    much = [f"{share:.2%} of the {split} split" for split, share in shares.items() if share > MUCH_UNKNOWN]
    if much:
        yield (
            f"{', '.join(much)} became <unk>, which the {corpus.vocabulary.kind} vocabulary of "
            f"{corpus.vocabulary.size:,} writes for what it lacks: its scores are easier than they look"
        )


def _about_cutoffs(corpus: Corpus, config: Config, counts: NDArray[np.int64]) -> Iterator[str]:
    if not config.model.cutoffs:
        return
    cutoffs = [cutoff for cutoff in config.model.cutoffs if cutoff < corpus.vocabulary.size]
    if not cutoffs:
        return
    setting = f"model.cutoffs is {cutoffs}, which needs ids sorted by frequency"
    if not corpus.vocabulary.by_frequency:
        yield (
            f"{setting}, and those of the {corpus.vocabulary.kind} vocabulary are not: train.py would refuse; use "
            "model.cutoffs=[] model.div_val=1"
        )
        return
    shortlist, total = cutoffs[0], int(counts.sum())
    held = int(counts[:shortlist].sum()) / total
    could_hold = int(-np.partition(-counts, shortlist)[:shortlist].sum()) / total
    if could_hold - held > _FAR_FROM_SORTED:
        yield (
            f"{setting}, and they are not: those below {shortlist:,} are {100 * held:.1f} % of the training tokens, "
            f"and the {shortlist:,} most frequent are {100 * could_hold:.1f} %; use model.cutoffs=[] model.div_val=1"
        )


class Verified(NamedTuple):
    """What was compared: how many files of how many bytes, and a sentence for each that is not as it was."""

    files: int
    bytes: int
    differences: list[str]


def verify(corpus: Corpus) -> Verified:
    """Read every token file and source file of a corpus, and compare it with its checksum.

    Raises:
        UserError: a source file cannot be read.
    """
    written = json.loads((corpus.folder / SIDECAR).read_bytes())["files"]
    sources = find_sources(corpus.config, announce=print).files
    differences = []
    for name, entry in written.items():
        path = corpus.folder / name
        if not path.is_file() or path.stat().st_size != entry["size"]:
            differences.append(f"{path} has not the {entry['size']:,} bytes that it was written with")
        elif file_sha256(path) != entry["sha256"]:
            differences.append(f"{path} differs from what was written: its sha256 is not {entry['sha256']}")
    listed = corpus.folder / SOURCES
    if listed.is_file() and file_sha256(listed) == written[SOURCES]["sha256"]:
        # the same files in the same order, or the token files would not be valid
        entries: Sequence[Any] = json.loads(listed.read_bytes())
        differences += [
            f"{file.path} differs from what the token files were made of: its sha256 is not {entry['sha256']}"
            for file, entry in zip(sources, entries, strict=True)
            if file_sha256(file.path) != entry["sha256"]
        ]
    size = sum(entry["size"] for entry in written.values()) + sum(file.size for file in sources)
    return Verified(len(written) + len(sources), size, differences)


def figures_of_all(corpus: Corpus, config: Config) -> dict[str, SplitFigures]:
    """Return the figures of all splits."""
    return {split: figures_of(corpus, config, split=split) for split in SPLITS}
