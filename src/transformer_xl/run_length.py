"""How long a run is, and what happens when: worked out once, from configuration and corpus together."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_xl.config import Config, TrainerConfig, seconds_of
from transformer_xl.data.lanes import Dataset, Segments, eval_starts
from transformer_xl.settings import replace


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """How long a run is, and what happens when; all lengths in optimizer steps unless named otherwise.

    Attributes:
        max_steps: the last step.
        layout: which positions each segment of training holds.
        segment_limit: the first segments that make an epoch; None: all.
        epochs: read by the run.
        tokens: read by the run, over all lanes.
        micro_batches: batches of an optimizer step.
        validate_every: None: no validation.
        limit_val: segments or windows that a validation reads; None: all.
        limit_test: the same for the test; 0: no test.
        min_steps: before which a time limit does not end the run.
        max_seconds: a time limit; None: none.
        checkpointing: whether checkpoints are written.
    """

    max_steps: int
    layout: Segments
    segment_limit: int | None
    epochs: float
    tokens: int
    micro_batches: int
    validate_every: int | None
    limit_val: int | None
    limit_test: int | None
    min_steps: int
    max_seconds: float | None
    checkpointing: bool


def run_length(config: Config, corpus: Dataset) -> RunLength:
    """Work out the run's lengths."""
    trainer = config.trainer
    overfit = trainer.overfit_batches or None
    lanes = corpus.lanes(
        "train",
        batch_size=config.data.batch_size,
        segment_len=config.data.segment_len,
        evaluation=trainer.max_steps == 0,  # where nothing is trained, its split may be of any length
    )
    limit = _segment_limit(config, lanes.lane_len, _first_given(overfit, trainer.limit_train_batches))
    layout = _layout(config, lane_len=lanes.lane_len, limit=limit)
    dev_steps = int(trainer.fast_dev_run)
    limit_val = _windows_read(config, corpus, "valid", dev_steps or _first_given(overfit, trainer.limit_val_batches))
    limit_test = _windows_read(config, corpus, "test", dev_steps or _first_given(overfit, trainer.limit_test_batches))
    max_steps = dev_steps or _max_steps(trainer, layout)
    segments_read = max_steps * trainer.accumulate_grad_batches
    return RunLength(
        max_steps=max_steps,
        layout=layout,
        segment_limit=limit,
        epochs=layout.epochs(segments_read),
        tokens=lanes.batch_size * layout.positions(segments_read),
        micro_batches=trainer.accumulate_grad_batches * config.data.lane_chunks,
        validate_every=None if limit_val == 0 else _validate_every(trainer, layout),
        limit_val=limit_val,
        limit_test=limit_test,
        min_steps=max(trainer.min_steps or 0, _steps_of_epochs(trainer.min_epochs or 0, trainer, layout)),
        max_seconds=None if trainer.max_time is None else seconds_of(trainer.max_time),
        checkpointing=trainer.enable_checkpointing and not dev_steps,
    )


def _first_given(*values: int | float | None) -> int | float | None:
    return next((value for value in values if value is not None), None)


def _segment_limit(config: Config, lane_len: int, limit: int | float | None) -> int | None:
    """Turn a limit of an epoch's segments into a number; a share is one of the first epoch's, 1.0 of every epoch's."""
    if not isinstance(limit, float):
        return limit
    return None if limit == 1 else max(1, round(limit * _layout(config, lane_len=lane_len, limit=None).count(0)))


def _layout(config: Config, *, lane_len: int, limit: int | None) -> Segments:
    data = config.data
    return Segments(
        lane_len=lane_len,
        segment_len=data.segment_len,
        segment_len_sd=data.segment_len_sd,
        half_segments=data.half_segments,
        half_loss=data.loss == "half",
        seed=config.seed,
        limit=limit,
    )


def _windows_read(config: Config, corpus: Dataset, split: str, limit: int | float | None) -> int | None:
    """Turn a limit of an evaluation into segments or windows; 0 where the split is empty."""
    if corpus.counts()[split] == 0:
        return 0
    if not isinstance(limit, float):
        return limit
    lengths = config.eval
    source = corpus.lanes(split, batch_size=lengths.batch_size, segment_len=lengths.segment_len, evaluation=True)
    windows = eval_starts(lane_len=source.lane_len, segment_len=lengths.segment_len, stride=lengths.stride)
    return max(1, round(limit * len(windows))) if limit > 0 else 0


def _steps_of_epochs(epochs: int, trainer: TrainerConfig, layout: Segments) -> int:
    return -(-layout.before(epochs) // trainer.accumulate_grad_batches)


def _max_steps(trainer: TrainerConfig, layout: Segments) -> int:
    limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        limits.append(_steps_of_epochs(trainer.max_epochs, trainer, layout))
    return min(limits)


def _validate_every(trainer: TrainerConfig, layout: Segments) -> int:
    # Lightning knows one interval for the whole run: where the lengths of epochs vary, that of the first
    steps_per_epoch = _steps_of_epochs(1, trainer, layout)
    if trainer.check_val_every_n_epoch is not None:
        return trainer.check_val_every_n_epoch * steps_per_epoch
    interval = trainer.val_check_interval
    if isinstance(interval, int):
        return interval
    return steps_per_epoch if interval is None else max(1, round(interval * steps_per_epoch))


def with_total_steps(config: Config, length: RunLength) -> Config:
    """Settle where the schedule ends, so that a resume with more steps does not move it."""
    if getattr(config.scheduler, "total_steps", None) == -1:
        return replace(config, scheduler=replace(config.scheduler, total_steps=length.max_steps))
    return config
