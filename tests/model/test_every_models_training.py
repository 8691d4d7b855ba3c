"""What every kind of model needs in order to learn: weights, gradients, dropout."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings

import pytest
import torch

from tests.model.kinds import (
    KINDS,
    TRANSFORMERS,
    aged,
    config_of,
    contents,
    model_of,
    one_reset,
)
from tests.model.tiny import SEGMENT_LEN, V, difference, random_tokens
from transformer_xl.model.base import make_model
from transformer_xl.model.memory import join_lanes

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_gradients_reach_every_parameter_and_none_flows_into_memory(kind: str) -> None:
    model = model_of(kind)
    memory = join_lanes(aged(model, 9, 9))
    name = {"hidden": "hidden_LBMD", "state": "state_KLBD"}[memory.kind]
    leaf = getattr(memory, name).requires_grad_()
    memory = dataclasses.replace(memory, **{name: 2 * leaf})  # with a graph behind it
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    losses, after = model.nll(tokens_BT, tokens_BT, memory)
    losses.sum().backward()
    assert leaf.grad is None
    assert not contents(after).requires_grad
    assert [name for name, parameter in model.named_parameters() if not parameter.grad.any()] == []


@every_kind
def test_twenty_bfloat16_training_steps_are_finite_and_warn_of_nothing(kind: str) -> None:
    torch.manual_seed(0)
    changes = {"dropout": 0.1, "init_std": 0.1} | ({"dropatt": 0.1} if kind in TRANSFORMERS else {})
    model = make_model(config_of(kind, **changes), vocab_size=V).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    memory, losses = model.empty_memory(3), []
    text = random_tokens(3, 4 * SEGMENT_LEN + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(20):
            start = step % 4 * SEGMENT_LEN
            tokens_BT, targets_BT = (text[:, start + shift : start + shift + SEGMENT_LEN] for shift in (0, 1))
            resets_BT = one_reset(3, SEGMENT_LEN, lane=step % 3, place=step % SEGMENT_LEN)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                nll_BT, memory = model.nll(tokens_BT, targets_BT, memory, resets_BT)
            optimizer.zero_grad()
            nll_BT.mean().backward()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
            optimizer.step()
            losses.append(nll_BT.mean().item())
    assert contents(memory).isfinite().all()
    assert sum(losses[-4:]) < 0.95 * sum(losses[:4])


@every_kind
def test_weights_load_into_a_second_model_and_copies_read_the_same(kind: str) -> None:
    model = model_of(kind, tie_weights=False)
    second = model_of(kind, tie_weights=False, seed=1)
    tokens_BT, (memory,) = random_tokens(1, SEGMENT_LEN), aged(model, 9)
    expected = model(tokens_BT, memory).hidden_BTD
    assert difference(second(tokens_BT, memory).hidden_BTD, expected) > 1e-3
    second.load_state_dict(model.state_dict())
    for other in (second, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(tokens_BT, memory).hidden_BTD, expected)


@every_kind
@pytest.mark.parametrize("variational", [False, True])
def test_dropout_acts_in_training_only_and_on_the_last_hidden_states_too(kind: str, variational: bool) -> None:
    torch.manual_seed(0)
    model = model_of(kind, dropout=0.5, variational_dropout=variational)
    tokens_BT, memory = random_tokens(4, SEGMENT_LEN), model.empty_memory(4)
    evaluated = model(tokens_BT, memory).hidden_BTD
    assert torch.equal(model(tokens_BT, memory).hidden_BTD, evaluated)
    dropped_BTD = model.train()(tokens_BT, memory).hidden_BTD == 0
    assert 0.3 < float(dropped_BTD.double().mean()) < 0.7
    assert bool((dropped_BTD == dropped_BTD[:, :1]).all()) is variational


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_attention_weights_are_dropped_in_training_only(kind: str) -> None:
    torch.manual_seed(0)
    model = model_of(kind, dropatt=0.5)
    tokens_BT, memory = random_tokens(1, 9), model.empty_memory(1)
    first, again = (model(tokens_BT, memory).hidden_BTD for _ in range(2))
    assert torch.equal(first, again)
    model.train()
    first, again = (model(tokens_BT, memory).hidden_BTD for _ in range(2))
    assert difference(first, again) > 1e-3


@every_kind
def test_every_parameter_is_drawn_as_said(kind: str) -> None:
    torch.manual_seed(0)
    model = make_model(config_of(kind, d_model=64, n_layer=3, init_std=0.03), vocab_size=500)
    with torch.device("meta"):
        on_meta = make_model(config_of(kind, d_model=64, n_layer=3, init_std=0.03), vocab_size=500)
    assert on_meta.state_dict().keys() == model.state_dict().keys()
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()
        if name.endswith(".bias") or "biases" in name:
            assert not values.any(), name
        elif "norm" in name:
            mean, std = (1.0, 0.0) if kind == "transformer_rope" else (1.0, 0.03)
            assert float(values.mean()) == pytest.approx(mean, abs=5 * std / 8), name
            assert float(values.std()) == pytest.approx(std, rel=0.5), name
        elif "network" not in name:
            added = kind == "transformer_rope" and name.endswith(("output.weight", "down.weight"))
            std = 0.03 / 6**0.5 if added else 0.03
            assert float(values.std()) == pytest.approx(std, rel=5 / (2 * len(values)) ** 0.5), name
            assert abs(float(values.mean())) < 5 * std / len(values) ** 0.5, name


@every_kind
def test_weight_decay_spares_embeddings_biases_and_norms(kind: str) -> None:
    """The names that `training/optim.py` goes by."""
    model = model_of(kind)
    spared = [
        name for name, p in model.named_parameters() if "embedding" in name or name.endswith("bias") or p.dim() < 2
    ]
    decayed = {name for name, _ in model.named_parameters()} - set(spared)
    kinds_of_matrix = {name.split(".", 2)[-1] for name in decayed}
    assert all(name.endswith(("weight", "weight_ih_l0", "weight_hh_l0")) for name in kinds_of_matrix)
    assert not any("norm" in name for name in decayed)
    assert any("layers" in name for name in decayed)
