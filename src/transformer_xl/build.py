"""From configuration to data, model, module and trainer; every derived value is computed here and nowhere else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from omegaconf import DictConfig, OmegaConf

from transformer_xl import init_from
from transformer_xl.config import (
    Config,
    ConstantConfig,
    CosineConfig,
    InverseSquareRootConfig,
    PlateauConfig,
    RecallConfig,
)
from transformer_xl.data.corpus import open_corpus
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.recall import Recall
from transformer_xl.data.tokenizer import Vocabulary
from transformer_xl.errors import UserError
from transformer_xl.inference.sampling import sample_tokens
from transformer_xl.interop.native import CHECKPOINT_FORMAT
from transformer_xl.model.clusters import kept_cutoffs
from transformer_xl.model.interface import LanguageModel
from transformer_xl.model.registry import make_model
from transformer_xl.parsing import parse
from transformer_xl.plan import Plan
from transformer_xl.run_config import expanded
from transformer_xl.training.callbacks.checkpoint import Checkpoints
from transformer_xl.training.callbacks.progress import ProgressDisplay
from transformer_xl.training.callbacks.recorder import Recorder
from transformer_xl.training.callbacks.sample import Samples
from transformer_xl.training.callbacks.weight_average import WeightAverage
from transformer_xl.training.checkpoint_file import CheckpointFile
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.optim import make_optimizer, parameter_groups
from transformer_xl.training.schedule import Constant, Cosine, InverseSquareRoot, Plateau, Schedule

PROMPT_TOKENS = 64
_COUNTED_TOKENS = 1_000_000
_SCHEDULES: dict[type, Callable[..., Schedule]] = {
    ConstantConfig: Constant,
    CosineConfig: Cosine,
    InverseSquareRootConfig: InverseSquareRoot,
    PlateauConfig: Plateau,
}
# Arguments of Trainer whose meaning is worked out here, or that this program's own callbacks take over.
_DERIVED_ARGUMENTS = {
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "default_root_dir",
    "enable_checkpointing",
    "enable_progress_bar",
    "fast_dev_run",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "log_every_n_steps",
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "overfit_batches",
    "val_check_interval",
}
_REFUSED_BY_BAREBONES = {"num_sanity_val_steps", "enable_model_summary", "detect_anomaly", "profiler"}


def typed_config(composed: DictConfig) -> Config:
    """Turn what Hydra composed into the typed configuration, with paths expanded."""
    return expanded(parse(Config, OmegaConf.to_container(composed, resolve=True)))


def composed_from_source(composed: DictConfig, source: LanguageModel, *, given: Collection[str]) -> DictConfig:
    """Put the source's network into what Hydra composed, before the other groups' references are looked up."""
    asked = OmegaConf.to_container(composed.model, resolve=True)
    assert isinstance(asked, dict)
    named = {str(name): value for name, value in asked.items()}
    composed = composed.copy()
    OmegaConf.set_struct(composed, False)
    composed.model = init_from.model_settings(source, named, given=given, init_from=str(composed.init_from))
    return composed


def open_data(
    config: Config, *, vocabulary: Vocabulary | None, extend: bool, announce: Callable[[str], None]
) -> Dataset:
    """Open the corpus, building its token files where they are not ready.

    Args:
        config: of the run.
        vocabulary: to read the text with; None: the text's own.
        extend: whether symbols that it lacks are added.
        announce: gets what a person should know.
    """
    if isinstance(config.data, RecallConfig):
        return Recall(config=config.data, seed=config.seed)
    return open_corpus(config.data, announce=announce, vocabulary=vocabulary, extend=extend)


def make_network(
    config: Config, data: Dataset, *, source: LanguageModel | None, announce: Callable[[str], None]
) -> LanguageModel:
    """Make the model, its weights drawn from `seed`, or copied from a trained one.

    Raises:
        UserError: an adaptive vocabulary is not sorted by frequency; the trained weights do not fit.
    """
    vocabulary = data.vocabulary
    cutoffs = kept_cutoffs(config.model, vocab_size=vocabulary.size)
    if cutoffs and not vocabulary.by_frequency:
        raise UserError(
            f"model.cutoffs is {config.model.cutoffs}, which needs a vocabulary sorted by frequency, and the "
            f"{vocabulary.kind} vocabulary of data={data.name} is not: use model.cutoffs=[] model.div_val=1"
        )
    if cutoffs != config.model.cutoffs:
        announce(
            f"note     model.cutoffs {config.model.cutoffs} is cut to {cutoffs}: the vocabulary has {vocabulary.size:,}"
        )
    torch.manual_seed(config.seed)
    model = make_model(config.model, vocab_size=vocabulary.size)
    model.vocabulary = vocabulary
    if source is not None:
        init_from.copy_weights(source, model, init_from=str(config.init_from))
    # Lightning loads a checkpoint's weights before it converts the module, which would round them to float32
    return model.double() if str(config.trainer.precision).startswith("64") else model


def make_module(config: Config, data: Dataset, model: LanguageModel, plan: Plan, *, run_id: str) -> LanguageModule:
    """Make the LightningModule."""
    scheduler = config.scheduler
    if isinstance(scheduler, CosineConfig) and scheduler.total_steps == -1:
        scheduler = replace(scheduler, total_steps=plan.max_steps)
    optimizer = config.optimizer

    def optimizer_for_model() -> torch.optim.Optimizer:
        groups = parameter_groups(
            model, weight_decay=optimizer.weight_decay, decay_embeddings=optimizer.decay_embeddings
        )
        # with float16 the gradients must be unscaled and clipped before a fused step could see them
        return make_optimizer(optimizer, groups, fused=config.trainer.precision not in ("16-mixed", "16", 16))

    return LanguageModule(
        model=model,
        make_optimizer=optimizer_for_model,
        schedule=_SCHEDULES[type(scheduler)](peak=optimizer.lr, config=scheduler),
        eval_config=config.eval,
        seed=config.seed,
        identity={
            "format_version": CHECKPOINT_FORMAT,
            "config": dataclasses.asdict(config),
            "vocabulary": data.vocabulary.to_json(),
            "run_id": run_id,
            "data_checksum": data.fingerprint.sha256,
        },
    )


def make_datamodule(config: Config, data: Dataset, plan: Plan) -> LaneDataModule:
    """Make the LightningDataModule."""
    return LaneDataModule(
        corpus=data,
        config=config.data,
        eval_config=config.eval,
        segments=plan.layout,
        accumulate=config.trainer.accumulate_grad_batches,
        max_steps=plan.max_steps,
    )


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """This program's callbacks, by what they do."""

    recorder: Recorder
    checkpoints: Checkpoints
    others: list[Callback]

    def in_order(self) -> list[Callback]:
        """Give them so that a step is recorded, shown and sampled before its checkpoint is written.

        After a validation the average gives way to the raw weights between the sample and the checkpoint.
        """
        return [self.recorder, *self.others, self.checkpoints]


