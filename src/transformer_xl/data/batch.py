"""What a step reads: one micro-batch.

Letters: B lanes, T positions.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """One micro-batch: T positions of B lanes, and its place in the run.

    Args:
        tokens_BT: Inputs, int64.
        targets_BT: The next token of the same lane, int64; -100 is not counted.
        resets_BT: True where a document begins, bool.
        counted: Targets that the whole optimizer step counts, over all ranks and micro-batches.
        step: Optimizer step, from 1; in an evaluation the segment or window, from 1.
        micro: Place within the step, from 0.
        chunk: Which chunk of this rank's lanes, from 0.
    """

    tokens_BT: Tensor
    targets_BT: Tensor
    resets_BT: Tensor
    counted: int
    step: int
    micro: int
    chunk: int
