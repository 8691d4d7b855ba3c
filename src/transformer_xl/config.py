"""Typed schema of the configuration groups, and the checks across their fields.

The numbers stand in `conf/`; here are only names, types and rules. Everything below is standard library:
`build.py` turns what Hydra composed into one frozen `Config` and calls `check` before any work begins.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from transformer_xl.errors import UserError as UserError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network; see `model/transformer_xl.py` for what each number does."""

    kind: Literal["transformer_xl"]
    n_layer: int
    d_model: int
    n_head: int
    d_head: int
    d_inner: int
    dropout: float
    dropatt: float
    mem_len: int
    clamp_len: int | None
    same_length: bool
    pre_norm: bool
    untie_r: bool
    attention: Literal["plain"]
    init_std: float


@dataclass(frozen=True, kw_only=True)
class LongEvalConfig:
    """The lengths at which the paper scores a model: a longer memory than it was trained with."""

    segment_len: int
    mem_len: int
    clamp_len: int | None
    same_length: bool


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """What a preset brings along so that it trains as published; the other groups refer to these values."""

    segment_len: int
    batch_size: int
    lr: float
    warmup_steps: int
    max_steps: int
    val_every_n_steps: int
    gradient_clip_val: float | None
    long_eval: LongEvalConfig | None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What every corpus has: lanes, segments, and a folder for the token files."""

    kind: str
    batch_size: int
    segment_len: int
    lane_chunks: int


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(DataConfig):
    """A corpus of text on disk, turned once into token files below `cache_dir`."""

    cache_dir: str
    tokenizer: Literal["byte", "char", "word"]


@dataclass(frozen=True, kw_only=True)
class StdlibConfig(CorpusConfig):
    """The source of Python's standard library, split by a hash of each file's path."""

    kind: Literal["stdlib"]
    valid_fraction: float
    test_fraction: float


@dataclass(frozen=True, kw_only=True)
class TextConfig(CorpusConfig):
    """A text file or a folder of them; a folder may hold `train`, `valid` and `test` files."""

    kind: Literal["text"]
    path: str | None
    valid_fraction: float
    test_fraction: float


@dataclass(frozen=True, kw_only=True)
class Wikitext103Config(CorpusConfig):
    """WikiText-103 from its published token files, `wiki.{train,valid,test}.tokens` in `dir`."""

    kind: Literal["wikitext103"]
    dir: str | None


@dataclass(frozen=True, kw_only=True)
class RecallConfig(DataConfig):
    """Blocks of random symbols, each followed by its copy: a task that only memory solves."""

    kind: Literal["recall"]
    n_symbols: int
    block_len: int
    train_tokens: int
    eval_tokens: int


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Learning rate and weight decay, common to all optimizers."""

    kind: str
    lr: float
    weight_decay: float
    decay_embeddings: bool


@dataclass(frozen=True, kw_only=True)
class AdamConfig(OptimizerConfig):
    """Adam, or AdamW with decoupled weight decay."""

    kind: Literal["adam", "adamw"]
    beta1: float
    beta2: float
    eps: float


