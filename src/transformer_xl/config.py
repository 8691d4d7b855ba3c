"""All settings of a run, group by group: names, types, and beside them the rules; the numbers stand in `conf/`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

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


class EvalConfig(LongEvalConfig):
    """How validation and test read: independent of training's lengths."""

    batch_size: Count
    stride: Count | None

    def rules(self) -> Iterator[str]:
        if self.stride is not None and (self.stride > self.segment_len or self.same_length):
            yield f"stride is {self.stride}, and needs eval.segment_len of at least that and eval.same_length=false"


def reading_problems(lengths: EvalConfig | ModelConfig, model: ModelConfig, group: str = "eval") -> Iterator[str]:
    """Yield what of the lengths of `group` a network cannot read; a part of a sentence for each."""
    network: Any = lookup("model", model.kind).factory
    yield from network.refusals(model, lengths, group=f"{group}.")
    if isinstance(lengths, EvalConfig):
        yield from network.too_long(model, lengths.segment_len, "eval.segment_len")


# ---- Lightning's Trainer

_SET_HERE = (
    *("barebones", "callbacks", "default_root_dir", "fast_dev_run", "logger", "overfit_batches", "plugins"),
    *("reload_dataloaders_every_n_epochs", "use_distributed_sampler"),
)
"""Arguments of Trainer that have no use here."""


class DdpConfig(Settings):
    """How several processes exchange gradients; the defaults are those of run folders that do not say."""

    gradient_as_bucket_view: bool = True
    bf16_gradients: bool = False


class TrainerConfig(Settings):
    """The arguments of Lightning's Trainer that mean something here; intervals count optimizer steps.

    Any other plain argument of Trainer may be added, and is handed on.
    """

    model_config = ConfigDict(extra="allow")

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    strategy: str
    ddp: DdpConfig = DdpConfig()
    devices: int | str | list[int]
    num_nodes: Count
    precision: int | str | None
    tf32: bool = False
    max_epochs: Literal[-1] | Count | None
    max_steps: Annotated[int, Field(ge=-1)]
    max_time: str | int | None
    limit_train_batches: Count | Annotated[float, Field(gt=0, le=1)] | None
    limit_val_batches: Number | Annotated[float, Field(ge=0, le=1)] | None
    limit_test_batches: Number | Annotated[float, Field(ge=0, le=1)] | None
    val_check_interval: Count | Annotated[float, Field(gt=0, le=1)] | None
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

    @property
    def max_seconds(self) -> float | None:
        """`max_time` in seconds."""
        if self.max_time is None:
            return None
        days, hours, minutes, seconds = map(int, str(self.max_time).split(":"))
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)

    def rules(self) -> Iterator[str]:
        if any(word in self.strategy for word in ("spawn", "fork", "notebook")):
            yield f"strategy is {self.strategy!r}, and must start its processes as commands: use ddp or auto"
        if any(word in self.strategy for word in ("fsdp", "deepspeed")):
            yield (
                f"strategy is {self.strategy!r}, and must be ddp or auto: every device holds the whole model, and "
                "model.recompute=layers and data.lane_chunks make room beside it; plan=true shows how much"
            )
        if self.max_time is not None and not re.fullmatch(r"[0-9]+(:[0-9]+){3}", str(self.max_time)):
            yield f"max_time is {self.max_time!r}, and must be DAYS:HOURS:MINUTES:SECONDS, as 00:11:30:00"
        if self.max_steps == -1 and self.max_epochs in (None, -1):
            yield "max_steps is -1 and trainer.max_epochs sets no end: give one of them"
        for name in self.model_extra or {}:
            import inspect  # needed where an argument is added: the import of Lightning takes seconds

            from lightning.pytorch import Trainer

            known = inspect.signature(Trainer.__init__).parameters
            if name in _SET_HERE:
                yield f"{name} cannot be set: this program sets it"
            elif name not in known:
                yield f"{name} is not a setting, nor an argument of Lightning's Trainer ({nearest(name, list(known))})"


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


_DONE_HERE = (
    *("Checkpoint", "ModelCheckpoint", "OnExceptionCheckpoint", "ProgressBar", "TQDMProgressBar", "RichProgressBar"),
    *("WeightAveraging", "EMAWeightAveraging", "StochasticWeightAveraging", "GradientAccumulationScheduler"),
)
"""Lightning's callbacks whose work is this program's."""


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
    key, parts = f"callbacks.{name}", names("callback")
    if isinstance(own, Settings):
        return own
    if name in parts:
        return parse(lookup("callback", name).config or Settings, {} if own is None else own, key)
    if name in _DONE_HERE:
        raise UserError(f"{key} cannot be added: this program does its work")
    from lightning.pytorch import callbacks  # needed where one is added: the import of Lightning takes seconds

    if name not in callbacks.__all__:
        near = nearest(name, [*parts, *CallbacksConfig.model_fields, *callbacks.__all__])
        raise UserError(f"{key} is not a setting, nor a callback of Lightning's or of a plugin ({near})")
    if not isinstance(own, Mapping):
        raise UserError(f"{key} is {own!r}, and must be a group of the callback's arguments")
    return own


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


Logger = Annotated[LoggerConfig, by_kind("logger", LoggerConfig, {"none": LoggerConfig, "wandb": WandbConfig})]


# ---- the run

DeviceName = Literal["a100-40gb", "a100-80gb", "h100", "h200", "l40s", "rtx4090"]


class PlanConfig(Settings):
    """What a run needs, printed instead of training it: on which device (null: this machine's), for so many symbols."""

    device: DeviceName | None = None
    vocab_size: Count | None = None


def _plan(value: object) -> object:
    return ({} if value else None) if isinstance(value, bool) else value


class Config(Settings):
    """One run, whole."""

    seed: Seed
    name: str | None
    resume: str | None
    init_from: str | None
    init_vocabulary: Literal["keep", "extend"]
    compile: bool
    plan: Annotated[PlanConfig | None, BeforeValidator(_plan)] = None
    model: Model
    recipe: RecipeConfig
    data: Data
    optimizer: Annotated[OptimizerConfig, by_kind("optimizer", OptimizerConfig)]
    scheduler: Annotated[SchedulerConfig, by_kind("scheduler", SchedulerConfig)]
    eval: EvalConfig
    trainer: TrainerConfig
    callbacks: CallbacksConfig
    logger: Logger

    def rules(self) -> Iterator[str]:
        model, data = self.model, self.data
        network: Any = lookup("model", model.kind).factory
        yield from reading_problems(model, model, "model")
        yield from reading_problems(self.eval, model)
        longest = int(data.segment_len + 3 * data.segment_len_sd)
        yield from network.too_long(model, longest, "data.segment_len")
        if self.init_from is None:
            if model.div_val > 1 and not model.cutoffs:
                yield f"model.div_val is {model.div_val}, and needs clusters, as in model.cutoffs=[2000,10000]"
            if self.init_vocabulary == "extend":
                yield "init_vocabulary is 'extend' without init_from, and has nothing to extend"
            if self.trainer.max_steps == 0:
                yield "trainer.max_steps is 0, which scores a trained model and trains none: name it by init_from=MODEL"
        stays_eager = isinstance(model, TransformerConfig) and (
            model.attention == "blockwise" or model.recompute != "none"
        )
        if self.compile and (not network.compiles or stays_eager or data.segment_len_sd or data.half_segments):
            yield (
                "compile is true, and needs a transformer, another model.attention than blockwise, "
                "model.recompute=none, and segments of one length: data.segment_len_sd=0 and data.half_segments=0"
            )
