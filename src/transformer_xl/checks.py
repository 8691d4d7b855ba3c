"""The checks across the configuration's fields: what cannot work is refused before any work begins."""

from __future__ import annotations

from transformer_xl.config import (
    AdamConfig,
    Config,
    CosineConfig,
    EvalConfig,
    LambConfig,
    PlateauConfig,
    TrainerConfig,
    WandbConfig,
)
from transformer_xl.corpus_checks import check_corpus
from transformer_xl.data_config import DataConfig, RecallConfig, StoredConfig
from transformer_xl.errors import UserError
from transformer_xl.model_checks import at_least, check_model, within
from transformer_xl.model_config import (
    AlRfouConfig,
    ModelConfig,
    RecurrentConfig,
    ShawConfig,
    TransformerXLConfig,
)

_KNOWS_DISTANCES = (TransformerXLConfig, ShawConfig)
"""Networks that can count a distance as another, as `clamp_len` asks."""


def check(config: Config) -> None:
    """Refuse values that cannot work, before any work begins.

    Raises:
        UserError: every problem found, in one sentence.
    """
    problems = [
        *check_model(config.model),
        *_check_lengths(config),
        *_check_data(config.data),
        *_check_optimization(config),
        *_check_trainer(config.trainer),
        *_check_callbacks(config),
        *_check_compile(config),
    ]
    if problems:
        raise UserError("; ".join(problems))


def _check_lengths(config: Config) -> list[str]:
    problems = []
    if config.model.div_val > 1 and not config.model.cutoffs and config.init_from is None:
        problems.append(
            f"model.div_val is {config.model.div_val} with model.cutoffs [], and needs clusters to narrow, as in "
            "model.cutoffs=[2000,10000]"
        )
    problems += _context_problems("model", config.model, config.model)
    problems += reading_problems(config.eval, config.model)
    if isinstance(config.model, AlRfouConfig):
        problems += _check_positions(config, config.model.n_positions)
    return problems + at_least(
        1,
        data__batch_size=config.data.batch_size,
        data__segment_len=config.data.segment_len,
        data__lane_chunks=config.data.lane_chunks,
    )


def reading_problems(lengths: EvalConfig, model: ModelConfig) -> list[str]:
    """Find what of `eval.*` a network cannot read; a sentence's part for each problem."""
    problems = []
    if lengths.mem_len < 0:
        problems.append(f"eval.mem_len is {lengths.mem_len}, and must be at least 0")
    problems += _context_problems("eval", lengths, model)
    if lengths.clamp_len is not None and lengths.clamp_len < 0:
        problems.append(f"eval.clamp_len is {lengths.clamp_len}, and must be null (off) or at least 0")
    stride = lengths.stride
    if stride is not None and not 1 <= stride <= lengths.segment_len:
        problems.append(
            f"eval.stride is {stride}, and must be null, or at least 1 and at most eval.segment_len "
            f"{lengths.segment_len}"
        )
    if stride is not None and lengths.same_length:
        problems.append(f"eval.stride is {stride} with eval.same_length true, and windows need same_length false")
    if isinstance(model, AlRfouConfig) and lengths.segment_len > model.n_positions:
        problems.append(
            f"eval.segment_len is {lengths.segment_len}, and must be at most model.n_positions {model.n_positions}"
        )
    return problems + at_least(1, eval__batch_size=lengths.batch_size, eval__segment_len=lengths.segment_len)


def _context_problems(key: str, lengths: EvalConfig | ModelConfig, model: ModelConfig) -> list[str]:
    problems = []
    if lengths.same_length and lengths.mem_len == 0:
        problems.append(f"{key}.same_length is true with {key}.mem_len 0, and needs a mem_len of at least 1")
    if lengths.clamp_len is not None and not isinstance(model, _KNOWS_DISTANCES):
        problems.append(f"{key}.clamp_len is {lengths.clamp_len}, and must be null for {model.kind}")
    if lengths.same_length and isinstance(model, RecurrentConfig):
        problems.append(f"{key}.same_length is true, and must be false for {model.kind}")
    return problems


