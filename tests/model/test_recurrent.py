"""Recurrent networks: their state, and where it begins anew."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from tests.model.kinds import RECURRENT, config_of, model_of
from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, difference, random_tokens
from transformer_xl.model.base import make_model

NETWORKS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
every_kind = pytest.mark.parametrize("kind", RECURRENT)


def as_one_network(model: Any, kind: str) -> Any:
    """Give torch's own network of several layers with the model's weights."""
    network = NETWORKS[kind](16, 16, num_layers=len(model.layers), batch_first=True).double()
    for number, layer in enumerate(model.layers):
        for name, parameter in layer.network.named_parameters():
            network.get_parameter(name.replace("l0", f"l{number}")).data.copy_(parameter.data)
    return network


@every_kind
def test_it_equals_torchs_network_of_several_layers(kind: str) -> None:
    model = model_of(kind, n_layer=3)
    network, memory, state = as_one_network(model, kind), model.empty_memory(2), None
    for seed in range(3):
        tokens_BT = random_tokens(2, SEGMENT_LEN, seed=seed)
        hidden_BTD, memory = model(tokens_BT, memory)
        expected, state = network(4.0 * model.embedding.weights[0][tokens_BT], state)
        assert_equal_to(hidden_BTD, expected, within=1e-12)
        states = list(state) if kind == "lstm" else [state]
        assert_equal_to(memory.state_KLBD, torch.stack(states), within=1e-12)


@every_kind
def test_every_lane_begins_anew_exactly_at_its_own_resets(kind: str) -> None:
    model = model_of(kind)
    tokens_BT = random_tokens(3, 6)
    resets_BT = torch.zeros(3, 6, dtype=torch.bool)
    resets_BT[0, [2, 5]] = resets_BT[1, [0, 2]] = True
    (_, memory) = model(random_tokens(3, 4, seed=2), model.empty_memory(3))
    actual, after = model(tokens_BT, memory, resets_BT)
    for lane, borders in enumerate(([0, 2, 5, 6], [0, 2, 6], [0, 6])):
        state = memory.lanes(slice(lane, lane + 1))
        for start, stop in pairwise(borders):
            if resets_BT[lane, start]:
                state = model.empty_memory(1)
            expected, state = model(tokens_BT[lane : lane + 1, start:stop], state)
            assert_equal_to(actual[lane : lane + 1, start:stop], expected, within=1e-12)
        assert_equal_to(after.state_KLBD[:, :, lane : lane + 1], state.state_KLBD, within=1e-12)


@every_kind
def test_what_a_lane_forgets_may_be_infinite(kind: str) -> None:
    model = model_of(kind)
    memory = model.empty_memory(2)
    memory.state_KLBD[:, :, 1] = torch.nan
    resets_BT = torch.zeros(2, SEGMENT_LEN, dtype=torch.bool)
    resets_BT[1, 0] = True
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    poisoned = model(tokens_BT, memory, resets_BT).hidden_BTD
    assert_equal_to(poisoned, model(tokens_BT, model.empty_memory(2)).hidden_BTD, within=1e-12)


@every_kind
def test_dropout_lies_between_the_layers_too(kind: str) -> None:
    torch.manual_seed(0)
    model = model_of(kind, dropout=0.5).train()
    inputs = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(random_tokens(4, SEGMENT_LEN), model.empty_memory(4))
    assert len(inputs) == 2
    for input_BTD in inputs:
        assert 0.35 < float((input_BTD == 0).double().mean()) < 0.65


@every_kind
def test_cells_are_drawn_by_their_width_and_forget_gates_are_open(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = make_model(config_of(kind, d_model=64, init_std=0.5), vocab_size=V)
    for layer in model.layers:
        for name, parameter in layer.network.state_dict().items():
            if name.startswith("weight"):
                assert float(parameter.abs().max()) == pytest.approx(1 / 8, rel=0.01)
                assert float(parameter.std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
                continue
            is_open = torch.zeros_like(parameter, dtype=torch.bool)
            if kind == "lstm" and name == "bias_ih_l0":
                is_open[64:128] = True
            assert torch.equal(parameter, is_open.float())


def test_an_open_forget_gate_is_the_second_of_four() -> None:
    """With it wide open and the input gate shut, the cell's state stays as it is."""
    model = model_of("lstm", n_layer=1)
    network = model.layers[0].network
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.bias_ih_l0[:16] = -50.0
        network.bias_ih_l0[16:32] = 50.0
    memory = model.empty_memory(1)
    memory.state_KLBD[1] = 3.0
    after = model(random_tokens(1, SEGMENT_LEN), memory).memory
    assert_equal_to(after.state_KLBD[1], memory.state_KLBD[1], within=1e-9)
    assert difference(after.state_KLBD[0], memory.state_KLBD[0]) > 0.1
