"""Names of what is logged, and token losses summed over batches, devices and processes, divided once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from transformer_xl.data.lanes import NOT_COUNTED, lanes_that_fill_memory
from transformer_xl.data.stream import Batch, EvalStream
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
MEMORY_GAIN = "val/memory_gain"
TOKENS_PER_SECOND = "tokens_per_second"
MFU = "mfu"
DEVICE_MEMORY = "memory_device_peak_bytes"
SAMPLES = "samples"
STEP_AXIS = "trainer/global_step"
TOKEN_AXIS = "tokens"


class TokenLoss(Metric):
    """Mean loss over the tokens of all batches and processes; sums are kept on the device, in float64.

    With `answers` also the share of targets that are the most probable token.
    """

    sums: Tensor  # of losses, of tokens, and of right answers

    def __init__(self, device: torch.device, *, answers: bool = False) -> None:
        super().__init__()
        self.answers = answers
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        self.to(device)

    def update(self, nll: Tensor, targets: Tensor, right: Tensor | None = None) -> None:
        """Add the losses (B, T) of a batch, in nats; they are 0, and no answer is right, where no target counts."""
        sums = (nll, targets != NOT_COUNTED, torch.zeros_like(nll) if right is None else right)
        self.sums = self.sums + torch.stack([values.sum(dtype=torch.float64) for values in sums])

    def compute(self) -> Score:
        """Return the mean loss; NaN over no tokens."""
        nll_sum, tokens, right = self.sums.tolist()
        accuracy = right / tokens if self.answers and tokens else None
        return Score(nll_sum / tokens if tokens else math.nan, int(tokens), accuracy)


class MemoryGain:
    """Mean gain of memory in a validation: the loss of its first tokens without the model's memory, less that with it.

    Nats per token, over the same predictions for any number of processes: those of the first segments of the first
    lanes, so few that most of them have a full memory.

    Args:
        context: how validation reads; windows (`stride`) see no memory, and have no gain.
        batches: this process's share of the validation.
        max_tokens: the most tokens that are read a second time.
        device: of the model.
    """

    def __init__(self, context: Context, batches: EvalStream, *, max_tokens: int, device: torch.device) -> None:
        mem_len, segment_len = context.mem_len or 0, context.segment_len
        lanes = lanes_that_fill_memory(
            lanes=batches.source.batch_size, segment_len=segment_len, mem_len=mem_len, max_tokens=max_tokens
        )
        self._context = context
        self._segments = max_tokens // (lanes * segment_len) if mem_len and context.stride is None else 0
        self._lanes = min(max(lanes - batches.lanes.start, 0), len(batches.lanes))  # of this process
        self._is_measured = False
        self._loss = TokenLoss(device)
        self._session: Stream | None = None

    def add(self, model: LanguageModel, batch: Batch, nll: Tensor) -> None:
        """Read a segment without memory, if it is one of the first; `nll` are its losses (B, T) with memory."""
        if batch.step > self._segments:
            return
        self._is_measured = batch.step > 1  # the first one has no memory
        if self._lanes == 0:
            self._loss.update(nll[:0], batch.targets_BT[:0])
            return
        if self._session is None:
            self._session = stream(
                model, batch_size=self._lanes, mem_len=0, clamp_len=self._context.clamp_len, same_length=False
            )
        tokens, targets, resets, *_ = batch.cut(slice(self._lanes))
        self._loss.update(self._session.nll(tokens, targets, resets) - nll[: self._lanes], targets)

    def gain(self) -> float | None:
        """Return the gain over all processes; None where no second segment was read, and so no memory."""
        score = self._loss.compute() if self._is_measured else None
        return score.loss if score is not None and score.tokens else None
