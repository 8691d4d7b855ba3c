"""What memory gives in validation: the loss of its first tokens read without memory, less that of reading with it."""

from __future__ import annotations

from torch import Tensor

from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import lanes_that_fill_memory, split_evenly
from transformer_xl.data.stream import Batch
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.streaming import Stream, stream
from transformer_xl.training.metrics import TokenLoss


class MemoryGain(TokenLoss):
    """Mean gain of memory, nats a token, over the same predictions for any number of processes.

    They are those of the first segments of the first lanes, so few that most of them have a full memory. Which segments
    is known beforehand, and every process reads as many, so that none waits for another.
    """

    def __init__(self, lengths: EvalConfig, *, max_tokens: int) -> None:
        """Take what is measured.

        Args:
            lengths: how validation reads; windows (`stride`) see no memory, and have no gain.
            max_tokens: the most tokens that are read a second time; 0: none, and there is no gain.
        """
        super().__init__()
        self._lengths = lengths
        self._lanes = lanes_that_fill_memory(
            lanes=lengths.batch_size,
            segment_len=lengths.segment_len,
            mem_len=lengths.mem_len,
            max_tokens=max_tokens,
        )
        self._segments = max_tokens // (self._lanes * lengths.segment_len) if lengths.stride is None else 0
        self._read = 0
        self._session: Stream | None = None

    def start(self) -> None:
        """Forget the last validation."""
        self.reset()
        self._read = 0
        self._session = None

    def take(self, model: LanguageModel, batch: Batch, nll: Tensor, *, rank: int, processes: int) -> None:
        """Read a segment without memory, if it is one of the first.

        Args:
            model: in evaluation mode.
            batch: this process's lanes of the next segment.
            nll: losses (B, T) of reading it with memory, in nats.
            rank: this process's number.
            processes: how many there are.
        """
        if batch.step > self._segments:
            return
        self._read += 1
        if self._lengths.mem_len == 0:
            return
        first_lane = split_evenly(self._lengths.batch_size, processes)[rank].start
        counted = min(max(self._lanes - first_lane, 0), len(nll))
        read = max(counted, 1)  # a process without such lanes reads one all the same: it may hold a part of the model
        if self._session is None:
            self._session = stream(
                model, batch_size=read, mem_len=0, clamp_len=self._lengths.clamp_len, same_length=False
            )
        without = self._session.nll(batch.tokens_BT[:read], batch.targets_BT[:read], batch.resets_BT[:read])
        self.update((without - nll[:read])[:counted], batch.targets_BT[:counted])

    def gain(self) -> float | None:
        """Give the gain over all processes; None where no second segment was read, and so no memory."""
        self._session = None
        if self._read < 2:
            return None
        if self._lengths.mem_len == 0:
            return 0.0
        score = self.score()
        return score.loss if score.tokens else None
