"""Where in a text a model is at a loss: by the place in the segment, and by how much of its document it has read.

Letters: B lanes, T positions.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_xl.data.lanes import NOT_COUNTED
from transformer_xl.data.stream import Batch

_BUCKETS = 41
"""Powers of two, far beyond the longest text."""


class LossesBy:
    """Losses gathered in classes, in float64: on a GPU where they come from one, so that no reading waits for it."""

    def __init__(self, classes: int) -> None:
        """Begin with so many classes, all empty."""
        self._totals = torch.zeros(3, classes, dtype=torch.float64)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Predictions of each class."""
        counts: NDArray[np.int64] = self._numbers()[0].astype(np.int64)
        return counts

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean loss of each class in nats, NaN where it is empty."""
        counts, sums, _ = self._numbers()
        return _ratio(sums, counts, where=counts > 0)

    @property
    def errors(self) -> NDArray[np.float64]:
        """Standard error of each mean, as if losses were independent; NaN where there are fewer than two."""
        counts, sums, squares = self._numbers()
        some = counts > 1
        spread = (squares - _ratio(sums**2, counts, where=some)).clip(min=0)
        errors: NDArray[np.float64] = np.sqrt(_ratio(spread, counts * (counts - 1), where=some))
        return errors

    def _numbers(self) -> NDArray[np.float64]:
        numbers: NDArray[np.float64] = self._totals.cpu().numpy()
        return numbers

    def _values(self, batch: Batch, nll: Tensor) -> Tensor:
        """Give count, loss and its square of every position (3, B, T), zeros where none counts."""
        counted = (batch.targets_BT != NOT_COUNTED).to(self._totals.device, torch.float64)
        losses = nll.to(self._totals.device, torch.float64) * counted
        return torch.stack([counted, losses, losses.square()])

    def _move_to(self, nll: Tensor) -> None:
        if nll.is_cuda:  # other accelerators have no float64
            self._totals = self._totals.to(nll.device)


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64], *, where: NDArray[np.bool_]) -> NDArray[np.float64]:
    ratio = np.full_like(above, np.nan)
    np.divide(above, below, out=ratio, where=where)
    return ratio


class LossByPosition(LossesBy):
    """Losses by the place of the input in its segment or window, from 0.

    Without memory the first place has read one token, the second two, and so on: the fragmentation of the context. With
    a memory all have read about as much. Of windows that overlap only the first counts its first places.
    """

    def __init__(self, segment_len: int) -> None:
        """Begin with a class for each place of a segment."""
        super().__init__(segment_len)

    def take(self, batch: Batch, nll: Tensor) -> None:
        """Add a segment or window; as `read_split` wants it."""
        self._move_to(nll)
        self._totals[:, : nll.shape[1]] += self._values(batch, nll).sum(dim=1)


class LossByDistance(LossesBy):
    """Losses by how many tokens of its document a prediction can look back on, its input among them.

    The class k holds those of 2^k tokens and more, up to 2^(k+1) - 1. A document begins at a reset; in a corpus without
    borders of documents the whole lane is one. Counting goes on from segment to segment.

    Windows hide whether a document begins at their first place, which those that overlap have seen before. Where they
    do not (a stride of a whole window), one that begins there goes on as the document before it; a memory of 0 tokens
    reads such windows too, and hides nothing.
    """

    def __init__(self, lanes: int, *, stride: int | None) -> None:
        """Begin to read so many lanes.

        Args:
            lanes: B.
            stride: of windows; None: segments.
        """
        super().__init__(_BUCKETS)
        self._stride = stride
        self._before = torch.zeros(lanes, dtype=torch.int64)
        self._powers = 2 ** torch.arange(_BUCKETS)

    @property
    def shortest(self) -> NDArray[np.int64]:
        """The fewest tokens that a prediction of each class can look back on: powers of two."""
        powers: NDArray[np.int64] = self._powers.cpu().numpy()
        return powers

    def take(self, batch: Batch, nll: Tensor) -> None:
        """Add the next segment or window; as `read_split` wants it."""
        self._move_to(nll)
        device = self._totals.device
        self._powers = self._powers.to(device)
        read = self._tokens_read(batch.resets_BT.to(device), is_first=batch.step == 1)
        buckets = torch.bucketize(read, self._powers, right=True) - 1
        self._totals.index_add_(1, buckets.flatten(), self._values(batch, nll).flatten(start_dim=1))

    def _tokens_read(self, resets: Tensor, *, is_first: bool) -> Tensor:
        """Count the tokens of the document up to each input, itself among them, and keep what the next window needs."""
        length = resets.shape[1]
        step = length if self._stride is None else self._stride
        if self._stride is not None and not is_first:
            resets = resets.clone()
            resets[:, 0].fill_(False)  # every window begins with one, whatever the text does
        places = torch.arange(length, device=resets.device)
        begun = torch.where(resets, places, -1).cummax(dim=1).values
        before = self._before.to(resets.device)[:, None]
        read = torch.where(begun >= 0, places - begun + 1, before + places + 1)
        self._before = read[:, step] - 1 if length > step else read[:, -1]
        return read
