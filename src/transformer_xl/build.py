"""From configuration to data, model, module and trainer; every derived value is computed here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from transformer_xl import init_from
from transformer_xl.config import Config
from transformer_xl.data.build import open_corpus
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.recall import Recall
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import RecallConfig, StoredConfig
from transformer_xl.errors import UserError
from transformer_xl.interop.native import CHECKPOINT_FORMAT
from transformer_xl.model.base import Context, LanguageModel, make_model
from transformer_xl.model.embedding import kept_cutoffs
from transformer_xl.model.kernels.compiled import CompiledTraining
from transformer_xl.model.transformer import Transformer
from transformer_xl.plan import Plan
from transformer_xl.settings import plain, replace
from transformer_xl.training.module import LanguageModule, TrainNll


def open_data(
    config: Config, *, vocabulary: Tokenizer | None, extend: bool, announce: Callable[[str], None]
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


def with_total_steps(config: Config, plan: Plan) -> Config:
    """Settle where the schedule ends, so that a resume with more steps does not move it."""
    if getattr(config.scheduler, "total_steps", None) == -1:
        return replace(config, scheduler=replace(config.scheduler, total_steps=plan.max_steps))
    return config


def make_module(config: Config, model: LanguageModel, plan: Plan) -> LanguageModule:
    """Make the LightningModule."""
    lengths = config.eval
    return LanguageModule(
        model,
        optimizer=config.optimizer,
        schedule=config.scheduler,
        total_steps=plan.max_steps,
        evaluation=Context(
            segment_len=lengths.segment_len,
            mem_len=lengths.mem_len,
            clamp_len=lengths.clamp_len,
            same_length=lengths.same_length,
            stride=lengths.stride,
        ),
        eval_batch_size=lengths.batch_size,
        memory_gain_tokens=config.callbacks.memory_gain.max_tokens,
        seed=config.seed,
        save_memory=config.callbacks.checkpoint.save_memory,
        train_nll=_train_nll(config, model),
    )


def identity(config: Config, data: Dataset, *, run_id: str) -> dict[str, Any]:
    """Return what stands in every checkpoint beside the state."""
    return {
        "format_version": CHECKPOINT_FORMAT,
        "config": plain(config),
        "vocabulary": data.vocabulary.to_json(),
        "run_id": run_id,
        "data_checksum": data.fingerprint.sha256,
    }


def _train_nll(config: Config, model: LanguageModel) -> TrainNll | None:
    if not config.compile:
        return None
    assert isinstance(model, Transformer)
    return CompiledTraining(model, segment_len=config.data.segment_len, backend="inductor").nll


def make_datamodule(config: Config, data: Dataset, plan: Plan) -> LaneDataModule:
    """Make the LightningDataModule."""
    data_config, lengths = config.data, config.eval
    return LaneDataModule(
        data,
        batch_size=data_config.batch_size,
        segment_len=data_config.segment_len,
        segment_len_sd=data_config.segment_len_sd,
        half_segments=data_config.half_segments,
        loss=data_config.loss,
        lane_chunks=data_config.lane_chunks,
        eval_batch_size=lengths.batch_size,
        eval_segment_len=lengths.segment_len,
        eval_stride=lengths.stride,
        seed=config.seed,
        segment_limit=plan.segment_limit,
        steps=plan.max_steps,
        accumulate=config.trainer.accumulate_grad_batches,
    )
