"""The models by name."""

from __future__ import annotations

from transformer_xl.config import ModelConfig
from transformer_xl.model.interface import LanguageModel
from transformer_xl.model.transformer_xl import TransformerXL

MODELS = {"transformer_xl": TransformerXL}


def make_model(config: ModelConfig, *, vocab_size: int) -> LanguageModel:
    """Make the model that `config.kind` names, its weights drawn from torch's global generator."""
    return MODELS[config.kind](config, vocab_size=vocab_size)
