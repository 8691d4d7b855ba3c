"""From configuration to corpus, model, module, data module, callbacks and trainer, in this order.

Every value that follows from configuration and corpus together is computed here or in `run_length.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console

from transformer_xl import init_from, processes
from transformer_xl.config import Config
from transformer_xl.data.build import open_corpus
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset, beside_scores
from transformer_xl.data.recall import Task
from transformer_xl.data.tokenizer import Tokenizer, load_vocabulary
from transformer_xl.data_config import StoredConfig, TaskConfig
from transformer_xl.errors import UserError, first_line
from transformer_xl.inference.evaluate import context_of
from transformer_xl.inference.generate import Session, supports_unequal
from transformer_xl.inference_config import SamplingParams
from transformer_xl.interop.native import CHECKPOINT_FORMAT
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model.compiled import compiled_losses
from transformer_xl.model.transformer import Transformer
from transformer_xl.run import Run
from transformer_xl.run_length import RunLength, cluster_shares
from transformer_xl.settings import plain, replace
from transformer_xl.training.callbacks import ProgressDisplay, Samples, WeightAverage, added_callbacks
from transformer_xl.training.checkpoint import CheckpointFile, Checkpoints
from transformer_xl.training.module import LanguageModule
from transformer_xl.training.recorder import Recorder
from transformer_xl.training.stopping import leave_signals_alone

PROMPT_TOKENS = 64
"""Tokens of the prompt of a sample."""


class Built(NamedTuple):
    """All that a run trains with."""

    corpus: Dataset
    length: RunLength
    module: LanguageModule
    data: LaneDataModule
    recorder: Recorder
    checkpoints: Checkpoints
    trainer: Trainer


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
    if isinstance(config.data, TaskConfig):
        return Task(config=config.data, seed=config.seed)
    assert isinstance(config.data, StoredConfig)
    return open_corpus(config.data, announce=announce, seed=config.seed, vocabulary=vocabulary, extend=extend)


def corpus(run: Run) -> Dataset:
    """Open the run's corpus, with a trained model's vocabulary where it begins, or has begun, from one."""
    config, source, vocabulary = run.config, run.initial_weights, None
    if source is not None and source.vocabulary is not None:
        vocabulary = init_from.fitting(source.vocabulary, config.data)
    elif config.init_from is not None and run.checkpoint is not None:
        vocabulary = load_vocabulary(run.checkpoint.parents[1] / "vocabulary.json")
    extend = vocabulary is not None and source is not None and config.init_vocabulary == "extend"
    opened = open_data(config, vocabulary=vocabulary, extend=extend, announce=run.say)
    if isinstance(config.data, StoredConfig):  # neither a resume nor another process shall build them again
        run.config = replace(config, data=replace(config.data, rebuild=False))
    if source is not None:
        init_from.check_vocabulary(source, opened.vocabulary, config)
    return opened


def model(run: Run, corpus: Dataset) -> LanguageModel:
    """Make the model, its weights drawn from `seed`, or copied from a trained one.

    Raises:
        UserError: an adaptive vocabulary is not sorted by frequency; the trained weights do not fit.
    """
    config, vocabulary = run.config, corpus.vocabulary
    if any(cutoff < vocabulary.size for cutoff in config.model.cutoffs) and not vocabulary.by_frequency:
        raise UserError(
            f"model.cutoffs is {config.model.cutoffs}, which needs a vocabulary sorted by frequency, and the "
            f"{vocabulary.kind} vocabulary of data={corpus.name} is not: use model.cutoffs=[] model.div_val=1"
        )
    torch.manual_seed(config.seed)
    made = make_model(config.model, vocab_size=vocabulary.size)
    made.vocabulary = vocabulary
    if run.initial_weights is not None:
        init_from.copy_weights(run.initial_weights, made, init_from=str(config.init_from))
    # Lightning loads a checkpoint's weights before it converts the module, which would round them to float32
    return made.double() if str(config.trainer.precision).startswith("64") else made


def module(config: Config, model: LanguageModel) -> LanguageModule:
    """Make the LightningModule."""
    training_losses: Callable[..., Any] | None = None
    if config.compile:
        assert isinstance(model, Transformer)
        training_losses = compiled_losses(model, segment_len=config.data.segment_len, backend="inductor")
    return LanguageModule(
        model,
        optimizer=config.optimizer,
        schedule=config.scheduler,
        evaluation=context_of(config.eval),
        memory_gain_tokens=config.callbacks.memory_gain.max_tokens,
        seed=config.seed,
        save_memory=config.callbacks.checkpoint.save_memory,
        training_losses=training_losses,
    )


def datamodule(config: Config, corpus: Dataset, length: RunLength) -> LaneDataModule:
    """Make the LightningDataModule."""
    data, lengths = config.data, config.eval
    return LaneDataModule(
        corpus,
        batch_size=data.batch_size,
        segment_len=data.segment_len,
        segments=length.layout,
        lane_chunks=data.lane_chunks,
        eval_batch_size=lengths.batch_size,
        eval_segment_len=lengths.segment_len,
        eval_stride=lengths.stride,
        steps=length.max_steps,
        accumulate=config.trainer.accumulate_grad_batches,
    )


# ---- callbacks and trainer


def training(
    run: Run, corpus: Dataset, model: LanguageModel, length: RunLength, added: Sequence[Callback] = ()
) -> Built:
    """Make all that trains the model, and runs beside it.

    Args:
        run: which it is for.
        corpus: opened.
        model: made for the corpus's vocabulary.
        length: of the run.
        added: callbacks of the caller's.

    Raises:
        UserError: a device or precision that is not there; more processes than lanes, or other than were started.
    """
    config = run.config
    recorder = _recorder(run, corpus, model, length)
    checkpoints = _checkpoints(run, corpus, recorder, length)
    # a step is recorded and shown before its checkpoint is written, and sampled after it; after a validation the
    # average gives way to the raw weights before the checkpoint
    callbacks = [recorder, *added_callbacks(config.callbacks)]
    if config.trainer.enable_progress_bar:
        console, beside = Console(highlight=False), beside_scores(corpus)
        callbacks.append(ProgressDisplay(recorder=recorder, max_steps=length.max_steps, beside=beside, console=console))
    settings, average = config.callbacks.weight_average, None
    if settings.start_step is not None:
        average = WeightAverage(start_step=settings.start_step, decay=settings.decay)
        callbacks.append(average)
    callbacks += [*added, checkpoints]
    if config.callbacks.sample.n_tokens > 0:
        callbacks.append(Samples(folder=run.folder / "samples", sample=sampler(config, corpus), average=average))
    return Built(
        corpus=corpus,
        length=length,
        module=module(config, model),
        data=datamodule(config, corpus, length),
        recorder=recorder,
        checkpoints=checkpoints,
        trainer=_trainer(config, length, callbacks, folder=run.folder),
    )


def _checkpoints(run: Run, corpus: Dataset, recorder: Recorder, length: RunLength) -> Checkpoints:
    config, settings = run.config, run.config.callbacks.checkpoint
    return Checkpoints(
        folder=run.folder / "checkpoints",
        recorder=recorder,
        signals=run.signals,
        every_n_steps=settings.every_n_train_steps,
        keep=settings.keep,
        validate_every_n_steps=length.validate_every,
        max_steps=length.max_steps,
        max_seconds=length.max_seconds,
        enabled=config.trainer.enable_checkpointing,
        identity={
            "format_version": CHECKPOINT_FORMAT,
            "config": plain(config),
            "vocabulary": corpus.vocabulary.to_json(),
            "run_id": run.identity.run_id,
            "data_checksum": corpus.fingerprint.sha256,
        },
    )


def _recorder(run: Run, corpus: Dataset, model: LanguageModel, length: RunLength) -> Recorder:
    config, trainer = run.config, run.config.trainer
    lanes, segment_len = config.data.batch_size, config.data.segment_len
    shares = cluster_shares(corpus, model.clusters.edges)
    flops = model.flops(batch_size=lanes, segment_len=segment_len, cluster_shares=shares)
    into_memory = flops.into_memory * (1 - 1 / config.data.bptt_segments)  # of all segments of a group but the first
    return Recorder(
        folder=run.folder,
        every_n_steps=trainer.log_every_n_steps,
        max_steps=length.max_steps,
        flops_per_token=(flops.step + into_memory) / (lanes * segment_len),
        peak_flops=config.callbacks.throughput.peak_flops,
        clip=trainer.gradient_clip_val if trainer.gradient_clip_algorithm == "norm" else None,
    )


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


def _trainer(config: Config, length: RunLength, callbacks: list[Callback], *, folder: Path) -> Trainer:
    """Make Lightning's Trainer, its intervals turned from optimizer steps into batches."""
    settings, environment = config.trainer, processes.cluster_environment()
    set_here: dict[str, Any] = {
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "use_distributed_sampler"), False),
        "log_every_n_steps": 1,
        "callbacks": callbacks,
        "plugins": [CheckpointFile(), *([environment] if environment is not None else [])],
        "default_root_dir": folder,
        "max_steps": length.max_steps,
        "accumulate_grad_batches": length.micro_batches,
        "val_check_interval": None if length.validate_every is None else length.validate_every * length.micro_batches,
        "limit_val_batches": length.limit_val,
        "limit_test_batches": length.limit_test,
        # what the data module and the callbacks do
        **dict.fromkeys(("max_epochs", "max_time", "limit_train_batches", "check_val_every_n_epoch")),
    }
    arguments = plain(settings) | set_here
    del arguments["ddp"], arguments["tf32"]
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    try:
        made = Trainer(**arguments)
        if settings.strategy in ("auto", "ddp") and isinstance(made.strategy, DDPStrategy):  # several processes
            made = Trainer(**arguments | {"strategy": processes.ddp_strategy(settings.ddp)})
    except (MisconfigurationException, ValueError, TypeError, ImportError) as error:
        named = ", ".join(
            f"trainer.{name}={getattr(settings, name)}" for name in ("accelerator", "devices", "strategy", "precision")
        )
        raise UserError(f"Lightning refuses {named}: {first_line(error)}") from error
    if settings.ddp.bf16_gradients and not (made.world_size > 1 and made.strategy.root_device.type == "cuda"):
        raise UserError("trainer.ddp.bf16_gradients is true, and needs several CUDA devices")
    processes.check_number(made)
    count, data = made.world_size, config.data
    for key, lanes in (("data", data.batch_size), ("eval", config.eval.batch_size)):
        if lanes < count:
            raise UserError(f"{key}.batch_size is {lanes}, and must be at least {count}, one lane for each process")
    if data.lane_chunks > data.batch_size // count:
        most = data.batch_size // count
        raise UserError(
            f"data.lane_chunks is {data.lane_chunks}, and must be at most {most}, the fewest lanes of a process"
        )
    leave_signals_alone(made)
    return made