@dataclass(frozen=True, kw_only=True)
class SgdConfig(OptimizerConfig):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    momentum: float


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Warm-up, common to all schedules."""

    kind: str
    warmup_steps: int


@dataclass(frozen=True, kw_only=True)
class ConstantConfig(SchedulerConfig):
    """The same learning rate at every step after warm-up."""

    kind: Literal["constant"]


@dataclass(frozen=True, kw_only=True)
class CosineConfig(SchedulerConfig):
    """Half a cosine from the peak to `min_lr` over `total_steps`."""

    kind: Literal["cosine"]
    total_steps: int
    min_lr: float


@dataclass(frozen=True, kw_only=True)
class InverseSquareRootConfig(SchedulerConfig):
    """The learning rate falls with the inverse square root of the step."""

    kind: Literal["inv_sqrt"]


@dataclass(frozen=True, kw_only=True)
class PlateauConfig(SchedulerConfig):
    """The learning rate is multiplied by `factor` after `patience` validations without an improvement."""

    kind: Literal["plateau"]
    factor: float
    patience: int
    min_lr: float


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How validation and test read: independent of training's lengths."""

    batch_size: int
    segment_len: int
    mem_len: int
    clamp_len: int | None
    same_length: bool


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Every plain argument of Lightning's Trainer; intervals count optimizer steps."""

    accelerator: str
    strategy: str
    devices: int | str | list[int]
    num_nodes: int
    precision: int | str | None
    fast_dev_run: bool | int
    max_epochs: int | None
    min_epochs: int | None
    max_steps: int
    min_steps: int | None
    max_time: str | None
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    limit_test_batches: int | float | None
    limit_predict_batches: int | float | None
    overfit_batches: int | float
    val_check_interval: int | float | None
    check_val_every_n_epoch: int | None
    num_sanity_val_steps: int | None
    log_every_n_steps: int
    enable_checkpointing: bool
    enable_progress_bar: bool
    enable_model_summary: bool
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: Literal["norm", "value"]
    deterministic: bool | str | None
    benchmark: bool | None
    inference_mode: bool
    use_distributed_sampler: bool
    profiler: str | None
    detect_anomaly: bool
    barebones: bool
    sync_batchnorm: bool
    reload_dataloaders_every_n_epochs: int
    default_root_dir: str | None
    enable_autolog_hparams: bool
    model_registry: str | None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When `last.ckpt` is written; `best.ckpt` follows each validation that is the best so far."""

    every_n_train_steps: int


@dataclass(frozen=True, kw_only=True)
class ThroughputConfig:
    """Peak of the devices together, operations a second; null means measured once on this machine."""

    peak_flops: float | None


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """A text sampled after each validation; 0 tokens turns it off."""

    n_tokens: int
    temperature: float
    top_k: int | None


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The comparison of memory lengths at the end, on the first tokens of the test split; 0 turns it off."""

    memory_tokens: int


@dataclass(frozen=True, kw_only=True)
class CallbacksConfig:
    """What runs beside training."""

    checkpoint: CheckpointConfig
    throughput: ThroughputConfig
    sample: SampleConfig
    report: ReportConfig


@dataclass(frozen=True, kw_only=True)
class NoLoggerConfig:
    """Nothing but `metrics.jsonl`, which is always written."""

    kind: Literal["none"]


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Weights & Biases; `mode: auto` means online when a key is known and the server answers, else offline."""

    kind: Literal["wandb"]
    project: str
    entity: str | None
    group: str | None
    tags: list[str]
    mode: Literal["auto", "online", "offline", "disabled"]
    timeout_seconds: float


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, whole."""

    seed: int
    name: str | None
    resume: str | None
    model: ModelConfig
    recipe: RecipeConfig
    data: StdlibConfig | TextConfig | Wikitext103Config | RecallConfig
    optimizer: AdamConfig | SgdConfig
    scheduler: ConstantConfig | CosineConfig | InverseSquareRootConfig | PlateauConfig
    eval: EvalConfig
    trainer: TrainerConfig
    callbacks: CallbacksConfig
    logger: WandbConfig | NoLoggerConfig


T = TypeVar("T")


