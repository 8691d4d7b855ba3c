"""Beginning a run from a trained model: its settings, its vocabulary, and its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from transformer_xl.config import Config
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import CorpusConfig, DataConfig, PublishedConfig, tokenizers
from transformer_xl.errors import UserError
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.embedding import kept_cutoffs
from transformer_xl.settings import plain, replace

_ROWS_OF_TOKENS = ("embedding.weights.", "softmax.weights.", "softmax.biases.")


def model_settings(
    source: LanguageModel, composed: Mapping[str, Any], *, given: Collection[str], init_from: str
) -> dict[str, Any]:
    """Give the settings of the run's network.

    Args:
        source: the model to begin from.
        composed: the group `model` as composed.
        given: what the command names: dotted keys and groups.
        init_from: the source's name.

    Returns:
        The group as composed where the command chooses it; else the source's own settings, under those that the
        command gives.

    Raises:
        UserError: the command gives a setting that the source's kind of network has not.
    """
    if "model" in given:
        return dict(composed)
    settings = plain(source.config)
    # a cutoff beyond the source's vocabulary makes no cluster, and must make none when the vocabulary is extended
    settings["cutoffs"] = kept_cutoffs(source.config, vocab_size=source.vocab_size)
    settings |= {"mem_len": source.mem_len, "clamp_len": source.clamp_len, "same_length": source.same_length}
    if isinstance(settings["tie_projs"], list):
        settings["tie_projs"] = settings["tie_projs"][: len(settings["cutoffs"]) + 1]
    keys = [key.replace("model/", "model.") for key in given]
    names = sorted({key.split(".")[1] for key in keys if key.startswith("model.")})
    unknown = [f"model.{name}" for name in names if name not in settings]
    if unknown:
        raise UserError(
            f"{', '.join(unknown)} {'is no setting' if len(unknown) == 1 else 'are no settings'} of {init_from}, a "
            f"model of kind {source.config.kind}: leave {'it' if len(unknown) == 1 else 'them'} out"
        )
    return settings | {name: composed[name] for name in names}


def with_tokenizer(config: Config, source: LanguageModel, *, given: Collection[str]) -> Config:
    """Give the configuration with the source's tokenizer.

    Raises:
        UserError: the command asks for another one.
    """
    vocabulary = source.vocabulary
    if vocabulary is None or not isinstance(config.data, CorpusConfig):
        return config
    kind = fitting(vocabulary, config.data).kind
    if "data.tokenizer" in given and config.data.tokenizer != kind:
        raise UserError(
            f"data.tokenizer is {config.data.tokenizer!r}, and init_from={config.init_from} was trained with a "
            f"vocabulary of kind {kind!r}: leave it out"
        )
    if kind not in tokenizers():
        return config
    return replace(config, data=replace(config.data, tokenizer=kind))


def vocabulary_of(source: LanguageModel, config: Config) -> Tokenizer | None:
    """Give the vocabulary that the corpus must be read with; None where the source has none.

    Raises:
        UserError: there is none, and it shall be extended.
    """
    if source.vocabulary is None and config.init_vocabulary == "extend":
        raise UserError(
            f"init_vocabulary is 'extend', and init_from={config.init_from} brings no vocabulary to extend: put its "
            "vocabulary.json or vocab.pkl beside its weights"
        )
    return None if source.vocabulary is None else fitting(source.vocabulary, config.data)


def fitting(vocabulary: Tokenizer, data: DataConfig) -> Tokenizer:
    """Give the vocabulary that reads a corpus: the paper's, which are split into words already, by their white space.

    Args:
        vocabulary: of a trained model.
        data: settings of the corpus.
    """
    return vocabulary.for_split_text() if isinstance(data, PublishedConfig) else vocabulary


def check_vocabulary(source: LanguageModel, vocabulary: Tokenizer, config: Config) -> None:
    """Refuse a corpus whose symbols are not those that the source was trained on.

    Raises:
        UserError: naming both.
    """
    mine = vocabulary_of(source, config)
    if mine is None:
        if vocabulary.size != source.vocab_size:
            raise UserError(
                f"init_from={config.init_from} brings no vocabulary and has {source.vocab_size} symbols, but the "
                f"text's vocabulary has {vocabulary.size}: put its vocabulary.json or vocab.pkl beside its "
                "weights"
            )
        return
    may_extend = isinstance(config.data, CorpusConfig)
    if config.init_vocabulary == "extend" and may_extend:
        return
    if mine.hash() != vocabulary.hash():
        raise UserError(
            f"init_from={config.init_from} was trained with a {mine.kind} vocabulary of {mine.size} symbols, and "
            f"data={config.data.kind} has a {vocabulary.kind} vocabulary of {vocabulary.size}: choose a text that "
            f"its vocabulary can say{', or init_vocabulary=extend' if may_extend else ''}"
        )


@torch.no_grad()
def copy_weights(source: LanguageModel, target: LanguageModel, *, init_from: str) -> None:
    """Copy the source's weights; rows of tokens that it lacks keep what they were drawn as.

    Raises:
        UserError: a tensor has another shape, by its name and both shapes.
    """
    theirs, mine = source.state_dict(), target.state_dict()
    problems = [
        f"{name} is {tuple(theirs[name].shape)}, and must be {tuple(mine[name].shape)}"
        for name in mine
        if name in theirs and not _fits(name, theirs[name], mine[name], grows=target.vocab_size > source.vocab_size)
    ]
    problems += [f"{name} is missing" for name in mine if name not in theirs]
    problems += [f"{name} is not in the model" for name in theirs if name not in mine]
    if problems:
        raise UserError(
            f"the weights of init_from={init_from} do not fit the model: {'; '.join(problems[:3])}"
            + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
            + " (without model= and model.* its own settings are taken)"
        )
    for name, tensor in mine.items():
        tensor[: len(theirs[name])].copy_(theirs[name])


def _fits(name: str, theirs: Tensor, mine: Tensor, *, grows: bool) -> bool:
    if grows and name.startswith(_ROWS_OF_TOKENS):
        return theirs.shape[1:] == mine.shape[1:] and len(theirs) <= len(mine)
    return theirs.shape == mine.shape
