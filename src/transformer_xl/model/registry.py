"""The models by name."""

from __future__ import annotations

from collections.abc import Callable

from transformer_xl.model.base import LanguageModel
from transformer_xl.model.recurrent import CELLS, RecurrentModel
from transformer_xl.model.segment_places import AlRfou, Vaswani
from transformer_xl.model.shaw import Shaw
from transformer_xl.model.transformer_rope import TransformerRope
from transformer_xl.model.transformer_xl import TransformerXL
from transformer_xl.model_config import ModelConfig

MODELS: dict[str, Callable[..., LanguageModel]] = {
    "transformer_xl": TransformerXL,
    "shaw": Shaw,
    "vaswani": Vaswani,
    "al_rfou": AlRfou,
    "transformer_rope": TransformerRope,
    **dict.fromkeys(CELLS, RecurrentModel),
}


def make_model(config: ModelConfig, *, vocab_size: int) -> LanguageModel:
    """Make the model that `config.kind` names, its weights drawn from torch's global generator."""
    return MODELS[config.kind](config, vocab_size=vocab_size)
