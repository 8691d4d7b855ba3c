"""The LightningDataModule: ordered contiguous segments of each lane, this process's share of the lanes."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningDataModule

from transformer_xl.data.lanes import Dataset, Segments, split_evenly, unit_of
from transformer_xl.data.stream import EvalStream, TrainStream
from transformer_xl.scores import Unit


class LaneDataModule(LightningDataModule):
    """Deal lanes out to processes in contiguous blocks and stream their segments in order.

    Under any `lightning.Trainer` an epoch is one pass over the training lanes; a checkpoint of the trainer holds the
    position, from which a resumed run goes on.

    Args:
        corpus: opened, its token files ready.
        batch_size: lanes of training over all processes together.
        segment_len: tokens of a segment, T.
        segments: which positions each segment of training holds, in groups through which gradients flow; None: equal
            ones of `segment_len`, each by itself.
        lane_chunks: parts in which a step's lanes go through the device; set the trainer's `accumulate_grad_batches` to
            as many times the groups of segments of a step.
        eval_batch_size: lanes of validation and test; None: `batch_size`.
        eval_segment_len: tokens of a segment there; None: `segment_len`.
        eval_stride: distance of windows of `eval_segment_len` that are each read without memory; None: segments.
        steps: optimizer steps of the one epoch that the trainer then sees, which go on over the ends of the corpus;
            0: nothing is trained, and the training split may be of any length.
        accumulate: groups of segments in time that make one optimizer step; None: what the trainer's
            `accumulate_grad_batches` and `lane_chunks` make.

    Attributes:
        train_source: the lanes of the training split.
        train_chunks: the global lanes of each of this process's chunks, from `setup` on.
    """

    train_chunks: list[range]

    def __init__(
        self,
        corpus: Dataset,
        *,
        batch_size: int,
        segment_len: int,
        segments: Segments | None = None,
        lane_chunks: int = 1,
        eval_batch_size: int | None = None,
        eval_segment_len: int | None = None,
        eval_stride: int | None = None,
        steps: int | None = None,
        accumulate: int | None = None,
    ) -> None:
        super().__init__()
        self.corpus = corpus
        self.train_source = corpus.lanes("train", batch_size=batch_size, segment_len=segment_len, evaluation=steps == 0)
        self._segments = segments or Segments(lane_len=self.train_source.lane_len, segment_len=segment_len)
        self._lane_chunks = lane_chunks
        self._eval_batch_size = eval_batch_size or batch_size
        self._eval_segment_len = eval_segment_len or segment_len
        self._eval_stride = eval_stride
        self._steps = steps
        self._accumulate = accumulate

    def setup(self, stage: str) -> None:
        """Find this process's lanes."""
        lanes = self._lanes(self.train_source.batch_size)
        chunks = split_evenly(len(lanes), self._lane_chunks)
        self.train_chunks = [range(lanes.start + c.start, lanes.start + c.stop) for c in chunks]

    def train_dataloader(self) -> TrainStream:
        """Return the batches of the run, over as many epochs of the corpus as its steps take, or of one epoch."""
        return TrainStream(
            source=self.train_source,
            segments=self._segments,
            chunks=self.train_chunks,
            accumulate=self.accumulate,
            steps=self._steps,
            device=self._device,
        )

    @property
    def accumulate(self) -> int:
        """Groups of segments in time that make one optimizer step."""
        if self._accumulate is not None:
            return self._accumulate
        assert self.trainer is not None
        return max(1, self.trainer.accumulate_grad_batches // self._lane_chunks)

    def tokens_after(self, step: int) -> int:
        """Count the tokens read after an optimizer step, over all lanes and processes."""
        return self.train_source.batch_size * self._segments.positions(step * self.accumulate)

    def unit(self, split: str) -> Unit:
        """Return how people read the scores of a split: train, valid, test."""
        return unit_of(self.corpus, split)

    def val_dataloader(self) -> EvalStream:
        """Return the validation split, every prediction once."""
        return self._eval_stream("valid")

    def test_dataloader(self) -> EvalStream:
        """Return the test split, every prediction once."""
        return self._eval_stream("test")

    def _eval_stream(self, split: str) -> EvalStream:
        lanes, segment_len = self._eval_batch_size, self._eval_segment_len
        return EvalStream(
            source=self.corpus.lanes(split, batch_size=lanes, segment_len=segment_len, evaluation=True),
            segment_len=segment_len,
            stride=self._eval_stride,
            lanes=self._lanes(lanes),
            device=self._device,
        )

    def _lanes(self, batch_size: int) -> range:
        assert self.trainer is not None
        return split_evenly(batch_size, self.trainer.world_size)[self.trainer.global_rank]

    @property
    def _device(self) -> torch.device:
        assert self.trainer is not None
        return self.trainer.strategy.root_device
