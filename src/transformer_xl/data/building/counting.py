"""Vocabularies learnt from the text of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_xl.data.building.reading import Reading, misplaced
from transformer_xl.data.building.splitting import between
from transformer_xl.data.building.text import Stretch, read_chunks, total_size
from transformer_xl.data.tokenizer import EncodeError, Part, Tokenizer, character_border, utf8_text

JOB_BYTES = 32 << 20
"""Text that one process works on at a time."""
_WINDOW_BYTES = 1 << 20
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Learns vocabularies; `announce` gets a line before it takes long."""

    reading: Reading
    announce: Callable[[str], None]

    def build_vocabulary(self, splits: Mapping[str, Sequence[Stretch]]) -> Tokenizer:
        """Learn a vocabulary of all splits, or of the training split where its kind says so."""
        everything = [stretch for split in splits.values() for stretch in split]
        learns_from_all = self.reading.tokenizer.learns_from_all or self.reading.count_all
        stretches = everything if learns_from_all else splits["train"]
        if self.reading.tokenizer.sample_bytes is not None:
            megabytes = min(total_size(stretches), self.reading.tokenizer.sample_bytes) / 1e6
            self.announce(f"data: learning sub-words from {megabytes:,.1f} MB of text")
        return self.reading.tokenizer.learn(self._parts(stretches), self.reading.settings)

    def extend_vocabulary(
        self, vocabulary: Tokenizer, splits: Mapping[str, Sequence[Stretch]]
    ) -> tuple[Tokenizer, int]:
        """Append the symbols that a vocabulary lacks, keeping the numbers of the old ones; count the new ones too."""
        everything = [stretch for split in splits.values() for stretch in split]
        stretches = everything if vocabulary.learns_from_all else splits["train"]
        extended = vocabulary.extend(self._parts(stretches), self.reading.settings)
        return extended, extended.size - vocabulary.size

    def _parts(self, stretches: Sequence[Stretch]) -> Iterator[Part]:
        cls = self.reading.tokenizer
        sample = cls.sample_bytes is not None and total_size(stretches) > cls.sample_bytes
        if sample:
            stretches = _windows(stretches, sample_bytes=cls.sample_bytes or 0)
        for stretch in stretches:
            find_cut = character_border if sample else cls.learning_split_point
            for chunk in read_chunks(stretch, find_cut=find_cut):
                for number, part in enumerate(self.reading.parts(chunk)):
                    if sample:  # a window may begin or end inside a character
                        part = part._replace(data=part.data.decode(errors="ignore").encode())
                    elif not cls.any_bytes:
                        try:
                            utf8_text(part.data)
                        except EncodeError as error:
                            raise misplaced(self.reading, stretch, chunk, number, error) from error
                    yield part


def _windows(stretches: Sequence[Stretch], *, sample_bytes: int) -> list[Stretch]:
    """Return the windows of a large text that a fixed seed draws."""
    windows = -(-total_size(stretches) // _WINDOW_BYTES)
    drawn = np.random.Generator(np.random.PCG64(_SEED)).permutation(windows)
    taken = np.sort(drawn[: sample_bytes // _WINDOW_BYTES]).tolist()
    starts = (window * _WINDOW_BYTES for window in taken)
    return [part for start in starts for part in between(stretches, start, start + _WINDOW_BYTES)]
