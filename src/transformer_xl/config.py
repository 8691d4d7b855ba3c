"""All settings of a run, group by group: names, types, and beside them the rules; the numbers stand in `conf/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from transformer_xl.data_config import Data
from transformer_xl.errors import UserError
from transformer_xl.model_config import Model, ModelConfig, TransformerConfig
from transformer_xl.registry import lookup, names, nearest
from transformer_xl.settings import (
    Amount,
    Count,
    Length,
    Number,
    OptimizerConfig,
    SchedulerConfig,
    Seed,
    Settings,
    Share,
    by_kind,
    names_in,
    parse,
)

# ---- lengths, recipe


class LongEvalConfig(Settings):
    """The lengths at which the paper scores a model: a longer memory than it was trained with."""

    segment_len: Count
    mem_len: Length
    clamp_len: Length | None
    same_length: bool


class RecipeConfig(Settings):
    """What a preset brings along so that it trains as published; the other groups refer to these values."""

    segment_len: Count
    batch_size: Count
    lr: Amount
    warmup_steps: Number
    max_steps: int
    val_every_n_steps: int
    gradient_clip_val: float | None
    long_eval: LongEvalConfig | None


class EvalConfig(Settings):
    """How validation and test read: independent of training's lengths."""

    batch_size: Count
    segment_len: Count
    mem_len: Length
    clamp_len: Length | None
    same_length: bool
    stride: Count | None

    def rules(self) -> Iterator[str]:
        if self.stride is not None and self.stride > self.segment_len:
            yield f"stride is {self.stride}, and must be null or at most eval.segment_len {self.segment_len}"
        if self.stride is not None and self.same_length:
            yield f"stride is {self.stride} with eval.same_length true, and windows need same_length false"


def reading_problems(lengths: EvalConfig, model: ModelConfig) -> list[str]:
    """Find what of `eval.*` a network cannot read; a sentence's part for each problem."""
    problems = list(_refusals("eval", lengths, model))
    longest = _network(model).longest_segment(model)
    if longest is not None and lengths.segment_len > longest:
        problems.append(f"eval.segment_len is {lengths.segment_len}, and must be at most {longest} for {model.label}")
    return problems


def _network(model: ModelConfig) -> Any:
    """Return the class of a network, which says what it can read."""
    return lookup("model", model.kind).factory


def _refusals(group: str, lengths: EvalConfig | ModelConfig, model: ModelConfig) -> Iterator[str]:
    yield from _network(model).refusals(
        model,
        mem_len=lengths.mem_len,
        clamp_len=lengths.clamp_len,
        same_length=lengths.same_length,
        group=f"{group}.",
    )


# ---- Lightning's Trainer

_SET_HERE = {
    "barebones": "this program's callbacks are what it leaves out",
    "callbacks": "callbacks.* says what runs beside training",
    "default_root_dir": "hydra.run.dir is the run folder",
    "fast_dev_run": "trainer.max_steps and trainer.limit_*_batches try a run",
    "logger": "logger=wandb or logger=none chooses it",
    "overfit_batches": "trainer.limit_train_batches makes short epochs",
    "plugins": "plugins=[FILE] adds parts of your own",
    "reload_dataloaders_every_n_epochs": "one loader reads the corpus in its order",
    "use_distributed_sampler": "the loader deals out the lanes",
}
"""Arguments of Trainer that this program sets, and what is to be said instead."""


