"""From configuration to what trains: callbacks, the sampler, and Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from rich.console import Console

from transformer_xl import launchers
from transformer_xl.build import identity
from transformer_xl.config import Config
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.units import beside_scores, units_of
from transformer_xl.errors import UserError
from transformer_xl.inference.generate import sample_text
from transformer_xl.inference_config import SamplingParams
from transformer_xl.model.base import LanguageModel
from transformer_xl.plan import Plan
from transformer_xl.settings import plain
from transformer_xl.training.callbacks.checkpoint import Checkpoints
from transformer_xl.training.callbacks.heartbeat import Heartbeat
from transformer_xl.training.callbacks.progress import ProgressDisplay
from transformer_xl.training.callbacks.recorder import Recorder
from transformer_xl.training.callbacks.sample import Samples
from transformer_xl.training.callbacks.weight_average import WeightAverage
from transformer_xl.training.checkpoint_file import CheckpointFile
from transformer_xl.training.figures import StepFigures
from transformer_xl.training.lightning_signals import leave_signals_alone
from transformer_xl.training.signals import StopSignals
from transformer_xl.training.stops import Stops

PROMPT_TOKENS = 64
_COUNTED_TOKENS = 1_000_000
# Arguments of Trainer whose meaning is worked out here, or that this program's own callbacks take over.
_DERIVED_ARGUMENTS = {
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
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


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """This program's callbacks, by what they do."""

    recorder: Recorder
    checkpoints: Checkpoints
    others: list[Callback]
    samples: list[Callback]

    def in_order(self) -> list[Callback]:
        """Return them so that a step is recorded and shown before its checkpoint is written, and sampled after it.

        After a validation the average gives way to the raw weights before the checkpoint.
        """
        return [self.recorder, *self.others, self.checkpoints, *self.samples]


def make_callbacks(
    config: Config,
    data: Dataset,
    model: LanguageModel,
    plan: Plan,
    datamodule: LaneDataModule,
    *,
    folder: Path,
    signals: StopSignals,
    run_id: str,
) -> Callbacks:
    """Make what runs beside training."""
    units = units_of(data)
    console = Console(highlight=False)
    step_flops = model.step_flops(
        batch_size=config.data.batch_size,
        segment_len=config.data.segment_len,
        cluster_shares=_cluster_shares(model, data),
    )
    figures = StepFigures(
        every_n_steps=plan.log_every,
        max_steps=plan.max_steps,
        tokens_after=datamodule.tokens_after,
        flops_a_token=step_flops / (config.data.batch_size * config.data.segment_len),
        peak_flops=config.callbacks.throughput.peak_flops,
        clip=config.trainer.gradient_clip_val if config.trainer.gradient_clip_algorithm == "norm" else None,
        unit=units["train"],
    )
    recorder = Recorder(
        folder=folder,
        fetch_every_n_steps=plan.log_every,
        tokens_after=datamodule.tokens_after,
        units=units,
        figures=figures,
    )
    others: list[Callback] = [Heartbeat(signals)]
    if config.trainer.enable_progress_bar:
        others.append(
            ProgressDisplay(
                recorder=recorder,
                max_steps=plan.max_steps,
                units=units,
                beside=beside_scores(data),
                console=console,
            )
        )
    settings, average = config.callbacks.weight_average, None
    if settings.start_step is not None:
        average = WeightAverage(start_step=settings.start_step, decay=settings.decay)
        others.append(average)
    samples: list[Callback] = []
    if config.callbacks.sample.n_tokens > 0 and not config.trainer.fast_dev_run:
        samples.append(Samples(folder=folder / "samples", sample=make_sampler(config, data), average=average))
    checkpoints = Checkpoints(
        folder=folder / "checkpoints",
        recorder=recorder,
        every_n_steps=config.callbacks.checkpoint.every_n_train_steps,
        keep=config.callbacks.checkpoint.keep,
        validate_every_n_steps=plan.validate_every,
        max_steps=plan.max_steps,
        enabled=plan.checkpointing,
        stops=Stops(signals=signals, min_steps=plan.min_steps, max_steps=plan.max_steps, max_seconds=plan.max_seconds),
        identity=identity(config, data, run_id=run_id),
    )
    return Callbacks(recorder=recorder, checkpoints=checkpoints, others=others, samples=samples)


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
        chosen = config.callbacks.sample
        return sample_text(
            model,
            data.vocabulary,
            prompt,
            n_tokens=chosen.n_tokens,
            segment_len=config.eval.segment_len,
            params=SamplingParams(temperature=chosen.temperature, top_k=chosen.top_k),
            seed=config.seed,
        )

    return sample


def make_trainer(config: Config, plan: Plan, callbacks: Callbacks, *, folder: Path) -> Trainer:
    """Make Lightning's Trainer, its intervals turned from optimizer steps into batches.

    Raises:
        UserError: a device or precision that is not there; more processes than lanes, or other than were started.
    """
    handed_on = {name: value for name, value in plain(config.trainer).items() if name not in _DERIVED_ARGUMENTS}
    environment = launchers.cluster_environment()
    try:
        trainer = Trainer(
            **handed_on,
            logger=False,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            use_distributed_sampler=False,
            callbacks=callbacks.in_order(),
            plugins=[CheckpointFile(), *([environment] if environment is not None else [])],
            default_root_dir=folder,
            max_steps=plan.max_steps,
            accumulate_grad_batches=plan.micro_batches,
            val_check_interval=None if plan.validate_every is None else plan.validate_every * plan.micro_batches,
            check_val_every_n_epoch=None,
            limit_val_batches=plan.limit_val,
            limit_test_batches=plan.limit_test,
        )
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise UserError(_trainer_problem(config, error)) from error
    launchers.check_number_of_processes(trainer, environment)
    _check_processes(config, trainer.world_size)
    leave_signals_alone(trainer)
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
    return not config.trainer.fast_dev_run
