"""A GPU's memory that does not suffice, in one sentence: what it was asked to hold, and what to try next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.pytorch import LightningModule

from transformer_xl.config import Config
from transformer_xl.errors import UserError


@contextmanager
def in_one_sentence(config: Config, module: LightningModule, *, processes: int, folder: Path) -> Iterator[None]:
    """Say what to try where the device runs out of memory.

    Args:
        config: of the run.
        module: what trains; its mode tells training from evaluation.
        processes: that share the lanes.
        folder: the run folder.

    Raises:
        UserError: the device ran out of memory.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        sentence = (
            _in_training(config, processes=processes, folder=folder)
            if module.training
            else _in_evaluation(config, processes=processes)
        )
        raise UserError(sentence) from error


def _in_training(config: Config, *, processes: int, folder: Path) -> str:
    data, chunks = config.data, config.data.lane_chunks
    held = (
        f"the device ran out of memory in training: data.batch_size is {data.batch_size}, data.segment_len "
        f"{data.segment_len}, model.mem_len {config.model.mem_len} and data.lane_chunks {chunks}"
    )
    most = data.batch_size // processes
    if chunks >= most:
        return (
            f"{held}, the most for {most} lanes a process; try a smaller data.segment_len, model.mem_len or "
            "data.batch_size, or more trainer.devices"
        )
    advice = f"data.lane_chunks={min(2 * chunks, most)}, which gives the same gradients"
    if not (folder / "checkpoints" / "last.ckpt").exists():
        return f"{held}; try {advice}"
    return f"{held}; go on with python train.py resume={shlex.quote(str(folder))} {advice}"


def _in_evaluation(config: Config, *, processes: int) -> str:
    lengths = config.eval
    held = (
        f"the device ran out of memory in an evaluation: eval.batch_size is {lengths.batch_size}, eval.segment_len "
        f"{lengths.segment_len} and eval.mem_len {lengths.mem_len}"
    )
    fewer = max(lengths.batch_size // 2, processes)
    if fewer == lengths.batch_size:
        return f"{held}; try a smaller eval.segment_len or eval.mem_len"
    return f"{held}; try eval.batch_size={fewer}"