class TrainerConfig(Settings):
    """The arguments of Lightning's Trainer that mean something here; intervals count optimizer steps.

    Any other plain argument of Trainer may be added, and is handed on.
    """

    model_config = ConfigDict(extra="allow")

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    strategy: str
    devices: int | str | list[int]
    num_nodes: Count
    precision: int | str | None
    max_epochs: Annotated[int, Field(ge=-1)] | None
    max_steps: Annotated[int, Field(ge=-1)]
    max_time: str | None
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    limit_test_batches: int | float | None
    val_check_interval: int | float | None
    check_val_every_n_epoch: Count | None
    num_sanity_val_steps: int | None
    log_every_n_steps: Count
    enable_checkpointing: bool
    enable_progress_bar: bool
    enable_model_summary: bool
    accumulate_grad_batches: Count
    gradient_clip_val: Annotated[float, Field(gt=0)] | None
    gradient_clip_algorithm: Literal["norm", "value"]
    deterministic: bool | Literal["warn"] | None
    benchmark: bool | None
    profiler: str | None
    detect_anomaly: bool

    def rules(self) -> Iterator[str]:
        yield from self._other_arguments()
        if self.max_time is not None and seconds_of(self.max_time) is None:
            yield f"max_time is {self.max_time!r}, and must read DD:HH:MM:SS"
        if any(word in self.strategy for word in ("spawn", "fork", "notebook")):
            yield f"strategy is {self.strategy!r}, and must start its processes as commands: use ddp or auto"
        if self.max_steps == -1 and self.max_epochs in (None, -1):
            yield "max_steps is -1 and trainer.max_epochs sets no end: give one of them"
        if self.max_epochs == 0:
            yield "max_epochs is 0, and must be at least 1, or -1 or null for no limit"
        interval = self.val_check_interval
        if isinstance(interval, int) and interval < 1:
            yield f"val_check_interval is {interval}, and must be at least 1 optimizer step"
        if isinstance(interval, float) and not 0 < interval <= 1:
            yield (
                f"val_check_interval is {interval}, and must be a whole number of optimizer steps, or a fraction of an "
                "epoch above 0 and at most 1"
            )
        for name in ("limit_train_batches", "limit_val_batches", "limit_test_batches"):
            limit = getattr(self, name)
            if limit is not None and (limit < 0 or (limit == 0 and name == "limit_train_batches")):
                yield f"{name} is {limit}, and must be a number of segments above 0, or a share of them"
            if isinstance(limit, float) and limit > 1:
                yield f"{name} is {limit}, and must be at most 1.0 as a share, or a whole number"

    def _other_arguments(self) -> Iterator[str]:
        for name in self.model_extra or {}:
            if name in _SET_HERE:
                yield f"{name} cannot be set: {_SET_HERE[name]}"
            elif name not in _arguments_of_trainer():
                known = [*type(self).model_fields, *_arguments_of_trainer()]
                yield f"{name} is not a setting, nor an argument of Lightning's Trainer ({nearest(name, known)})"


def _arguments_of_trainer() -> list[str]:
    import inspect  # needed where an argument is added, and the import of Lightning takes seconds

    from lightning.pytorch import Trainer

    return [name for name in inspect.signature(Trainer.__init__).parameters if name not in ("self", *_SET_HERE)]


def seconds_of(max_time: str) -> float | None:
    """Read DD:HH:MM:SS; None where it is something else."""
    parts = max_time.split(":")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    days, hours, minutes, seconds = map(int, parts)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


# ---- what runs beside training


class CheckpointConfig(Settings):
    """When `last.ckpt` is written, and what is kept; `best.ckpt` follows each validation that is the best so far."""

    every_n_train_steps: Count
    keep: Count
    save_memory: bool


class ThroughputConfig(Settings):
    """Peak of the devices together, operations per second; null: that of known GPUs."""

    peak_flops: Annotated[float, Field(ge=1)] | None


class SampleConfig(Settings):
    """A text sampled after each validation; 0 tokens turns it off."""

    n_tokens: Number
    temperature: Amount
    top_k: Count | None


class MemoryGainConfig(Settings):
    """What memory gives in each validation, on its first tokens; 0 turns it off."""

    max_tokens: Number


class ReportConfig(Settings):
    """The comparison of memory lengths at the end, on the first tokens of the test split; 0 turns it off."""

    memory_tokens: Number
    zero_start: bool
    compare_with: str | None


class WeightAverageConfig(Settings):
    """An average of the weights over steps, which validation, test and `load_model` use; `start_step` null: none."""

    start_step: Count | None
    decay: Share | None

    def rules(self) -> Iterator[str]:
        if self.decay is not None and self.start_step is None:
            yield f"decay is {self.decay} with start_step null, and needs a start_step"


_DONE_HERE = {
    **dict.fromkeys(("ModelCheckpoint", "Checkpoint", "OnExceptionCheckpoint"), "callbacks.checkpoint"),
    **dict.fromkeys(("ProgressBar", "TQDMProgressBar", "RichProgressBar"), "trainer.enable_progress_bar"),
    **dict.fromkeys(("WeightAveraging", "EMAWeightAveraging", "StochasticWeightAveraging"), "callbacks.weight_average"),
    "GradientAccumulationScheduler": "trainer.accumulate_grad_batches",
}
"""Lightning's callbacks whose work is this program's, and the setting that is to be used instead."""


