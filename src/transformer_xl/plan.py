"""How long a run is, and what happens when: worked out once, from configuration and corpus together."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_xl.checks import seconds_of
from transformer_xl.config import Config
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.stream import segments_per_epoch, steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What follows from configuration and corpus together; all lengths in optimizer steps unless named otherwise.

    Attributes:
        max_steps: the last step.
        segments: segments that make an epoch.
        steps_per_epoch: steps that read at least one epoch.
        micro_batches: batches of an optimizer step.
        validate_every: None: no validation.
        limit_val: segments that a validation reads; None: all.
        limit_test: the same for the test; 0: no test.
        min_steps: before which a time limit does not end the run.
        max_seconds: a time limit; None: none.
        log_every: between writings of the log.
        checkpointing: whether checkpoints are written.
    """

    max_steps: int
    segments: int
    steps_per_epoch: int
    micro_batches: int
    validate_every: int | None
    limit_val: int | None
    limit_test: int | None
    min_steps: int
    max_seconds: float | None
    log_every: int
    checkpointing: bool


def make_plan(config: Config, data: Dataset) -> Plan:
    """Work out the run's lengths."""
    trainer = config.trainer
    overfit = trainer.overfit_batches or None
    lanes = data.lanes(
        "train", batch_size=config.data.batch_size, segment_len=config.data.segment_len, evaluation=False
    )
    segments = segments_per_epoch(lane_len=lanes.lane_len, segment_len=config.data.segment_len, limit=None)
    limit = _first_given(overfit, trainer.limit_train_batches)
    if limit is not None:
        segments = min(segments, limit if isinstance(limit, int) else max(1, round(limit * segments)))
    steps = steps_per_epoch(segments=segments, accumulate=trainer.accumulate_grad_batches)
    dev_steps = int(trainer.fast_dev_run)
    limit_val = dev_steps or _first_given(overfit, trainer.limit_val_batches)
    limit_test = dev_steps or _first_given(overfit, trainer.limit_test_batches)
    limit_val = _segments_read(config, data, "valid", limit_val)
    limit_test = _segments_read(config, data, "test", limit_test)
    min_epochs = _steps_of_epochs(trainer.min_epochs or 0, segments, trainer.accumulate_grad_batches)
    return Plan(
        max_steps=dev_steps or _max_steps(config, segments),
        segments=segments,
        steps_per_epoch=steps,
        micro_batches=trainer.accumulate_grad_batches * config.data.lane_chunks,
        validate_every=None if limit_val == 0 else _validate_every(config, steps),
        limit_val=limit_val,
        limit_test=limit_test,
        min_steps=max(trainer.min_steps or 0, min_epochs),
        max_seconds=None if trainer.max_time is None else seconds_of(trainer.max_time),
        log_every=trainer.log_every_n_steps,
        checkpointing=trainer.enable_checkpointing and not dev_steps and not trainer.barebones,
    )


def _first_given(*values: int | float | None) -> int | float | None:
    return next((value for value in values if value is not None), None)


def _segments_read(config: Config, data: Dataset, split: str, limit: int | float | None) -> int | None:
    """Turn a limit of an evaluation into segments; 0 where the split is empty."""
    if data.counts()[split] == 0:
        return 0
    if not isinstance(limit, float):
        return limit
    lengths = config.eval
    source = data.lanes(split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
    segments = segments_per_epoch(lane_len=source.lane_len, segment_len=lengths.segment_len, limit=None)
    return max(1, round(limit * segments)) if limit > 0 else 0


def _steps_of_epochs(epochs: int, segments: int, accumulate: int) -> int:
    return -(-epochs * segments // accumulate)


def _max_steps(config: Config, segments: int) -> int:
    trainer = config.trainer
    limits = [trainer.max_steps] if trainer.max_steps > 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        limits.append(_steps_of_epochs(trainer.max_epochs, segments, trainer.accumulate_grad_batches))
    return min(limits)


def _validate_every(config: Config, steps_per_epoch: int) -> int:
    trainer = config.trainer
    if trainer.check_val_every_n_epoch is not None:
        return trainer.check_val_every_n_epoch * steps_per_epoch
    interval = trainer.val_check_interval
    if isinstance(interval, int):
        return interval
    return steps_per_epoch if interval is None else max(1, round(interval * steps_per_epoch))
