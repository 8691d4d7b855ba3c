"""What every kind of network promises and the oracles do not see."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from pathlib import Path

import pytest
import torch

from tests.model.kinds import (
    KINDS,
    RECURRENT,
    TRANSFORMERS,
    aged,
    config_of,
    contents,
    joined,
    model_of,
    one_reset,
)
from tests.model.tiny import SEGMENT_LEN, V, difference, random_tokens
from transformer_xl.model.base import make_model
from transformer_xl.model.memory import memory_from_state_dict

EXACT = 1e-9
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_lanes_cut_and_joined_again_read_on_as_if_they_never_were(kind: str) -> None:
    model = model_of(kind)
    memory = joined(aged(model, 2, 5, 9))
    again = joined([memory.lanes(slice(0, 2)), memory.lanes(slice(2, 3)).to("cpu")])
    tokens_BT = random_tokens(3, SEGMENT_LEN)
    assert torch.equal(model(tokens_BT, again).hidden_BTD, model(tokens_BT, memory).hidden_BTD)
    part = memory.lanes(slice(0, 1))
    before = contents(memory).clone()
    contents(part).fill_(7.0)
    assert torch.equal(contents(memory), before)


@every_kind
def test_memory_survives_a_checkpoint_that_can_hold_no_code(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    (memory,) = aged(model, 9)
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    loaded = memory_from_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert type(loaded) is type(memory)
    assert loaded.state_dict().keys() == memory.state_dict().keys()
    tokens_BT = random_tokens(1, SEGMENT_LEN)
    assert torch.equal(model(tokens_BT, loaded).hidden_BTD, model(tokens_BT, memory).hidden_BTD)


@every_kind
def test_a_call_leaves_its_input_memory_unchanged(kind: str) -> None:
    model = model_of(kind).train()
    memory = joined(aged(model, 9, 5))
    before = contents(memory).clone()
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    losses, after = model.nll(tokens_BT, tokens_BT, memory, one_reset(2, SEGMENT_LEN, lane=1, place=2))
    losses.sum().backward()
    contents(after).fill_(7.0)
    assert torch.equal(contents(memory), before)


@every_kind
def test_a_negative_mem_len_and_lanes_that_differ_are_refused(kind: str) -> None:
    model = model_of(kind)
    with pytest.raises(ValueError, match="mem_len is -1"):
        model.empty_memory(2, mem_len=-1)
    with pytest.raises(ValueError, match="3 lanes and the memory has 2"):
        model(random_tokens(3, SEGMENT_LEN), model.empty_memory(2))


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"transformer_xl", "shaw"}))
def test_a_clamp_len_is_refused_by_models_that_know_no_distances(kind: str) -> None:
    model = model_of(kind)
    twin = model.with_context(clamp_len=3, same_length=False)
    with pytest.raises(ValueError, match="clamp_len is 3, and must be null for "):
        twin(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))


@pytest.mark.parametrize("kind", RECURRENT)
def test_same_length_is_refused_by_models_that_know_no_keys(kind: str) -> None:
    model = model_of(kind).with_context(clamp_len=None, same_length=True)
    with pytest.raises(ValueError, match=f"same_length is true, and must be false for {kind}"):
        model(random_tokens(1, SEGMENT_LEN), model.empty_memory(1))


@every_kind
def test_a_half_precision_model_still_scores_in_float32(kind: str) -> None:
    model = model_of(kind, dtype=torch.bfloat16)
    tokens_BT, memory = random_tokens(2, SEGMENT_LEN), model.empty_memory(2)
    for _ in range(2):
        log_probs_BTV, memory = model.log_probs(tokens_BT, memory)
        assert contents(memory).dtype == torch.bfloat16
        assert log_probs_BTV.dtype == torch.float32


@every_kind
def test_no_number_is_fetched_from_the_device_to_read_a_segment_without_resets(kind: str) -> None:
    with torch.device("meta"):
        model = make_model(config_of(kind), vocab_size=V)
        memory = model.empty_memory(2)
        for _ in range(2):
            nll_BT, memory = model.nll(random_tokens_on_meta(), random_tokens_on_meta(), memory)
    assert nll_BT.shape == (2, SEGMENT_LEN)


def random_tokens_on_meta() -> torch.Tensor:
    return torch.empty(2, SEGMENT_LEN, dtype=torch.int64, device="meta")


@every_kind
def test_twenty_bfloat16_training_steps_are_finite_and_warn_of_nothing(kind: str) -> None:
    if kind == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's LSTM has no bfloat16 on a CPU without AVX-512")
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


@every_kind
def test_gradients_reach_every_parameter_and_memory_only_where_asked_for(kind: str) -> None:
    model = model_of(kind)
    given = joined(aged(model, 9, 9))
    name = {"hidden": "hidden_LBMD", "state": "state_KLBD"}[given.kind]
    tokens_BT, later_BT = random_tokens(2, SEGMENT_LEN), random_tokens(2, 3, seed=2)
    for detach in (True, False):
        leaf = getattr(given, name).detach().clone().requires_grad_()
        memory = dataclasses.replace(given, **{name: 2 * leaf})  # with a graph behind it
        first, after = model.nll(tokens_BT, tokens_BT, memory, detach=detach)
        second, _ = model.nll(later_BT, later_BT, after, detach=detach)
        model.zero_grad(set_to_none=True)
        (first.sum() + second.sum()).backward()
        assert (leaf.grad is None) is detach
        assert contents(after).requires_grad is not detach
        assert [name for name, parameter in model.named_parameters() if not parameter.grad.any()] == []