def nearest(name: str, known: list[str]) -> str:
    """Give the end of a sentence about a name that is not among `known`: the nearest one, or all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if close:
        return f"the nearest is {close[0]}"
    return f"known are {', '.join(sorted(known))}"


def parse(cls: type[T], value: Any, key: str = "") -> T:
    """Turn plain containers into the dataclass `cls`.

    Args:
        cls: a dataclass of this module.
        value: mapping of field names to plain values.
        key: dotted path of `value`, for messages.

    Raises:
        UserError: an unknown or missing key, or a value of another type; all of them in one sentence.
    """
    problems: list[str] = []
    result = _parse_dataclass(cls, value, key, problems)
    if problems:
        raise UserError("; ".join(problems))
    return result  # type: ignore[no-any-return]


def _parse_dataclass(cls: Any, value: Any, key: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        problems.append(f"{key or 'the configuration'} is {value!r}, and must be a group of settings")
        return None
    hints = get_type_hints(cls)
    for name in value:
        if name not in hints:
            problems.append(f"{_join(key, str(name))} is not a setting ({nearest(str(name), list(hints))})")
    arguments = {}
    for name, hint in hints.items():
        if name not in value:
            problems.append(f"{_join(key, name)} is missing")
        else:
            arguments[name] = _parse_value(hint, value[name], _join(key, name), problems)
    return None if problems else cls(**arguments)


def _parse_value(hint: Any, value: Any, key: str, problems: list[str]) -> Any:
    options = list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]
    classes = [option for option in options if dataclasses.is_dataclass(option)]
    if len(classes) > 1:
        return _parse_kind(classes, value, key, problems)
    for option in options:
        if option is type(None):
            if value is None:
                return None
        elif dataclasses.is_dataclass(option):
            if value is not None or len(options) == 1:
                return _parse_dataclass(option, value, key, problems)
        elif get_origin(option) is Literal:
            if value in get_args(option):
                return value
        elif get_origin(option) is list:
            (item,) = get_args(option)
            if isinstance(value, list | tuple):
                return [_parse_value(item, v, f"{key}[{i}]", problems) for i, v in enumerate(value)]
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        elif isinstance(value, option) and (option is bool or not isinstance(value, bool)):
            return value
    problems.append(f"{key} is {value!r}, and must be {_describe(options)}")
    return None


def _parse_kind(classes: list[Any], value: Any, key: str, problems: list[str]) -> Any:
    kinds = {kind: cls for cls in classes for kind in get_args(get_type_hints(cls)["kind"])}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind not in kinds:
        problems.append(f"{key}.kind is {kind!r} ({nearest(str(kind), list(kinds))})")
        return None
    return _parse_dataclass(kinds[kind], value, key, problems)


def _describe(options: list[Any]) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    words = []
    for option in options:
        if get_origin(option) is Literal:
            choices = [str(choice) for choice in get_args(option)]
            words.append(f"one of {', '.join(choices)}")
        elif get_origin(option) is list:
            words.append("a list")
        else:
            words.append(names.get(option, "a group of settings"))
    return " or ".join(words)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def check(config: Config) -> None:
    """Refuse values that cannot work, before any work begins.

    Raises:
        UserError: every problem found, in one sentence.
    """
    problems = [
        *_check_model(config.model),
        *_check_lengths(config),
        *_check_data(config.data),
        *_check_optimization(config),
        *_check_trainer(config.trainer),
    ]
    if problems:
        raise UserError("; ".join(problems))


def _at_least(minimum: float, **values: float | None) -> list[str]:
    return [
        f"{name.replace('__', '.')} is {value}, and must be at least {minimum}"
        for name, value in values.items()
        if value is not None and not value >= minimum
    ]


def _within(low: float, high: float, **values: float) -> list[str]:
    return [
        f"{name.replace('__', '.')} is {value}, and must be at least {low} and below {high}"
        for name, value in values.items()
        if not low <= value < high
    ]


def _check_model(model: ModelConfig) -> list[str]:
    problems = _at_least(
        1,
        model__n_layer=model.n_layer,
        model__d_model=model.d_model,
        model__n_head=model.n_head,
        model__d_head=model.d_head,
        model__d_inner=model.d_inner,
    )
    if model.d_model % 2:
        problems.append(f"model.d_model is {model.d_model}, and must be even: half sines, half cosines")
    problems += _within(0, 1, model__dropout=model.dropout, model__dropatt=model.dropatt)
    return problems + _at_least(0, model__init_std=model.init_std)


def _check_lengths(config: Config) -> list[str]:
    problems = []
    for key, lengths in (("model", config.model), ("eval", config.eval)):
        if lengths.mem_len < 0:
            problems.append(f"{key}.mem_len is {lengths.mem_len}, and must be at least 0")
        if lengths.same_length and lengths.mem_len == 0:
            problems.append(f"{key}.same_length is true with {key}.mem_len 0, and needs a mem_len of at least 1")
        if lengths.clamp_len is not None and lengths.clamp_len < 0:
            problems.append(f"{key}.clamp_len is {lengths.clamp_len}, and must be null (off) or at least 0")
    return problems + _at_least(
        1,
        data__batch_size=config.data.batch_size,
        data__segment_len=config.data.segment_len,
        data__lane_chunks=config.data.lane_chunks,
        eval__batch_size=config.eval.batch_size,
        eval__segment_len=config.eval.segment_len,
    )


def _check_data(data: DataConfig) -> list[str]:
    problems = []
    if isinstance(data, TextConfig) and data.path is None:
        problems.append("data.path is null, and must name a text file or a folder of text files")
    if isinstance(data, Wikitext103Config):
        if data.dir is None:
            problems.append(
                "data.dir is null, and must name the folder that holds wiki.train.tokens, wiki.valid.tokens and "
                "wiki.test.tokens of WikiText-103"
            )
        if data.tokenizer != "word":
            problems.append(f"data.tokenizer is {data.tokenizer!r}, and must be 'word' for WikiText-103's token files")
    if isinstance(data, StdlibConfig | TextConfig):
        problems += _within(0, 1, data__valid_fraction=data.valid_fraction, data__test_fraction=data.test_fraction)
        if data.valid_fraction + data.test_fraction >= 1:
            problems.append(
                f"data.valid_fraction {data.valid_fraction} and data.test_fraction {data.test_fraction} leave no "
                "training text, and must add up to less than 1"
            )
    if isinstance(data, RecallConfig):
        problems += _at_least(2, data__n_symbols=data.n_symbols)
        problems += _at_least(1, data__block_len=data.block_len)
        period = 2 * data.block_len
        problems += _at_least(period, data__train_tokens=data.train_tokens, data__eval_tokens=data.eval_tokens)
    return problems


def _check_optimization(config: Config) -> list[str]:
    optimizer, scheduler = config.optimizer, config.scheduler
    problems = _at_least(
        0,
        optimizer__lr=optimizer.lr,
        optimizer__weight_decay=optimizer.weight_decay,
        scheduler__warmup_steps=scheduler.warmup_steps,
    )
    if isinstance(optimizer, AdamConfig):
        problems += _within(0, 1, optimizer__beta1=optimizer.beta1, optimizer__beta2=optimizer.beta2)
        problems += _at_least(0, optimizer__eps=optimizer.eps)
    else:
        problems += _within(0, 1, optimizer__momentum=optimizer.momentum)
    if isinstance(scheduler, CosineConfig):
        problems += _at_least(0, scheduler__min_lr=scheduler.min_lr)
        if scheduler.total_steps != -1:
            problems += _at_least(1, scheduler__total_steps=scheduler.total_steps)
    if isinstance(scheduler, PlateauConfig):
        problems += _within(0, 1, scheduler__factor=scheduler.factor)
        problems += _at_least(0, scheduler__patience=scheduler.patience, scheduler__min_lr=scheduler.min_lr)
    return problems


def _check_trainer(trainer: TrainerConfig) -> list[str]:
    problems = _at_least(
        1,
        trainer__accumulate_grad_batches=trainer.accumulate_grad_batches,
        trainer__log_every_n_steps=trainer.log_every_n_steps,
        trainer__num_nodes=trainer.num_nodes,
        trainer__max_epochs=trainer.max_epochs if trainer.max_epochs != -1 else None,
        trainer__check_val_every_n_epoch=trainer.check_val_every_n_epoch,
    )
    problems += _at_least(0, trainer__gradient_clip_val=trainer.gradient_clip_val)
    if trainer.max_steps < 1 and trainer.max_steps != -1:
        problems.append(f"trainer.max_steps is {trainer.max_steps}, and must be at least 1, or -1 with max_epochs")
    if trainer.max_steps == -1 and trainer.max_epochs is None:
        problems.append("trainer.max_steps is -1 and trainer.max_epochs is null; one of them must say when to stop")
    interval = trainer.val_check_interval
    if isinstance(interval, int) and interval < 1:
        problems.append(f"trainer.val_check_interval is {interval}, and must be at least 1 optimizer step")
    if isinstance(interval, float) and not 0 < interval <= 1:
        problems.append(
            f"trainer.val_check_interval is {interval}, and must be a whole number of optimizer steps, or a fraction "
            "of an epoch above 0 and at most 1"
        )
    return problems
