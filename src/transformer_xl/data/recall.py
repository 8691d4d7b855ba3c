"""A task that only memory solves: blocks of random symbols, each followed by its copy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.lanes import NOT_COUNTED, Fingerprint, Segment
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import RecallConfig
from transformer_xl.errors import UserError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(kw_only=True)
class RecallLanes:
    """Lanes of periods, a block and its copy, each lane starting at an offset of its own within the period.

    A target counts where it belongs to a copy whose original symbol the same lane has shown: a lane that starts
    inside a block cannot know what stood before. All values follow from `stream`, epoch, lane and position, so that
    any range can be read by itself. With `fixed` every epoch reads the same blocks: held-out ones for a score.
    """

    stream: str
    n_symbols: int
    block_len: int
    batch_size: int
    lane_len: int
    fixed: bool

    def __post_init__(self) -> None:
        self.predictions = self.batch_size * self.lane_len  # of which about half are counted

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        assert 0 <= start < stop <= self.lane_len
        keys = self._lane_keys(epoch, lanes=lanes)
        place = np.arange(start, stop + 1, dtype=np.int64) + self._offsets(keys)[:, None]
        period, phase = np.divmod(place, 2 * self.block_len)
        drawn = (period * self.block_len + phase % self.block_len).astype(np.uint64)
        # Keyed by the symbol's number within the lane, so that a copy draws what its block drew.
        symbols = (_mix(keys[:, None] + (drawn + np.uint64(2)) * _GOLDEN) % np.uint64(self.n_symbols)).astype(np.int64)
        copied = (phase >= self.block_len) & (np.arange(start, stop + 1) >= self.block_len)
        resets = np.zeros((len(lanes), stop - start), np.bool_)
        resets[:, : max(0, 1 - start)] = True
        return Segment(
            tokens_BT=np.ascontiguousarray(symbols[:, :-1]),
            targets_BT=np.where(copied, symbols, NOT_COUNTED)[:, 1:].copy(),
            resets_BT=resets,
        )

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        """Count the targets of positions [start, stop) that lie in copies, over all lanes."""
        offsets = self._offsets(self._lane_keys(epoch, lanes=range(self.batch_size)))
        first, past = max(start + 1, self.block_len), stop + 1
        if past <= first:
            return 0
        return int((self._copied_before(offsets + past) - self._copied_before(offsets + first)).sum())

    def _copied_before(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        period, phase = np.divmod(place, 2 * self.block_len)
        copied: NDArray[np.int64] = period * self.block_len + np.maximum(phase - self.block_len, 0)
        return copied

    def _lane_keys(self, epoch: int, *, lanes: range) -> NDArray[np.uint64]:
        digest = hashlib.sha256(f"{self.stream}/{0 if self.fixed else epoch}".encode()).digest()
        key = np.frombuffer(digest, ">u8", count=1).astype(np.uint64)
        return _mix(key + (np.array(lanes, np.uint64) + np.uint64(1)) * _GOLDEN)

    def _offsets(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (_mix(keys + _GOLDEN) % np.uint64(2 * self.block_len)).astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit counters into random bits: the output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Recall:
    """The task's splits, a `Dataset`; the training blocks follow from `seed`, those of valid and test do not."""

    name = "recall"
    unknown: Mapping[str, int] = {}
    text_bytes: Mapping[str, int] = {}
    read_as: Mapping[str, str] = {}

    def __init__(self, config: RecallConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self.vocabulary: Tokenizer = SymbolTokenizer(config.n_symbols)
        drawn_from = {"n_symbols": config.n_symbols, "block_len": config.block_len, "eval_tokens": config.eval_tokens}
        sha256 = hashlib.sha256(json.dumps(drawn_from, sort_keys=True).encode()).hexdigest()
        self.fingerprint = Fingerprint(files=0, bytes=0, sha256=sha256)

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split; the training split has as many fresh ones in every epoch."""
        held_out = self._config.eval_tokens
        return {"train": self._config.train_tokens, "valid": held_out, "test": held_out}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> RecallLanes:
        config, tokens = self._config, self.counts()[split]
        shortest = 2 * config.block_len if evaluation else max(2 * config.block_len, segment_len)
        if tokens // batch_size < shortest:
            setting = "data.train_tokens" if split == "train" else "data.eval_tokens"
            raise UserError(
                f"{setting} is {tokens}, and must be at least {batch_size * shortest}: {shortest} for each of the "
                f"{batch_size} lanes, a block and its copy and no less than a segment"
            )
        return RecallLanes(
            stream=f"train/{self._seed}" if split == "train" else split,
            n_symbols=config.n_symbols,
            block_len=config.block_len,
            batch_size=batch_size,
            lane_len=tokens // batch_size,
            fixed=evaluation,
        )
