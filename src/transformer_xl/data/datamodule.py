"""The LightningDataModule: ordered contiguous segments of each lane, this process's share of the lanes."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningDataModule

from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import Dataset, split_evenly
from transformer_xl.data.segments import Segments
from transformer_xl.data.stream import EvalStream, TrainStream
from transformer_xl.data_config import DataConfig


class LaneDataModule(LightningDataModule):
    """Deals lanes out to processes in contiguous blocks and streams their segments in order.

    Attributes:
        train_chunks: the global lanes of each of this process's chunks.
    """

    train_chunks: list[range]

    def __init__(
        self,
        *,
        corpus: Dataset,
        config: DataConfig,
        eval_config: EvalConfig,
        segments: Segments,
        accumulate: int,
        max_steps: int,
    ) -> None:
        """Take the corpus and how to read it.

        Args:
            corpus: opened, its token files ready.
            config: lanes and chunks of training.
            eval_config: lanes and segments or windows of validation and test.
            segments: which positions each segment of training holds.
            accumulate: segments in time that make one optimizer step.
            max_steps: optimizer steps of the run.
        """
        super().__init__()
        self.corpus = corpus
        self._config = config
        self._eval_config = eval_config
        self._segments = segments
        self._accumulate = accumulate
        self._max_steps = max_steps
        self.train_source = corpus.lanes(
            "train", batch_size=config.batch_size, segment_len=config.segment_len, evaluation=max_steps == 0
        )

    def setup(self, stage: str) -> None:
        """Find this process's lanes."""
        lanes = self._lanes(self._config.batch_size)
        chunks = split_evenly(len(lanes), self._config.lane_chunks)
        self.train_chunks = [range(lanes.start + c.start, lanes.start + c.stop) for c in chunks]

    def _lanes(self, batch_size: int) -> range:
        assert self.trainer is not None
        return split_evenly(batch_size, self.trainer.world_size)[self.trainer.global_rank]

    @property
    def _device(self) -> torch.device:
        assert self.trainer is not None
        return self.trainer.strategy.root_device

    def train_dataloader(self) -> TrainStream:
        """Give the run's batches, from its first optimizer step to its last, over as many epochs as that takes."""
        return TrainStream(
            source=self.train_source,
            segments=self._segments,
            lanes=self._lanes(self._config.batch_size),
            lane_chunks=self._config.lane_chunks,
            accumulate=self._accumulate,
            steps=self._max_steps,
            device=self._device,
        )

    def tokens_after(self, step: int) -> int:
        """Count the tokens read after an optimizer step, over all lanes and processes."""
        return self.train_source.batch_size * self._segments.positions(step * self._accumulate)

    def val_dataloader(self) -> EvalStream:
        """Give the validation split, every prediction once."""
        return self._eval_stream("valid")

    def test_dataloader(self) -> EvalStream:
        """Give the test split, every prediction once."""
        return self._eval_stream("test")

    def _eval_stream(self, split: str) -> EvalStream:
        lengths = self._eval_config
        source = self.corpus.lanes(
            split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True
        )
        return EvalStream(
            source=source,
            segment_len=lengths.segment_len,
            stride=lengths.stride,
            lanes=self._lanes(lengths.batch_size),
            device=self._device,
        )
