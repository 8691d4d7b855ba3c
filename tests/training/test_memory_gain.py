"""What memory gives, measured at each validation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Outcome
from tests.data.laid_out import evaluation_lanes
from tests.model.kinds import model_of
from tests.model.tiny import V
from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import split_evenly
from transformer_xl.data.stream import EvalStream
from transformer_xl.inference.evaluate import context_of, read_split
from transformer_xl.model.streaming import stream
from transformer_xl.training.metrics import MemoryGain

Run = Callable[..., Outcome]
NAME = "val/memory_gain"
CPU = torch.device("cpu")
TOKENS = np.random.default_rng(0).integers(0, V, 101).astype(np.uint8)


def lengths(**changes: Any) -> EvalConfig:
    values = {"batch_size": 5, "segment_len": 4, "mem_len": 6, "clamp_len": None, "same_length": False, "stride": None}
    return EvalConfig(**(values | changes))


def measured(model: Any, reading: EvalConfig, *, max_tokens: int, processes: int = 1) -> list[MemoryGain]:
    """Measure as each of several processes does."""
    source = evaluation_lanes(TOKENS, batch_size=reading.batch_size, split="valid")
    gains = []
    for lanes in split_evenly(reading.batch_size, processes):
        batches = EvalStream(
            source=source, segment_len=reading.segment_len, stride=reading.stride, lanes=lanes, device=CPU
        )
        gain = MemoryGain(context_of(reading), batches, max_tokens=max_tokens, device=CPU)
        session = stream(model, batch_size=len(lanes), mem_len=reading.mem_len, same_length=reading.same_length)
        for batch in batches:
            gain.add(model, batch, session.nll(batch.tokens_BT, batch.targets_BT, batch.resets_BT))
        gains.append(gain)
    return gains


@pytest.mark.parametrize("kind", ["transformer_xl", "vaswani", "lstm"])
@pytest.mark.parametrize("max_tokens", [87, 999])
def test_it_is_the_difference_of_two_evaluations_of_the_same_segments(kind: str, max_tokens: int) -> None:
    model = model_of(kind)
    source = evaluation_lanes(TOKENS, batch_size=2, split="valid")
    without, with_memory = (
        read_split(
            model,
            source,
            context_of(lengths(batch_size=2, mem_len=mem_len)),
            limit=10 if max_tokens < 100 else None,
            autocast=nullcontext,
        ).score
        for mem_len in (0, 6)
    )
    assert abs(without.loss - with_memory.loss) > 1e-3
    (gain,) = measured(model, lengths(batch_size=2), max_tokens=max_tokens)
    assert gain.gain() == pytest.approx(without.loss - with_memory.loss, rel=1e-9)


@pytest.mark.parametrize(("max_tokens", "processes"), [(90, 5), (200, 2), (999, 3)])
def test_several_processes_measure_the_same_predictions(max_tokens: int, processes: int) -> None:
    model = model_of("transformer_xl")
    (alone,) = measured(model, lengths(same_length=True), max_tokens=max_tokens)
    together = measured(model, lengths(same_length=True), max_tokens=max_tokens, processes=processes)
    scores = [gain._loss.compute() for gain in (alone, *together)]
    whole, *parts = [(loss * tokens if tokens else 0.0, tokens) for loss, tokens, _ in scores]
    assert 0 < whole[1] == sum(tokens for _, tokens in parts) <= max_tokens
    assert sum(total for total, _ in parts) == pytest.approx(whole[0], rel=1e-9)


def test_there_is_none_where_no_memory_was_read() -> None:
    model = model_of("transformer_xl")
    for reading, max_tokens in ((lengths(), 7), (lengths(stride=2), 999), (lengths(mem_len=0), 999)):
        (gain,) = measured(model, reading, max_tokens=max_tokens)
        assert gain.gain() is None


def test_it_is_logged_at_each_validation_and_changes_no_training_loss(tiny_run: Run) -> None:
    settings = ["model.dropout=0.2", "trainer.max_steps=5"]
    on, off = tiny_run(*settings, name="on"), tiny_run(*settings, "callbacks.memory_gain.max_tokens=0", name="off")
    gains = on.values(NAME)
    assert list(gains) == [3, 5]
    assert all(gains.values())
    assert off.values(NAME) == {}
    assert on.values("train/loss") == off.values("train/loss")
    assert on.values("val/loss") == off.values("val/loss")
