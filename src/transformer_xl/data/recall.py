"""Tasks that only memory solves: blocks that return at a distance, and keys whose values are asked for again.

All values follow from a stream's name, epoch, lane and position, so that any range can be read by itself. Letters: B
lanes, P positions, E examples, K places of an example.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.lanes import NOT_COUNTED, Fingerprint, Segment
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import MqarConfig, RecallConfig, TaskConfig
from transformer_xl.errors import UserError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OF_MQAR = ("vocab_size", "n_pairs", "example_len", "power_a")


Places = tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]
"""Symbols (B, P) of some lanes, which of them are counted where they are targets, and where memory is reset."""


@dataclass(kw_only=True)
class TaskLanes(ABC):
    """Lanes of one period after another, each lane starting at an offset of its own within the period.

    With `fixed` every epoch reads the same: held-out values for a score.
    """

    stream: str
    batch_size: int
    lane_len: int
    fixed: bool
    shortest: ClassVar[int] = 1  # periods that a lane must have

    def __post_init__(self) -> None:
        self.predictions = self.batch_size * self.lane_len  # of which some are counted

    @property
    @abstractmethod
    def period(self) -> int:
        """Positions after which everything is drawn anew."""

    @abstractmethod
    def places(self, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> Places:
        """Return what stands at these positions of the lanes of these keys."""

    def read(self, *, epoch: int, lanes: range, start: int, stop: int) -> Segment:
        assert 0 <= start < stop <= self.lane_len
        positions = np.arange(start, stop + 1, dtype=np.int64)
        symbols, counted, resets = self.places(self._lane_keys(epoch, lanes=lanes), positions)
        return Segment(
            tokens_BT=np.ascontiguousarray(symbols[:, :-1]),
            targets_BT=np.where(counted, symbols, NOT_COUNTED)[:, 1:].copy(),
            resets_BT=(resets | (positions == 0))[:, :-1].copy(),
        )

    def counted(self, *, epoch: int, start: int, stop: int) -> int:
        """Count the targets of positions [start, stop) whose answer is determined, over all lanes."""
        keys = self._lane_keys(epoch, lanes=range(self.batch_size))
        return int(self.places(keys, np.arange(start + 1, stop + 1, dtype=np.int64))[1].sum())

    def _lane_keys(self, epoch: int, *, lanes: range) -> NDArray[np.uint64]:
        digest = hashlib.sha256(f"{self.stream}/{0 if self.fixed else epoch}".encode()).digest()
        key = np.frombuffer(digest, ">u8", count=1).astype(np.uint64)
        return _mix(key + (np.array(lanes, np.uint64) + np.uint64(1)) * _GOLDEN)

    def _offsets(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (_mix(keys + _GOLDEN) % np.uint64(self.period)).astype(np.int64)


@dataclass(kw_only=True)
class RecallLanes(TaskLanes):
    """A block, fillers, and the block's copy, `distance` positions after the original.

    The filler is a symbol of its own, `n_symbols`, and is not counted, so that what has to be remembered is the same at
    every distance. A target counts where it belongs to a copy whose original symbol the same lane has shown: a lane
    that starts inside a block cannot know what stood before.
    """

    n_symbols: int
    block_len: int
    distance: int

    @property
    def period(self) -> int:
        return self.distance + self.block_len

    def places(self, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> Places:
        number, phase = np.divmod(positions + self._offsets(keys)[:, None], self.period)
        is_copy = phase >= self.distance
        # Keyed by the symbol's number within the lane, so that a copy draws what its block drew.
        drawn = (number * self.block_len + np.where(is_copy, phase - self.distance, phase)).astype(np.uint64)
        bits = _mix(keys[:, None] + (drawn + np.uint64(2)) * _GOLDEN)
        symbols = (bits % np.uint64(self.n_symbols)).astype(np.int64)
        symbols[(phase >= self.block_len) & ~is_copy] = self.n_symbols
        return symbols, is_copy & (positions >= self.distance), np.zeros_like(is_copy)


@dataclass(kw_only=True)
class MqarLanes(TaskLanes):
    """Multi-query associative recall (Arora et al., "Zoology", 2023), one example after another.

    An example is `n_pairs` pairs of a key and its value, all of them different; then each key once more with its value
    behind it, at a gap that follows a power law, and 0 elsewhere. Only these second values are counted. Keys are the
    symbols below half of the vocabulary, values those above. Memory is reset where an example begins; of one in whose
    middle a lane starts nothing is counted.
    """

    vocab_size: int
    n_pairs: int
    example_len: int
    power_a: float
    shortest = 2

    @property
    def period(self) -> int:
        return self.example_len

    def places(self, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> Places:
        offsets = self._offsets(keys)[:, None]
        number, phase = np.divmod(positions + offsets, self.example_len)
        is_whole = (number > 0) | (offsets == 0)  # in this lane
        numbers = number[:, :1] + np.arange((number[:, -1] - number[:, 0]).max() + 1)
        examples = _mix(keys[:, None] + (numbers.astype(np.uint64) + np.uint64(2)) * _GOLDEN)
        chosen = (number - number[:, :1]) * self.example_len + phase
        drawn, asked = self._examples(examples)
        symbols = np.take_along_axis(drawn.reshape(len(keys), -1), chosen, axis=1)
        counted = np.take_along_axis(asked.reshape(len(keys), -1), chosen, axis=1) & is_whole
        return symbols, counted, phase == 0

    def _examples(self, examples: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the symbols of examples (B, E, K), and which of them are asked for."""
        pairs, half = self.n_pairs, self.vocab_size // 2
        gaps = (self.example_len - 2 * pairs) // 2
        keys = 1 + np.argsort(_bits(examples, 0, half - 1))[..., :pairs]
        values = half + np.argsort(_bits(examples, 1, self.vocab_size - half))[..., :pairs]
        # the first to arrive of exponential clocks: as if drawn one by one, without those drawn before
        uniform = ((_bits(examples, 2, gaps) >> np.uint64(11)) + 0.5) / 2.0**53
        arrival = -np.log(uniform) / np.arange(1, gaps + 1) ** (self.power_a - 1)
        place = 2 * pairs + 2 * np.argsort(arrival)[..., :pairs]
        symbols = np.zeros((*examples.shape, self.example_len), np.int64)
        symbols[..., 0 : 2 * pairs : 2], symbols[..., 1 : 2 * pairs : 2] = keys, values
        np.put_along_axis(symbols, place, keys, axis=-1)
        np.put_along_axis(symbols, place + 1, values, axis=-1)
        asked = np.zeros(symbols.shape, np.bool_)
        np.put_along_axis(asked, place + 1, True, axis=-1)
        return symbols, asked


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit counters into random bits: the output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _bits(keys: NDArray[np.uint64], purpose: int, count: int) -> NDArray[np.uint64]:
    """Return `count` random numbers for each key, others for each purpose."""
    counters = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(purpose << 32)
    return _mix(keys[..., None] + counters * _GOLDEN)


