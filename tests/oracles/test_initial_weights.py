"""Names, order, shapes and values of initial weights: what saved models and every seed hang on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracles import adapter, recorded, tiny

CHOICES = [
    *("txl_tiny", "txl_small", "txl_base", "txl_base_nvidia", "txl_large", "txl_ptb", "txl_char_base"),
    *("txl_char_large", "txl_lm1b_base", "txl_lm1b_base_paper", "txl_lm1b_large", "shaw", "vaswani", "al_rfou"),
    *("vanilla", "vanilla_512", "transformer_rope", "rnn", "gru", "lstm"),
]
ADAPTIVE = ["model.cutoffs=[8,20]", "model.div_val=2"]
TINY: dict[str, tuple[str, list[str]]] = {
    **{network: (network, []) for network in tiny.NETWORKS},
    "txl, post-norm, untied": ("txl", ["model.pre_norm=false", "model.untie_r=true", "model.tie_weights=false"]),
    "txl, adaptive": ("txl", [*ADAPTIVE, "model.d_embed=12"]),
    "txl, adaptive, projections tied": ("txl", [*ADAPTIVE, "model.tie_projs=all", "model.proj_init_std=0.05"]),
    "txl, adaptive, projections untied": ("txl", [*ADAPTIVE, "model.tie_projs=none"]),
    "txl, narrow embedding": ("txl", ["model.d_embed=8", "model.init_std=0.2"]),
    "vaswani, adaptive": ("vaswani", [*ADAPTIVE, "model.pre_norm=false"]),
    "transformer_rope, adaptive": ("transformer_rope", ADAPTIVE),
    "lstm, adaptive": ("lstm", [*ADAPTIVE, "model.tie_weights=false"]),
}
CASES = [*TINY, *(f"model={choice}" for choice in CHOICES)]


def tiny_weights(name: str) -> list[Any]:
    network, changes = TINY[name]
    torch.manual_seed(1)
    model = adapter.build_model(*tiny.NETWORKS[network], *changes, vocab_size=32)
    model.requires_grad_(False)
    names = [[name, list(tensor.shape)] for name, tensor in model.state_dict().items()]
    sums = [
        [name, float(weight.double().sum()), float(weight.double().abs().sum())]
        for name, weight in model.named_parameters()
    ]
    return [names, sums]


def names_of_choice(choice: str) -> list[Any]:
    """Count the parameters of a shipped network, and give a checksum of their names and shapes; nothing is drawn."""
    with torch.device("meta"):
        model = adapter.build_model(f"model={choice}", vocab_size=300_000)
    names = [[name, list(tensor.shape)] for name, tensor in model.state_dict().items()]
    trained = [[name, list(tensor.shape)] for name, tensor in model.named_parameters()]
    checksum = hashlib.sha256(json.dumps([names, trained]).encode()).hexdigest()[:16]
    return [sum(parameter.numel() for parameter in model.parameters()), names[0], names[-1], checksum]


def observe(name: str, work: Path) -> list[Any]:
    return tiny_weights(name) if name in TINY else names_of_choice(name.removeprefix("model="))


@pytest.mark.parametrize("name", CASES)
def test_initial_weights_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    recorded.assert_same(observe(name, tmp_path), recorded.read("initial_weights")[name], within=1e-5)
