"""The order in which an epoch reads a split's tokens: as they stand, or document by document in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Order(Protocol):
    """A stream of tokens that can be read at any position in any epoch."""

    def __len__(self) -> int:
        """Count the tokens."""

    def read(self, *, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Give the tokens at positions [start, stop) of an epoch's stream; start <= stop <= len."""

    def borders(self, *, epoch: int, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
        """Give the positions at which documents begin, for each of the ranges [start, stop) of an epoch's stream."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AsTheyStand:
    """Tokens in the order of their file, the same in every epoch.

    Attributes:
        tokens: ids.
        starts: ascending places in `tokens` where documents begin; None: nowhere.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.int64] | None

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.tokens)

    def read(self, *, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Give the tokens at positions [start, stop)."""
        return self.tokens[start:stop]

    def borders(self, *, epoch: int, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
        """Give the positions at which documents begin, for each of the ranges [start, stop)."""
        if self.starts is None:
            return [np.zeros(0, np.int64)] * len(starts)
        return _within(self.starts, starts=starts, stops=stops)


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """Whole documents, in an order that follows from (seed, epoch) alone.

    Attributes:
        tokens: ids.
        starts: ascending places in `tokens` where documents begin; what stands before the first counts as one.
        seed: of the order.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.int64]
    seed: int

    def __len__(self) -> int:
        """Count the tokens."""
        return len(self.tokens)

    def read(self, *, epoch: int, start: int, stop: int) -> NDArray[Any]:
        """Give the tokens at positions [start, stop) of an epoch's stream."""
        layout = self._layout(epoch)
        found = np.empty(stop - start, self.tokens.dtype)
        document = int(np.searchsorted(layout.starts, start, side="right")) - 1
        position = start
        while position < stop:
            end = int(layout.starts[document + 1])
            taken = min(end, stop) - position
            first = int(layout.first_tokens[document]) + position - int(layout.starts[document])
            found[position - start : position - start + taken] = self.tokens[first : first + taken]
            position += taken
            document += 1
        return found

    def borders(self, *, epoch: int, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
        """Give the positions at which documents begin, for each of the ranges [start, stop) of an epoch's stream."""
        return _within(self._layout(epoch).starts, starts=starts, stops=stops)

    def _layout(self, epoch: int) -> _Layout:
        return _lay_out(self, epoch)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Layout(NamedTuple):
    """An epoch's stream.

    Attributes:
        starts: where each document begins in the stream, and the stream's length behind them.
        first_tokens: where it begins in the file.
    """

    starts: NDArray[np.int64]
    first_tokens: NDArray[np.int64]


@lru_cache(maxsize=2)
def _lay_out(order: Shuffled, epoch: int) -> _Layout:
    first_tokens = np.asarray(order.starts)
    if not len(first_tokens) or first_tokens[0] > 0:
        first_tokens = np.append(0, first_tokens)
    lengths = np.diff(first_tokens, append=len(order.tokens))
    drawn = np.random.Generator(np.random.PCG64(np.random.SeedSequence(order.seed, spawn_key=(epoch,))))
    permutation = drawn.permutation(len(first_tokens))
    starts = np.append(0, lengths[permutation].cumsum())
    return _Layout(starts=starts, first_tokens=first_tokens[permutation])


def _within(borders: NDArray[np.int64], *, starts: Sequence[int], stops: Sequence[int]) -> list[NDArray[np.int64]]:
    # all ranges in two searches: each costs more than a range's own
    firsts, lasts = np.searchsorted(borders, starts), np.searchsorted(borders, stops)
    return [np.asarray(borders[first:last]) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
