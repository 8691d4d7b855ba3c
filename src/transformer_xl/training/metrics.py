"""Names of what is logged, and token losses summed over batches, devices and processes, divided once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from transformer_xl.data.lanes import lanes_that_fill_memory, split_evenly
from transformer_xl.data.stream import Batch
from transformer_xl.model.base import Context, LanguageModel
from transformer_xl.model.streaming import Stream, stream
from transformer_xl.scores import Score

TRAIN_LOSS = "train/loss"
GRADIENT_NORM = "train/grad_norm"
CLIPPED_SHARE = "train/clipped_share"
LEARNING_RATE = "lr"
VALIDATION = "val"
TEST = "test"
SPLITS = {VALIDATION: "valid", TEST: "test"}
EVALUATION = "evaluation"
LOSS = "loss"
MEMORY_GAIN = "val/memory_gain"
TOKENS_PER_SECOND = "tokens_per_second"
MFU = "mfu"
PROCESS_MEMORY = "memory_process_peak_bytes"
DEVICE_MEMORY = "memory_device_peak_bytes"
SAMPLES = "samples"
STEP_AXIS = "trainer/global_step"
TOKEN_AXIS = "tokens"


class TokenLoss(Metric):
    """Mean loss over tokens, whatever the sizes of the batches; the sum is kept in float64."""

    full_state_update = False
    nll_sum: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nll_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> TokenLoss:
        """Follow the module to its device, but keep float64 where the module turns to bfloat16."""
        super()._apply(fn, exclude_state)
        self.nll_sum = self.nll_sum.to(torch.float64)
        self._defaults["nll_sum"] = torch.zeros((), dtype=torch.float64, device=self.nll_sum.device)
        return self

    def update(self, nll: Tensor, targets: Tensor) -> None:
        """Add the losses of a batch.

        Args:
            nll: (B, T), nats, 0 where the target does not count.
            targets: (B, T), -100 where it does not count.
        """
        self.nll_sum += nll.sum(dtype=torch.float64)
        self.tokens += (targets != -100).sum()

    def compute(self) -> Tensor:
        """Return (sum of losses, tokens) as float64, over all processes."""
        return torch.stack([self.nll_sum, self.tokens.double()])

    def score(self) -> Score:
        """Return the mean loss over all processes."""
        nll_sum, tokens = self.compute().tolist()
        return Score(nll_sum / tokens if tokens else math.nan, int(tokens))


class MemoryGain(TokenLoss):
    """Mean gain of memory in a validation: the loss of its first tokens read without memory, less that with it.

    Nats per token, over the same predictions for any number of processes: those of the first segments of the first
    lanes, so few that most of them have a full memory. Which segments is known beforehand, and every process reads as
    many, so that none waits for another.

    Args:
        context: how validation reads.
        batch_size: its lanes, over all processes.
        max_tokens: the most tokens that are read a second time; 0: none, and there is no gain.
    """

    def __init__(self, context: Context, *, batch_size: int, max_tokens: int) -> None:
        super().__init__()
        assert context.mem_len is not None
        self._context = context
        self._batch_size = batch_size
        self._lanes = lanes_that_fill_memory(
            lanes=batch_size, segment_len=context.segment_len, mem_len=context.mem_len, max_tokens=max_tokens
        )
        # windows (`stride`) see no memory, and have no gain
        self._segments = max_tokens // (self._lanes * context.segment_len) if context.stride is None else 0
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
        if self._context.mem_len == 0:
            return
        first_lane = split_evenly(self._batch_size, processes)[rank].start
        counted = min(max(self._lanes - first_lane, 0), len(nll))
        read = max(counted, 1)  # a process without such lanes reads one all the same: it may hold a part of the model
        if self._session is None:
            self._session = stream(
                model, batch_size=read, mem_len=0, clamp_len=self._context.clamp_len, same_length=False
            )
        without = self._session.nll(batch.tokens_BT[:read], batch.targets_BT[:read], batch.resets_BT[:read])
        self.update((without - nll[:read])[:counted], batch.targets_BT[:counted])

    def gain(self) -> float | None:
        """Return the gain over all processes; None where no second segment was read, and so no memory."""
        self._session = None
        if self._read < 2:
            return None
        if self._context.mem_len == 0:
            return 0.0
        score = self.score()
        return score.loss if score.tokens else None
