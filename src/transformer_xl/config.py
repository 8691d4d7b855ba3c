"""Typed schema of the configuration groups.

The numbers stand in `conf/`; here are only names and types, as frozen standard-library dataclasses. `parsing.py` makes
them from plain containers, `checks.py` refuses values that cannot work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from transformer_xl.data_config import AnyDataConfig
from transformer_xl.model_config import AnyModelConfig


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
class LambConfig(OptimizerConfig):
    """LAMB: Adam's step scaled for each tensor to its weights' norm."""

    kind: Literal["lamb"]
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
    stride: int | None


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
    deterministic: bool | Literal["warn"] | None
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
    """When `last.ckpt` is written, and what is kept; `best.ckpt` follows each validation that is the best so far."""

    every_n_train_steps: int
    keep: int
    save_memory: Literal["float32", "bfloat16", "none"]


@dataclass(frozen=True, kw_only=True)
class NonfiniteConfig:
    """What happens when a gradient is not a finite number; `skip` ends the run after so many steps in a row."""

    action: Literal["stop", "skip"]
    max_in_a_row: int


@dataclass(frozen=True, kw_only=True)
class DivergenceConfig:
    """A training loss so far above its best for so many steps is named in the log."""

    nats: float
    steps: int


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
class MemoryGainConfig:
    """What memory gives in each validation, on its first tokens; 0 turns it off."""

    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The comparison of memory lengths at the end, on the first tokens of the test split; 0 turns it off."""

    memory_tokens: int
    zero_start: bool
    compare_with: str | None


@dataclass(frozen=True, kw_only=True)
class WeightAverageConfig:
    """An average of the weights over steps, which validation, test and `load_model` use; `start_step` null: none."""

    start_step: int | None
    decay: float | None


@dataclass(frozen=True, kw_only=True)
class CallbacksConfig:
    """What runs beside training."""

    checkpoint: CheckpointConfig
    nonfinite: NonfiniteConfig
    divergence: DivergenceConfig
    throughput: ThroughputConfig
    sample: SampleConfig
    memory_gain: MemoryGainConfig
    report: ReportConfig
    weight_average: WeightAverageConfig


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
    init_from: str | None
    init_vocabulary: Literal["keep", "extend"]
    compile: bool
    model: AnyModelConfig
    recipe: RecipeConfig
    data: AnyDataConfig
    optimizer: AdamConfig | LambConfig | SgdConfig
    scheduler: ConstantConfig | CosineConfig | InverseSquareRootConfig | PlateauConfig
    eval: EvalConfig
    trainer: TrainerConfig
    callbacks: CallbacksConfig
    logger: WandbConfig | NoLoggerConfig