def _check_positions(config: Config, n_positions: int) -> list[str]:
    training = config.data.longest_segment
    if training <= n_positions:
        return []
    return [
        f"data.segment_len is {config.data.segment_len} with data.segment_len_sd {config.data.segment_len_sd}: "
        f"segments of up to {training} tokens must be at most model.n_positions {n_positions}"
    ]


def _check_data(data: DataConfig) -> list[str]:
    problems = []
    if not 0 <= data.segment_len_sd <= data.segment_len:
        problems.append(
            f"data.segment_len_sd is {data.segment_len_sd}, and must be at least 0 and at most data.segment_len "
            f"{data.segment_len}"
        )
    if not 0 <= data.half_segments <= 1:
        problems.append(f"data.half_segments is {data.half_segments}, and must be a share, at least 0 and at most 1")
    if data.loss == "half" and data.segment_len < 2:
        problems.append(f"data.loss is 'half' with data.segment_len {data.segment_len}, and needs at least 2")
    if isinstance(data, StoredConfig):
        problems += check_corpus(data)
    if isinstance(data, RecallConfig):
        problems += at_least(2, data__n_symbols=data.n_symbols)
        problems += at_least(1, data__block_len=data.block_len)
        period = 2 * data.block_len
        problems += at_least(period, data__train_tokens=data.train_tokens, data__eval_tokens=data.eval_tokens)
    return problems


def _check_optimization(config: Config) -> list[str]:
    optimizer, scheduler = config.optimizer, config.scheduler
    problems = at_least(
        0,
        optimizer__lr=optimizer.lr,
        optimizer__weight_decay=optimizer.weight_decay,
        scheduler__warmup_steps=scheduler.warmup_steps,
    )
    if isinstance(optimizer, AdamConfig | LambConfig):
        problems += within(0, 1, optimizer__beta1=optimizer.beta1, optimizer__beta2=optimizer.beta2)
        problems += at_least(0, optimizer__eps=optimizer.eps)
    else:
        problems += within(0, 1, optimizer__momentum=optimizer.momentum)
    if isinstance(scheduler, CosineConfig):
        problems += at_least(0, scheduler__min_lr=scheduler.min_lr)
        if scheduler.total_steps != -1 and config.trainer.max_steps != 0:
            problems += at_least(1, scheduler__total_steps=scheduler.total_steps)
    if isinstance(scheduler, PlateauConfig):
        problems += within(0, 1, scheduler__factor=scheduler.factor)
        problems += at_least(0, scheduler__patience=scheduler.patience, scheduler__min_lr=scheduler.min_lr)
    return problems


def _check_compile(config: Config) -> list[str]:
    if not config.compile:
        return []
    problems = []
    if isinstance(config.model, RecurrentConfig):
        problems.append(f"compile is true, and must be false for {config.model.kind}: its steps are one kernel already")
    if isinstance(config.model, TransformerXLConfig) and config.model.attention == "blockwise":
        problems.append("compile is true with model.attention 'blockwise', and needs auto, plain or sdpa")
    if config.data.segment_len_sd or config.data.half_segments:
        problems.append(
            f"compile is true with data.segment_len_sd {config.data.segment_len_sd:g} and data.half_segments "
            f"{config.data.half_segments:g}, and needs segments of one length: both 0"
        )
    return problems


