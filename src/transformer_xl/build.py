"""From configuration to run length, corpus, model, module, data module, callbacks and trainer, in this order.

Every value that follows from configuration and corpus together is computed here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from rich.console import Console

from transformer_xl import init_from, processes
from transformer_xl.config import Config
from transformer_xl.data.build import open_corpus
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset, beside_scores
from transformer_xl.data.recall import Recall
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import RecallConfig, StoredConfig
from transformer_xl.errors import UserError
from transformer_xl.inference.generate import Session, supports_unequal
from transformer_xl.inference_config import SamplingParams
from transformer_xl.interop.native import CHECKPOINT_FORMAT
from transformer_xl.model.base import Context, LanguageModel, make_model
from transformer_xl.model.embedding import kept_cutoffs
from transformer_xl.model.transformer import Transformer, compiled_nll
from transformer_xl.run import Run
from transformer_xl.run_length import RunLength
from transformer_xl.settings import plain
from transformer_xl.training.callbacks import ProgressDisplay, Samples, WeightAverage, added_callbacks
from transformer_xl.training.checkpoint import CheckpointFile, Checkpoints
from transformer_xl.training.module import LanguageModule, TrainNll
from transformer_xl.training.recorder import Recorder
from transformer_xl.training.stopping import leave_signals_alone

PROMPT_TOKENS = 64
"""Tokens of the prompt of a sample."""

_COUNTED_TOKENS = 1_000_000
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
"""Arguments of Trainer whose meaning is worked out here, or that this program's own callbacks take over."""


# ---- corpus, model, module, data module


