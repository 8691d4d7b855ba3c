"""A corpus in memory, of which a test says everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from transformer_xl.data.lanes import Fingerprint, Segment
from transformer_xl.data.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class OneLane:
    """All predictions of a text in one lane."""

    tokens: np.ndarray
    batch_size: int = 1

    @property
    def lane_len(self) -> int:
        return len(self.tokens) - 1

    @property
    def predictions(self) -> int:
        return self.lane_len

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        assert lanes == range(1)
        resets = np.zeros((1, stop - start), np.bool_)
        resets[:, : max(0, 1 - start)] = True
        return Segment(
            tokens_BT=self.tokens[None, start:stop].astype(np.int64),
            targets_BT=self.tokens[None, start + 1 : stop + 1].astype(np.int64),
            resets_BT=resets,
        )

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        return stop - start


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """A `Dataset` of given token ids."""

    vocabulary: Tokenizer
    splits: Mapping[str, np.ndarray]
    text_bytes: Mapping[str, int] = field(default_factory=dict)
    read_as: Mapping[str, str] = field(default_factory=dict)
    name: str = "text"
    fingerprint: Fingerprint = field(default=Fingerprint(files=1, bytes=1, sha256="0" * 64))
    unknown: Mapping[str, int] = field(default_factory=dict)
    answers: bool = False

    def counts(self) -> dict[str, int]:
        return {split: len(tokens) for split, tokens in self.splits.items()}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> OneLane:
        assert batch_size == 1
        return OneLane(tokens=np.asarray(self.splits[split]))


def made_up(vocabulary: Tokenizer, *, tokens: int = 10, text_bytes: int | None = None, **changes: object) -> MadeUp:
    """Give each split `tokens` times the id 0, as the tokens of a text of `text_bytes`; None: of no text."""
    splits = {split: np.zeros(tokens, np.int64) for split in ("train", "valid", "test")}
    sizes = {} if text_bytes is None else dict.fromkeys(splits, text_bytes)
    return MadeUp(**{"vocabulary": vocabulary, "splits": splits, "text_bytes": sizes, **changes})  # type: ignore[arg-type]
