"""The models by name."""

from __future__ import annotations

from transformer_xl.config import (
    AlRfouConfig,
    ModelConfig,
    RecurrentConfig,
    RopeConfig,
    ShawConfig,
    TransformerXLConfig,
    VaswaniConfig,
)
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.recurrent import CELLS, RecurrentModel
from transformer_xl.model.segment_places import AlRfou, Vaswani
from transformer_xl.model.shaw import Shaw
from transformer_xl.model.transformer_rope import TransformerRope
from transformer_xl.model.transformer_xl import TransformerXL
from transformer_xl.registry import lookup, register

register("model", "transformer_xl", config=TransformerXLConfig)(TransformerXL)
register("model", "shaw", config=ShawConfig)(Shaw)
register("model", "vaswani", config=VaswaniConfig)(Vaswani)
register("model", "al_rfou", config=AlRfouConfig)(AlRfou)
register("model", "transformer_rope", config=RopeConfig)(TransformerRope)
for _cell in CELLS:
    register("model", _cell, config=RecurrentConfig)(RecurrentModel)


def make_model(config: ModelConfig, *, vocab_size: int) -> LanguageModel:
    """Make the model that `config.kind` names, its weights drawn from torch's global generator."""
    model: LanguageModel = lookup("model", config.kind).factory(config, vocab_size=vocab_size)
    return model