def make_callbacks(
    config: Config, data: Dataset, model: LanguageModel, plan: Plan, datamodule: LaneDataModule, *, folder: Path
) -> Callbacks:
    """Make what runs beside training."""
    unit = data.vocabulary.unit
    step_flops = model.step_flops(
        batch_size=config.data.batch_size,
        segment_len=config.data.segment_len,
        cluster_shares=_cluster_shares(model, data),
    )
    recorder = Recorder(
        folder=folder,
        every_n_steps=plan.log_every,
        tokens_after=datamodule.tokens_after,
        flops_a_token=step_flops / (config.data.batch_size * config.data.segment_len),
        peak_flops=config.callbacks.throughput.peak_flops,
        clip=config.trainer.gradient_clip_val if config.trainer.gradient_clip_algorithm == "norm" else None,
        unit=unit,
    )
    others: list[Callback] = []
    if config.trainer.enable_progress_bar:
        others.append(ProgressDisplay(recorder=recorder, max_steps=plan.max_steps, unit=unit))
    if config.callbacks.sample.n_tokens > 0 and not config.trainer.fast_dev_run:
        others.append(Samples(folder=folder / "samples", sample=make_sampler(config, data)))
    average = config.callbacks.weight_average
    if average.start_step is not None:
        others.append(WeightAverage(start_step=average.start_step, decay=average.decay))
    checkpoints = Checkpoints(
        folder=folder / "checkpoints",
        recorder=recorder,
        every_n_steps=config.callbacks.checkpoint.every_n_train_steps,
        validate_every_n_steps=plan.validate_every,
        max_steps=plan.max_steps,
        enabled=plan.checkpointing,
        min_steps=plan.min_steps,
        max_seconds=plan.max_seconds,
    )
    return Callbacks(recorder=recorder, checkpoints=checkpoints, others=others)


