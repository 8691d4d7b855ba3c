"""Text to token ids, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.building.reading import Reading, misplaced
from transformer_xl.data.building.text import Chunk, Stretch, read_chunks
from transformer_xl.data.tokenizer import Encoded, EncodeError, Part, Tokenizer

_EVAL_CHUNK_BYTES = 1 << 16


class Tokens(NamedTuple):
    """Ids of consecutive documents, or parts of them.

    Attributes:
        ids: in order.
        starts: places in `ids` where a document begins.
        begins: whether the first of them does, at 0; else `ids` go on with the document before.
        unknown: how many are `<unk>` for something that the vocabulary lacks.
        ends: whether the document that `ids` end with is whole.
        text_bytes: of the text that decoding them gives back.
        lost_bytes: of the text that decoding does not give back.
    """

    ids: NDArray[Any]
    starts: NDArray[np.int64]
    begins: bool
    unknown: int
    ends: bool
    text_bytes: int
    lost_bytes: int = 0


def encoded(
    reading: Reading, vocabulary: Tokenizer, stretches: Sequence[Stretch], *, short: bool = False
) -> Iterator[Tokens]:
    """Yield text as ids, in chunks (`short`: small ones)."""
    chunk_bytes = _EVAL_CHUNK_BYTES if short else None
    vocabulary = vocabulary.for_split_text() if reading.split_already else vocabulary
    for stretch in stretches:
        for chunk in read_chunks(stretch, find_cut=vocabulary.split_point, chunk_bytes=chunk_bytes):
            parts = reading.parts(chunk)
            found = _encode(reading, vocabulary, parts, chunk, stretch)
            lengths = [len(one.ids) for one in found]
            starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[:-1], dtype=np.int64)])
            yield Tokens(
                ids=np.concatenate([one.ids for one in found]),
                starts=starts[1:] if chunk.continues else starts,
                begins=not chunk.continues,
                unknown=sum(one.unknown for one in found),
                ends=chunk.ends,
                text_bytes=sum(one.text_bytes for one in found),
                lost_bytes=sum(len(part.data) - one.text_bytes for part, one in zip(parts, found, strict=True)),
            )


def _encode(
    reading: Reading, vocabulary: Tokenizer, parts: list[Part], chunk: Chunk, stretch: Stretch
) -> list[Encoded]:
    try:
        return vocabulary.encode_parts(parts)
    except EncodeError:
        for number, part in enumerate(parts):
            try:
                vocabulary.encode_part(part)
            except EncodeError as error:
                raise misplaced(reading, stretch, chunk, number, error) from error
        raise
