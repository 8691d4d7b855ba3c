"""The corpus on which a trained model is evaluated: its run's, or one that the command names."""

from __future__ import annotations

import sys

from transformer_xl.commands.sources import Source
from transformer_xl.commands.summary import data_checksum
from transformer_xl.data.corpus import open_corpus
from transformer_xl.data.lanes import Dataset
from transformer_xl.data.recall import Recall
from transformer_xl.data_config import DataConfig, RecallConfig, StoredConfig
from transformer_xl.errors import UserError
from transformer_xl.init_from import fitting
from transformer_xl.model.base import LanguageModel
from transformer_xl.settings import replace

_SEED_WITHOUT_A_RUN = 1
"""Of synthetic data: `conf/train.yaml`'s."""


def data_of(source: Source, asked: DataConfig | None) -> DataConfig:
    """Give the settings of the corpus.

    Args:
        source: of the model.
        asked: what the command names; None: the run's own.

    Raises:
        UserError: nobody says which.
    """
    if asked is None and source.config is None:
        source.load()  # what is no model at all is said first
        raise UserError(f"run={source.path} comes from no run: say on which corpus, by data=CHOICE (see --help)")
    data = source.config.data if asked is None and source.config is not None else asked
    assert data is not None
    return replace(data, rebuild=False) if isinstance(data, StoredConfig) else data


def open_corpus_of(source: Source, model: LanguageModel, data: DataConfig, *, is_own: bool) -> Dataset:
    """Open the corpus with the model's vocabulary, building its token files where they are not ready.

    Args:
        source: of the model.
        model: whose vocabulary the text is read with.
        data: settings of the corpus.
        is_own: whether it is the run's own, whose token files are ready.

    Raises:
        UserError: the text cannot be read with this vocabulary, or has changed since.
    """
    seed = _SEED_WITHOUT_A_RUN if source.config is None else source.config.seed
    if isinstance(data, RecallConfig):
        opened: Dataset = Recall(config=data, seed=seed)
    else:
        given = None if model.vocabulary is None else fitting(model.vocabulary, data)
        if is_own and source.config is not None and source.config.init_from is None:
            given = None  # the text's own: as in training
        assert isinstance(data, StoredConfig)
        opened = open_corpus(data, announce=_tell, seed=seed, vocabulary=given)
    _check(source, model, opened, data, is_own=is_own)
    if is_own and not is_trained_text(source, opened):
        _tell(f"note: the text of {source.name} has changed since it was trained: its checksum is another")
    return opened


def is_trained_text(source: Source, data: Dataset) -> bool:
    """Say whether the text is the one that the run was trained on, as far as its summary tells."""
    checksum = data_checksum(source.folder)
    return checksum is None or checksum == data.fingerprint.sha256


def _check(source: Source, model: LanguageModel, opened: Dataset, data: DataConfig, *, is_own: bool) -> None:
    theirs = opened.vocabulary
    if model.vocabulary is None:
        if theirs.size != model.vocab_size:
            raise UserError(
                f"run={source.path} brings no vocabulary and has {model.vocab_size} symbols, but that of "
                f"data={opened.name} has {theirs.size}: put its vocabulary beside its weights"
            )
        _tell(f"note: {source.name} brings no vocabulary: its ids are taken for this text's")
    elif fitting(model.vocabulary, data).hash() != theirs.hash():
        reason = "the text has changed since" if is_own else "choose a text that its vocabulary can say"
        raise UserError(
            f"run={source.path} was trained with a {model.vocabulary.kind} vocabulary of {model.vocab_size} symbols, "
            f"and data={opened.name} has a {theirs.kind} vocabulary of {theirs.size}: {reason}"
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
