"""A model of every kind at toy size, whose every parameter matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.model.tiny import V
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model.memory import HiddenMemory, Memory, StateMemory
from transformer_xl.model_config import ModelConfig, RecurrentConfig, TransformerConfig
from transformer_xl.settings import plain

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "transformer_xl": {},
    "shaw": {"position": {"kind": "shaw", "max_distance": 4}},
    "vaswani": {"position": {"kind": "sinusoid"}},
    "al_rfou": {"position": {"kind": "learned", "n_positions": 20}},
    "transformer_rope": {
        "position": {"kind": "rotary", "rope_base": 100.0},
        "norm": "rms",
        "feed_forward": "swiglu",
        "pre_norm": True,
    },
}
"""Networks by the names of their choices: how they differ from the published one."""
RECURRENT = ["gru", "lstm", "rnn"]
KINDS = sorted([*TRANSFORMERS, *RECURRENT])
OF_PLACES = ["al_rfou", "vaswani"]
INVARIANT = sorted(set(KINDS) - set(OF_PLACES))
"""Kinds whose predictions do not depend on where a text is cut into segments."""


def config_of(kind: str, **changes: Any) -> ModelConfig:
    """Return a network's settings; what belongs to its position encoding may stand among the changes."""
    published = plain(tiny_model_config())
    if kind in RECURRENT:
        values = {name: value for name, value in published.items() if name in RecurrentConfig.model_fields}
        return RecurrentConfig(**(values | changes | {"kind": kind}))
    settings = published | TRANSFORMERS[kind]
    own = {name: changes.pop(name) for name in settings["position"] if name in changes}
    return TransformerConfig(**(settings | {"position": settings["position"] | own} | changes))


def model_of(kind: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Any:
    """Return a model in evaluation mode, its weights far from their small initial values."""
    model = make_model(config_of(kind, **changes), vocab_size=V).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(float(name.endswith("norm.weight")) + 0.25 * noise)
    return model


def contents(memory: Memory) -> Tensor:
    """Return what a memory remembers, lanes second to last but one: rows (L, B, M, D) or states (K L, B, 1, D)."""
    if isinstance(memory, HiddenMemory):
        return memory.hidden_LBMD
    assert isinstance(memory, StateMemory)
    return memory.state_KLBD.flatten(0, 1)[:, :, None]


def joined(memories: list[Memory]) -> Memory:
    return type(memories[0]).join(memories)


def one_reset(lanes: int, length: int, *, lane: int, place: int) -> Tensor:
    resets_BT = torch.zeros(lanes, length, dtype=torch.bool)
    resets_BT[lane, place] = True
    return resets_BT


def aged(model: LanguageModel, *ages: int) -> list[Memory]:
    """Return the memories of single lanes that have read so many tokens, each its own."""
    memories = []
    for age in ages:
        memory: Memory = model.empty_memory(1)
        if age:
            tokens_BT = torch.randint(V, (1, age), generator=torch.Generator().manual_seed(100 + age))
            memory = model(tokens_BT, memory).memory
        memories.append(memory)
    return memories