class CallbacksConfig(Settings):
    """What runs beside training.

    Further names are parts from outside, with their settings, and callbacks of Lightning's, with their arguments.
    """

    model_config = ConfigDict(extra="allow")

    checkpoint: CheckpointConfig
    throughput: ThroughputConfig
    sample: SampleConfig
    memory_gain: MemoryGainConfig
    report: ReportConfig
    weight_average: WeightAverageConfig

    @model_validator(mode="before")
    @classmethod
    def _with_added(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: own if name in cls.model_fields else _added(name, own) for name, own in value.items()}


def _added(name: str, own: object) -> object:
    """Return the settings of a callback that is not this program's."""
    if isinstance(own, Settings):
        return own
    key = f"callbacks.{name}"
    if name in names("callback"):
        return parse(lookup("callback", name).config or Settings, {} if own is None else own, key)
    if name in _DONE_HERE:
        raise UserError(f"{key} cannot be added: {_DONE_HERE[name]} does its work")
    known = [*names_in(CallbacksConfig, "callbacks"), *(f"callbacks.{part}" for part in names("callback"))]
    if name not in _lightnings_callbacks():
        raise UserError(
            f"{key} is not a setting, nor a callback of Lightning's ({nearest(key, known)}); a part of your own needs "
            "plugins=[FILE]"
        )
    if not isinstance(own, Mapping):
        raise UserError(f"{key} is {own!r}, and must be a group of the callback's arguments")
    return own


def _lightnings_callbacks() -> list[str]:
    from lightning.pytorch import callbacks  # needed where one is added, and the import of Lightning takes seconds

    return [name for name in callbacks.__all__ if name != "Callback"]


class LoggerConfig(Settings):
    """`kind: none`: nothing but `metrics.jsonl`, which is always written."""

    kind: str


class WandbConfig(LoggerConfig):
    """Weights & Biases; `mode: auto` means online when a key is known and the server answers, else offline."""

    kind: Literal["wandb"]
    project: str
    entity: str | None
    group: str | None
    tags: list[str]
    mode: Literal["auto", "online", "offline", "disabled"]
    timeout_seconds: Annotated[float, Field(ge=1)]


# ---- the run


class Config(Settings):
    """One run, whole."""

    seed: Seed
    name: str | None
    resume: str | None
    init_from: str | None
    init_vocabulary: Literal["keep", "extend"]
    compile: bool
    model: Model
    recipe: RecipeConfig
    data: Data
    optimizer: Annotated[OptimizerConfig, by_kind("optimizer", OptimizerConfig)]
    scheduler: Annotated[SchedulerConfig, by_kind("scheduler", SchedulerConfig)]
    eval: EvalConfig
    trainer: TrainerConfig
    callbacks: CallbacksConfig
    logger: Annotated[LoggerConfig, by_kind("logger", LoggerConfig, {"none": LoggerConfig, "wandb": WandbConfig})]

    def rules(self) -> Iterator[str]:
        model, data = self.model, self.data
        if model.div_val > 1 and not model.cutoffs and self.init_from is None:
            yield (
                f"model.div_val is {model.div_val} with model.cutoffs [], and needs clusters to narrow, as in "
                "model.cutoffs=[2000,10000]"
            )
        yield from _refusals("model", model, model)
        yield from reading_problems(self.eval, model)
        longest = _network(model).longest_segment(model)
        if longest is not None and data.longest_segment > longest:
            yield (
                f"data.segment_len is {data.segment_len} with data.segment_len_sd {data.segment_len_sd}: segments of "
                f"up to {data.longest_segment} tokens must be at most {longest} for {model.label}"
            )
        if getattr(self.scheduler, "total_steps", -1) == 0 != self.trainer.max_steps and self.init_from is None:
            yield "scheduler.total_steps is 0, and must be at least 1, or -1 for the last step"
        if self.init_vocabulary == "extend" and self.init_from is None:
            yield "init_vocabulary is 'extend' without init_from, and has nothing to extend"
        if self.trainer.max_steps == 0 and self.init_from is None:
            yield "trainer.max_steps is 0, which scores a trained model and trains none: name it by init_from=MODEL"
        if self.compile:
            yield from self._compile_rules()

    def _compile_rules(self) -> Iterator[str]:
        if not _network(self.model).compiles:
            yield f"compile is true, and must be false for {self.model.label}"
        if isinstance(self.model, TransformerConfig) and self.model.attention == "blockwise":
            yield "compile is true with model.attention 'blockwise', and needs auto, plain or sdpa"
        if self.data.segment_len_sd or self.data.half_segments:
            yield (
                f"compile is true with data.segment_len_sd {self.data.segment_len_sd:g} and data.half_segments "
                f"{self.data.half_segments:g}, and needs segments of one length: both 0"
            )