def _check_trainer(trainer: TrainerConfig) -> list[str]:
    problems = at_least(
        1,
        trainer__accumulate_grad_batches=trainer.accumulate_grad_batches,
        trainer__log_every_n_steps=trainer.log_every_n_steps,
        trainer__num_nodes=trainer.num_nodes,
        trainer__max_epochs=trainer.max_epochs if trainer.max_epochs != -1 else None,
        trainer__check_val_every_n_epoch=trainer.check_val_every_n_epoch,
    )
    if trainer.gradient_clip_val is not None and trainer.gradient_clip_val <= 0:
        problems.append(
            f"trainer.gradient_clip_val is {trainer.gradient_clip_val}, and must be above 0, or null for off"
        )
    if trainer.max_time is not None and seconds_of(trainer.max_time) is None:
        problems.append(f"trainer.max_time is {trainer.max_time!r}, and must read DD:HH:MM:SS")
    if any(word in trainer.strategy for word in ("spawn", "fork", "notebook")):
        problems.append(
            f"trainer.strategy is {trainer.strategy!r}, and must start its processes as commands: use ddp or auto"
        )
    problems += at_least(0, trainer__fast_dev_run=trainer.fast_dev_run)
    if trainer.max_steps < 0 and trainer.max_steps != -1:
        problems.append(
            f"trainer.max_steps is {trainer.max_steps}, and must be at least 1, -1 with max_epochs, or 0 with init_from"
        )
    if trainer.max_steps == -1 and trainer.max_epochs in (None, -1):
        problems.append(
            f"trainer.max_steps is -1 and trainer.max_epochs is {trainer.max_epochs}; one of them must say when to stop"
        )
    interval = trainer.val_check_interval
    if isinstance(interval, int) and interval < 1:
        problems.append(f"trainer.val_check_interval is {interval}, and must be at least 1 optimizer step")
    if isinstance(interval, float) and not 0 < interval <= 1:
        problems.append(
            f"trainer.val_check_interval is {interval}, and must be a whole number of optimizer steps, or a fraction "
            "of an epoch above 0 and at most 1"
        )
    for name in ("limit_train_batches", "limit_val_batches", "limit_test_batches", "overfit_batches"):
        limit = getattr(trainer, name)
        if limit is not None and (limit < 0 or (limit == 0 and name == "limit_train_batches")):
            problems.append(f"trainer.{name} is {limit}, and must be a number of segments above 0, or a share of them")
        if isinstance(limit, float) and limit > 1:
            problems.append(f"trainer.{name} is {limit}, and must be at most 1.0 as a share, or a whole number")
    return problems


def seconds_of(max_time: str) -> float | None:
    """Read DD:HH:MM:SS; None where it is something else."""
    parts = max_time.split(":")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    days, hours, minutes, seconds = map(int, parts)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _check_callbacks(config: Config) -> list[str]:
    callbacks = config.callbacks
    problems = at_least(
        0,
        callbacks__sample__n_tokens=callbacks.sample.n_tokens,
        callbacks__sample__temperature=callbacks.sample.temperature,
        callbacks__memory_gain__max_tokens=callbacks.memory_gain.max_tokens,
        callbacks__report__memory_tokens=callbacks.report.memory_tokens,
        callbacks__divergence__nats=callbacks.divergence.nats,
    )
    problems += at_least(
        1,
        callbacks__checkpoint__every_n_train_steps=callbacks.checkpoint.every_n_train_steps,
        callbacks__checkpoint__keep=callbacks.checkpoint.keep,
        callbacks__nonfinite__max_in_a_row=callbacks.nonfinite.max_in_a_row,
        callbacks__divergence__steps=callbacks.divergence.steps,
        callbacks__sample__top_k=callbacks.sample.top_k,
        callbacks__throughput__peak_flops=callbacks.throughput.peak_flops,
    )
    average = callbacks.weight_average
    problems += at_least(1, callbacks__weight_average__start_step=average.start_step)
    if average.decay is not None:
        problems += within(0, 1, callbacks__weight_average__decay=average.decay)
    if average.decay is not None and average.start_step is None:
        problems.append(
            f"callbacks.weight_average.decay is {average.decay} with start_step null, and needs a start_step"
        )
    if config.init_vocabulary == "extend" and config.init_from is None:
        problems.append("init_vocabulary is 'extend' without init_from, and has nothing to extend")
    if config.trainer.max_steps == 0 and config.init_from is None:
        problems.append(
            "trainer.max_steps is 0, which scores a trained model and trains none: name it by init_from=MODEL"
        )
    if not 0 <= config.seed < 2**63:
        problems.append(f"seed is {config.seed}, and must be at least 0 and below 2**63")
    if isinstance(config.logger, WandbConfig):
        problems += at_least(1, logger__timeout_seconds=config.logger.timeout_seconds)
    return problems