def open_data(
    config: Config, *, vocabulary: Tokenizer | None = None, extend: bool = False, announce: Callable[[str], None]
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
    assert isinstance(config.data, StoredConfig)
    return open_corpus(config.data, announce=announce, seed=config.seed, vocabulary=vocabulary, extend=extend)


def corpus(run: Run) -> Dataset:
    """Open the run's corpus, with a trained model's vocabulary where it begins from one."""
    config, source = run.config, run.initial_weights
    extend = source is not None and config.init_vocabulary == "extend"
    opened = open_data(config, vocabulary=run.vocabulary, extend=extend, announce=run.say)
    run.without_rebuild()
    if source is not None:
        init_from.check_vocabulary(source, opened.vocabulary, config)
        if source.vocabulary is None:
            run.say(
                f"note     {config.init_from} brings no vocabulary: its ids are taken for this text's, which is wrong "
                "unless it was trained on this very text"
            )
    return opened


def model(run: Run, corpus: Dataset) -> LanguageModel:
    """Make the model, its weights drawn from `seed`, or copied from a trained one.

    Raises:
        UserError: an adaptive vocabulary is not sorted by frequency; the trained weights do not fit.
    """
    config, weights, vocabulary = run.config, run.initial_weights, corpus.vocabulary
    cutoffs = kept_cutoffs(config.model, vocab_size=vocabulary.size)
    if cutoffs and not vocabulary.by_frequency:
        raise UserError(
            f"model.cutoffs is {config.model.cutoffs}, which needs a vocabulary sorted by frequency, and the "
            f"{vocabulary.kind} vocabulary of data={corpus.name} is not: use model.cutoffs=[] model.div_val=1"
        )
    if cutoffs != config.model.cutoffs:
        run.say(
            f"note     model.cutoffs {config.model.cutoffs} is cut to {cutoffs}: the vocabulary has {vocabulary.size:,}"
        )
    torch.manual_seed(config.seed)
    made = make_model(config.model, vocab_size=vocabulary.size)
    made.vocabulary = vocabulary
    if weights is not None:
        init_from.copy_weights(weights, made, init_from=str(config.init_from))
    # Lightning loads a checkpoint's weights before it converts the module, which would round them to float32
    return made.double() if str(config.trainer.precision).startswith("64") else made


def module(config: Config, model: LanguageModel, length: RunLength) -> LanguageModule:
    """Make the LightningModule."""
    lengths = config.eval
    return LanguageModule(
        model,
        optimizer=config.optimizer,
        schedule=config.scheduler,
        total_steps=length.max_steps,
        evaluation=Context(
            segment_len=lengths.segment_len,
            mem_len=lengths.mem_len,
            clamp_len=lengths.clamp_len,
            same_length=lengths.same_length,
            stride=lengths.stride,
        ),
        memory_gain_tokens=config.callbacks.memory_gain.max_tokens,
        seed=config.seed,
        save_memory=config.callbacks.checkpoint.save_memory,
        train_nll=_train_nll(config, model),
    )


def identity(config: Config, corpus: Dataset, *, run_id: str) -> dict[str, Any]:
    """Return what stands in every checkpoint beside the state."""
    return {
        "format_version": CHECKPOINT_FORMAT,
        "config": plain(config),
        "vocabulary": corpus.vocabulary.to_json(),
        "run_id": run_id,
        "data_checksum": corpus.fingerprint.sha256,
    }


def _train_nll(config: Config, model: LanguageModel) -> TrainNll | None:
    if not config.compile:
        return None
    assert isinstance(model, Transformer)
    return compiled_nll(model, segment_len=config.data.segment_len, backend="inductor")


def datamodule(config: Config, corpus: Dataset, length: RunLength) -> LaneDataModule:
    """Make the LightningDataModule."""
    data, lengths = config.data, config.eval
    return LaneDataModule(
        corpus,
        batch_size=data.batch_size,
        segment_len=data.segment_len,
        segment_len_sd=data.segment_len_sd,
        half_segments=data.half_segments,
        loss=data.loss,
        lane_chunks=data.lane_chunks,
        eval_batch_size=lengths.batch_size,
        eval_segment_len=lengths.segment_len,
        eval_stride=lengths.stride,
        seed=config.seed,
        segment_limit=length.segment_limit,
        steps=length.max_steps,
        accumulate=config.trainer.accumulate_grad_batches,
    )


# ---- callbacks and trainer


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """This program's callbacks, by what they do."""

    recorder: Recorder
    checkpoints: Checkpoints
    before: list[Callback]
    after: list[Callback]

    def in_order(self, more: Sequence[Callback]) -> list[Callback]:
        """Return them so that a step is recorded and shown before its checkpoint is written, and sampled after it.

        After a validation the average gives way to the raw weights before the checkpoint.
        """
        return [self.recorder, *self.before, *more, self.checkpoints, *self.after]


def callbacks(run: Run, corpus: Dataset, model: LanguageModel, length: RunLength) -> Callbacks:
    """Make what runs beside training."""
    config = run.config
    recorder = _recorder(run, corpus, model, length)
    before = added_callbacks(config.callbacks)
    if config.trainer.enable_progress_bar:
        before.append(
            ProgressDisplay(
                recorder=recorder,
                max_steps=length.max_steps,
                beside=beside_scores(corpus),
                console=Console(highlight=False),
            )
        )
    settings, average = config.callbacks.weight_average, None
    if settings.start_step is not None:
        average = WeightAverage(start_step=settings.start_step, decay=settings.decay)
        before.append(average)
    after: list[Callback] = []
    if config.callbacks.sample.n_tokens > 0 and not config.trainer.fast_dev_run:
        after.append(Samples(folder=run.folder / "samples", sample=sampler(config, corpus), average=average))
    return Callbacks(
        recorder=recorder,
        checkpoints=_checkpoints(run, recorder, length, identity(config, corpus, run_id=run.identity.run_id)),
        before=before,
        after=after,
    )


def _checkpoints(run: Run, recorder: Recorder, length: RunLength, identity: dict[str, Any]) -> Checkpoints:
    config = run.config
    return Checkpoints(
        folder=run.folder / "checkpoints",
        recorder=recorder,
        signals=run.signals,
        every_n_steps=config.callbacks.checkpoint.every_n_train_steps,
        keep=config.callbacks.checkpoint.keep,
        validate_every_n_steps=length.validate_every,
        min_steps=length.min_steps,
        max_steps=length.max_steps,
        max_seconds=length.max_seconds,
        enabled=length.checkpointing,
        identity=identity,
    )


def _recorder(run: Run, corpus: Dataset, model: LanguageModel, length: RunLength) -> Recorder:
    config, trainer = run.config, run.config.trainer
    lanes, segment_len = config.data.batch_size, config.data.segment_len
    flops = model.flops(batch_size=lanes, segment_len=segment_len, cluster_shares=_cluster_shares(model, corpus))
    return Recorder(
        folder=run.folder,
        every_n_steps=trainer.log_every_n_steps,
        max_steps=length.max_steps,
        flops_per_token=flops.step / (lanes * segment_len),
        peak_flops=config.callbacks.throughput.peak_flops,
        clip=trainer.gradient_clip_val if trainer.gradient_clip_algorithm == "norm" else None,
    )


def _cluster_shares(model: LanguageModel, corpus: Dataset) -> list[float]:
    """Estimate how often training's tokens are in each cluster of the vocabulary, from the first ones."""
    edges = model.clusters.edges
    if len(edges) == 2:
        return [1.0]
    lanes = corpus.lanes("train", batch_size=1, segment_len=1, evaluation=True)
    first = lanes.read(epoch=0, lanes=range(1), start=0, stop=min(lanes.lane_len, _COUNTED_TOKENS))
    counts, _ = np.histogram(first.tokens_BT, bins=edges)
    return [float(share) for share in counts / counts.sum()]


def sampler(config: Config, corpus: Dataset) -> Callable[[LanguageModel], str]:
    """Make the function that continues the beginning of the validation split (or of training's, without one)."""
    split = "valid" if corpus.counts()["valid"] > PROMPT_TOKENS else "train"
    lanes = corpus.lanes(split, batch_size=1, segment_len=1, evaluation=True)
    length = min(PROMPT_TOKENS, lanes.lane_len)
    prompt = lanes.read(epoch=0, lanes=range(1), start=0, stop=length).tokens_BT[0].tolist()
    settings = config.callbacks.sample

    params = SamplingParams(temperature=settings.temperature, top_k=settings.top_k, n_tokens=settings.n_tokens)

    def sample(model: LanguageModel) -> str:
        # a model that can read the prompt at once does
        context = model.own_context(segment_len=config.eval.segment_len)
        if supports_unequal(model, context):
            context = model.own_context(segment_len=max(config.eval.segment_len, length))
        session = Session(model, context, params, seed=config.seed, tokenizer=corpus.vocabulary)
        text = "".join(piece for (piece,) in session.continued([prompt]))
        return f"{corpus.vocabulary.decode(prompt)}[end of prompt]{text}"

    return sample


def trainer(config: Config, length: RunLength, callbacks: list[Callback], *, folder: Path) -> Trainer:
    """Make Lightning's Trainer, its intervals turned from optimizer steps into batches.

    Raises:
        UserError: a device or precision that is not there; more processes than lanes, or other than were started.
    """
    handed_on = {name: value for name, value in plain(config.trainer).items() if name not in _DERIVED_ARGUMENTS}
    environment = processes.cluster_environment()
    try:
        made = Trainer(
            **handed_on,
            logger=False,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            use_distributed_sampler=False,
            callbacks=callbacks,
            plugins=[CheckpointFile(), *([environment] if environment is not None else [])],
            default_root_dir=folder,
            max_steps=length.max_steps,
            accumulate_grad_batches=length.micro_batches,
            val_check_interval=None if length.validate_every is None else length.validate_every * length.micro_batches,
            check_val_every_n_epoch=None,
            limit_val_batches=length.limit_val,
            limit_test_batches=length.limit_test,
        )
    except (MisconfigurationException, ValueError, TypeError, ImportError) as error:
        named = ", ".join(
            f"trainer.{name}={getattr(config.trainer, name)}"
            for name in ("accelerator", "devices", "strategy", "precision")
        )
        raise UserError(f"Lightning refuses {named}: {' '.join(str(error).split())}") from error
    processes.check_number(made)
    _check_lanes(config, made.world_size)
    leave_signals_alone(made)
    return made


def _check_lanes(config: Config, count: int) -> None:
    problems = []
    for key, lanes in (("data", config.data.batch_size), ("eval", config.eval.batch_size)):
        if lanes < count:
            problems.append(f"{key}.batch_size is {lanes}, and must be at least {count}, one lane a process")
    fewest = config.data.batch_size // count
    if not problems and config.data.lane_chunks > fewest:
        problems.append(
            f"data.lane_chunks is {config.data.lane_chunks}, and must be at most {fewest}, the lanes of a process"
        )
    if problems:
        raise UserError("; ".join(problems))
