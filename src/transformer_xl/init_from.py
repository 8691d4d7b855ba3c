"""Beginning a run from a trained model: its settings, its vocabulary, and its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from transformer_xl.config import Config
from transformer_xl.data.tokenizer import Tokenizer
from transformer_xl.data_config import CorpusConfig, DataConfig, PublishedConfig, tokenizers
from transformer_xl.errors import UserError, first_line
from transformer_xl.model.base import LanguageModel
from transformer_xl.settings import plain, replace

_ROWS_OF_TOKENS = ("embedding.weights.", "softmax.weights.", "softmax.biases.")


def model_settings(source: LanguageModel, composed: Mapping[str, Any], *, given: Collection[str]) -> dict[str, Any]:
    """Return the settings of the run's network: the source's own, under those that the command gives.

    Args:
        source: the model to begin from.
        composed: the group `model` as composed.
        given: what the command names: dotted keys and groups.
    """
    settings = plain(source.config)
    # a cutoff beyond the source's vocabulary makes no cluster, and must make none when the vocabulary is extended
    settings["cutoffs"] = list(source.clusters.edges[1:-1])
    settings |= {"mem_len": source.mem_len, "clamp_len": source.clamp_len, "same_length": source.same_length}
    if isinstance(settings["tie_projs"], list):
        settings["tie_projs"] = settings["tie_projs"][: len(settings["cutoffs"]) + 1]
    named = {key.replace("/", ".").split(".")[1] for key in given if key.startswith(("model.", "model/"))}
    return settings | {name: composed[name] for name in named}


def with_tokenizer(config: Config, source: LanguageModel, *, given: Collection[str]) -> Config:
    """Return the configuration with the source's tokenizer.

    Raises:
        UserError: the command asks for another one.
    """
    if source.vocabulary is None or not isinstance(config.data, CorpusConfig):
        return config
    kind = fitting(source.vocabulary, config.data).kind
    if "data.tokenizer" in given and config.data.tokenizer != kind:
        raise UserError(
            f"data.tokenizer is {config.data.tokenizer!r}, and must be {kind!r} or left out: init_from="
            f"{config.init_from} was trained with that"
        )
    return replace(config, data=replace(config.data, tokenizer=kind)) if kind in tokenizers() else config


def fitting(vocabulary: Tokenizer, data: DataConfig) -> Tokenizer:
    """Return a trained model's vocabulary as it reads a corpus; the paper's are split into words already."""
    return vocabulary.for_split_text() if isinstance(data, PublishedConfig) else vocabulary


def check_vocabulary(source: LanguageModel, vocabulary: Tokenizer, config: Config) -> None:
    """Refuse a corpus whose symbols are not those that the source was trained on.

    Raises:
        UserError: naming both.
    """
    may_extend = isinstance(config.data, CorpusConfig)
    if source.vocabulary is None:
        if vocabulary.size != source.vocab_size or config.init_vocabulary == "extend":
            raise UserError(
                f"init_from={config.init_from} brings no vocabulary and has {source.vocab_size} symbols, but the "
                f"text's has {vocabulary.size} with init_vocabulary={config.init_vocabulary}"
            )
        return
    mine = fitting(source.vocabulary, config.data)
    if mine.hash() != vocabulary.hash() and not (config.init_vocabulary == "extend" and may_extend):
        raise UserError(
            f"init_from={config.init_from} was trained with a {mine.kind} vocabulary of {mine.size} symbols, and "
            f"data={config.data.kind} has a {vocabulary.kind} vocabulary of {vocabulary.size}: choose a text that its "
            f"vocabulary can say{', or init_vocabulary=extend' if may_extend else ''}"
        )


def copy_weights(source: LanguageModel, target: LanguageModel, *, init_from: str) -> None:
    """Copy the source's weights; rows of tokens that it lacks keep what they were drawn as.

    Raises:
        UserError: a tensor is missing, or has another shape.
    """
    weights, drawn = source.state_dict(), target.state_dict()
    try:
        if target.vocab_size > source.vocab_size:
            for name in weights.keys() & drawn.keys():
                if name.startswith(_ROWS_OF_TOKENS):
                    weights[name] = torch.cat([weights[name], drawn[name][len(weights[name]) :]])
        target.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"the weights of init_from={init_from} do not fit the model (without model= and model.* its own settings "
            f"are taken): {first_line(error)}"
        ) from error