class Task:
    """A task's splits, a `Dataset`; what is trained on follows from `seed`, valid and test do not."""

    unknown: Mapping[str, int] = {}
    text_bytes: Mapping[str, int] = {}
    read_as: Mapping[str, str] = {}
    answers = True

    def __init__(self, config: TaskConfig, seed: int) -> None:
        self._config, self._seed, self.name = config, seed, config.kind
        if isinstance(config, MqarConfig):
            drawn_from: dict[str, Any] = {name: getattr(config, name) for name in _OF_MQAR}
            self._make: Callable[..., TaskLanes] = partial(MqarLanes, **drawn_from)
            size = config.vocab_size
        else:
            assert isinstance(config, RecallConfig)
            drawn_from = {"n_symbols": config.n_symbols, "block_len": config.block_len}
            distance = config.distance or config.block_len
            self._make = partial(RecallLanes, **drawn_from, distance=distance)
            size = config.n_symbols
            if distance > config.block_len:
                size, drawn_from = size + 1, drawn_from | {"distance": distance}
        self.vocabulary: Tokenizer = SymbolTokenizer(size)
        drawn_from |= {"eval_tokens": config.eval_tokens}
        sha256 = hashlib.sha256(json.dumps(drawn_from, sort_keys=True).encode()).hexdigest()
        self.fingerprint = Fingerprint(files=0, bytes=0, sha256=sha256)

    def counts(self) -> dict[str, int]:
        """Count the tokens of each split; the training split has as many fresh ones in every epoch."""
        held_out = self._config.eval_tokens
        return {"train": self._config.train_tokens, "valid": held_out, "test": held_out}

    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> TaskLanes:
        tokens = self.counts()[split]
        lanes = self._make(
            stream=f"train/{self._seed}" if split == "train" else split,
            batch_size=batch_size,
            lane_len=tokens // batch_size,
            fixed=evaluation,
        )
        whole = lanes.shortest * lanes.period
        shortest = whole if evaluation else max(whole, segment_len)
        if lanes.lane_len < shortest:
            setting = "data.train_tokens" if split == "train" else "data.eval_tokens"
            raise UserError(
                f"{setting} is {tokens}, and must be at least {batch_size * shortest}: {shortest} for each of the "
                f"{batch_size} lanes, a block and its copy, or two examples, and no less than a segment"
            )
        return lanes