def _cluster_shares(model: LanguageModel, data: Dataset) -> list[float]:
    """Estimate how often training's tokens are in each cluster of the vocabulary, from the first ones."""
    edges = model.clusters.edges
    if len(edges) == 2:
        return [1.0]
    lanes = data.lanes("train", batch_size=1, segment_len=1, evaluation=True)
    first = lanes.read(epoch=0, lanes=range(1), start=0, stop=min(lanes.lane_len, _COUNTED_TOKENS))
    counts, _ = np.histogram(first.tokens_BT, bins=edges)
    return [float(share) for share in counts / counts.sum()]


def make_sampler(config: Config, data: Dataset) -> Callable[[LanguageModel], str]:
    """Make the function that continues the beginning of the validation split (or of training's, without one)."""
    split = "valid" if data.counts()["valid"] > PROMPT_TOKENS else "train"
    lanes = data.lanes(split, batch_size=1, segment_len=1, evaluation=True)
    start = lanes.read(epoch=0, lanes=range(1), start=0, stop=min(PROMPT_TOKENS, lanes.lane_len))
    prompt = start.tokens_BT[0].tolist()

    def sample(model: LanguageModel) -> str:
        drawn = sample_tokens(
            model,
            prompt,
            n_tokens=config.callbacks.sample.n_tokens,
            segment_len=config.eval.segment_len,
            temperature=config.callbacks.sample.temperature,
            top_k=config.callbacks.sample.top_k,
            seed=config.seed,
        )
        return data.vocabulary.decode([*prompt, *drawn])

    return sample


def make_trainer(config: Config, plan: Plan, callbacks: Callbacks, *, folder: Path) -> Trainer:
    """Make Lightning's Trainer, its intervals turned from optimizer steps into batches.

    Raises:
        UserError: a device or precision that is not there; more processes than lanes.
    """
    settings = dataclasses.asdict(config.trainer)
    plain = {name: value for name, value in settings.items() if name not in _DERIVED_ARGUMENTS}
    if config.trainer.barebones:
        plain = {name: value for name, value in plain.items() if name not in _REFUSED_BY_BAREBONES}
        own: dict[str, Any] = {}
    else:
        own = {"logger": False, "log_every_n_steps": 1}
        own |= {"enable_checkpointing": False, "enable_progress_bar": False}
    try:
        trainer = Trainer(
            **plain,
            **own,
            callbacks=callbacks.in_order(),
            plugins=[CheckpointFile()],
            default_root_dir=settings["default_root_dir"] or folder,
            max_steps=plan.max_steps,
            accumulate_grad_batches=plan.micro_batches,
            val_check_interval=None if plan.validate_every is None else plan.validate_every * plan.micro_batches,
            check_val_every_n_epoch=None,
            limit_val_batches=plan.limit_val,
            limit_test_batches=plan.limit_test,
        )
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise UserError(_trainer_problem(config, error)) from error
    _check_processes(config, trainer.world_size)
    return trainer


def _trainer_problem(config: Config, error: Exception) -> str:
    trainer = config.trainer
    text = " ".join(str(error).split())
    return (
        f"Lightning refuses trainer.accelerator={trainer.accelerator}, trainer.devices={trainer.devices}, "
        f"trainer.strategy={trainer.strategy}, trainer.precision={trainer.precision}: {text}"
    )


def _check_processes(config: Config, processes: int) -> None:
    problems = []
    for key, lanes in (("data", config.data.batch_size), ("eval", config.eval.batch_size)):
        if lanes < processes:
            problems.append(f"{key}.batch_size is {lanes}, and must be at least {processes}, one lane a process")
    fewest = config.data.batch_size // processes
    if not problems and config.data.lane_chunks > fewest:
        problems.append(
            f"data.lane_chunks is {config.data.lane_chunks}, and must be at most {fewest}, the lanes of a process"
        )
    if problems:
        raise UserError("; ".join(problems))


def wants_logger(config: Config) -> bool:
    """Say whether the run may have a logger: not one that only tries things out."""
    return not config.trainer.fast_dev_run and not config.trainer.barebones
