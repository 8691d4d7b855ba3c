"""A model of every kind at toy size, whose every parameter matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.model.tiny import V
from transformer_xl.config import AlRfouConfig, ModelConfig, RecurrentConfig, RopeConfig, ShawConfig, VaswaniConfig
from transformer_xl.model.base import LanguageModel
from transformer_xl.model.memory import Memory, SlotMemory, StateMemory
from transformer_xl.model.registry import make_model
from transformer_xl.registry import names
from transformer_xl.settings import plain, replace

KINDS = names("model")
RECURRENT = ["gru", "lstm", "rnn"]
OF_PLACES = ["al_rfou", "vaswani"]
TRANSFORMERS = sorted(set(KINDS) - set(RECURRENT))
INVARIANT = sorted(set(KINDS) - set(OF_PLACES))
"""Kinds whose predictions do not depend on where a text is cut into segments."""

CLASSES: dict[str, type[ModelConfig]] = {
    "shaw": ShawConfig,
    "vaswani": VaswaniConfig,
    "al_rfou": AlRfouConfig,
    "transformer_rope": RopeConfig,
    **dict.fromkeys(RECURRENT, RecurrentConfig),
}
OWN = {"max_distance": 4, "n_positions": 20, "rope_base": 100.0}


def config_of(kind: str, **changes: Any) -> ModelConfig:
    """Give a configuration; settings that the kind lacks are refused."""
    published = tiny_model_config()
    if kind == "transformer_xl":
        return replace(published, **changes)
    values = plain(published) | OWN | {"kind": kind}
    known = set(CLASSES[kind].model_fields)
    return CLASSES[kind](**({name: value for name, value in values.items() if name in known} | changes))


def model_of(kind: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Any:
    """Give a model in evaluation mode, its weights far from their small initial values."""
    model = make_model(config_of(kind, **changes), vocab_size=V).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(float(name.endswith("norm.weight")) + 0.25 * noise)
    return model


def contents(memory: Memory) -> Tensor:
    """Give what a memory remembers, lanes second to last but one: rows (L, B, M, D) or states (K L, B, 1, D)."""
    if isinstance(memory, SlotMemory):
        return memory.rows
    assert isinstance(memory, StateMemory)
    return memory.state_KLBD.flatten(0, 1)[:, :, None]


def one_reset(lanes: int, length: int, *, lane: int, place: int) -> Tensor:
    resets_BT = torch.zeros(lanes, length, dtype=torch.bool)
    resets_BT[lane, place] = True
    return resets_BT


def aged(model: LanguageModel, *ages: int) -> list[Memory]:
    """Give the memories of single lanes that have read so many tokens, each its own."""
    memories = []
    for age in ages:
        memory: Memory = model.empty_memory(1)
        if age:
            tokens_BT = torch.randint(V, (1, age), generator=torch.Generator().manual_seed(100 + age))
            memory = model(tokens_BT, memory).memory
        memories.append(memory)
    return memories
