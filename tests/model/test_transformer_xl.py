from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.model.tiny import SEGMENT_LEN, V, assert_equal_to, difference, random_tokens, tiny_model
from transformer_xl.model.base import make_model
from transformer_xl.model.transformer import Transformer


def layer_calls(model: Transformer) -> list[dict[str, Any]]:
    """Record what each layer is given from now on."""
    calls: list[dict[str, Any]] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs), with_kwargs=True)
    return calls


def test_same_length_without_memory_is_refused_by_name() -> None:
    model = tiny_model(same_length=True)
    with pytest.raises(ValueError, match=r"same_length .* mem_len 0"):
        model(random_tokens(2, SEGMENT_LEN), model.empty_memory(2, mem_len=0))


def test_tokens_and_memory_of_different_lanes_are_refused_with_both_numbers() -> None:
    model = tiny_model()
    for memory in (model.empty_memory(2), model.zero_memory(2)):
        with pytest.raises(ValueError, match=r"3 lanes .* 2"):
            model(random_tokens(3, SEGMENT_LEN), memory)


def test_tokens_without_lanes_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match="lanes, tokens"):
        model(random_tokens(SEGMENT_LEN), model.empty_memory(SEGMENT_LEN))


def test_a_negative_mem_len_is_refused() -> None:
    with pytest.raises(ValueError, match="mem_len is -1"):
        tiny_model().empty_memory(2, mem_len=-1)


def test_another_context_rule_shares_the_parameters_and_leaves_the_model_as_it_was() -> None:
    model = tiny_model()
    twin = model.with_context(clamp_len=3, same_length=True)
    assert (model.clamp_len, model.same_length) == (None, False)
    assert (twin.clamp_len, twin.same_length) == (3, True)
    ours, twins = dict(model.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == twins.keys()
    assert all(twins[name] is parameter for name, parameter in ours.items())


@pytest.mark.parametrize("rule", [{"clamp_len": 2, "same_length": False}, {"clamp_len": None, "same_length": True}])
def test_another_context_rule_reads_as_a_model_made_with_it(rule: dict[str, Any]) -> None:
    model, made = tiny_model(), tiny_model(**rule)
    twin = model.with_context(**rule)
    _, memory = made(random_tokens(2, 9), made.empty_memory(2))
    tokens_BT = random_tokens(2, SEGMENT_LEN, seed=2)
    actual = twin.log_probs(tokens_BT, memory).log_probs_BTV
    assert torch.equal(actual, made.log_probs(tokens_BT, memory).log_probs_BTV)
    assert difference(actual, model.log_probs(tokens_BT, memory).log_probs_BTV) > 1e-3


def test_probabilities_sum_to_one() -> None:
    model = tiny_model()
    log_probs_BTV = model.log_probs(random_tokens(2, SEGMENT_LEN), model.empty_memory(2)).log_probs_BTV
    assert log_probs_BTV.shape == (2, SEGMENT_LEN, V)
    assert_equal_to(log_probs_BTV.exp().sum(-1), torch.ones(2, SEGMENT_LEN, dtype=torch.float64), within=1e-12)


def test_losses_are_the_targets_in_token_order_and_zero_where_none_counts() -> None:
    model = tiny_model()
    tokens_BT, targets_BT = random_tokens(2, SEGMENT_LEN), random_tokens(2, SEGMENT_LEN, seed=2)
    targets_BT[0, 1] = targets_BT[1, 4] = -100
    memory = model.zero_memory(2)
    nll_BT, after = model.nll(tokens_BT, targets_BT, memory)
    log_probs_BTV, after_log_probs = model.log_probs(tokens_BT, memory)
    for lane in range(2):
        for t, target in enumerate(targets_BT[lane].tolist()):
            expected = 0.0 if target == -100 else -log_probs_BTV[lane, t, target].item()
            assert nll_BT[lane, t].item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(after.hidden_LBMD, after_log_probs.hidden_LBMD)


def test_a_segment_that_counts_nothing_gives_zero_losses_and_gradients() -> None:
    model = tiny_model()
    nothing = torch.full((2, SEGMENT_LEN), -100)
    nll_BT, _ = model.nll(random_tokens(2, SEGMENT_LEN), nothing, model.empty_memory(2))
    nll_BT.sum().backward()
    assert not nll_BT.any()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_a_half_precision_model_still_scores_in_float32() -> None:
    model = tiny_model(dtype=torch.bfloat16)
    tokens_BT, memory = random_tokens(2, SEGMENT_LEN), model.empty_memory(2)
    assert memory.hidden_LBMD.dtype == torch.bfloat16
    log_probs_BTV = model.log_probs(tokens_BT, memory).log_probs_BTV
    assert log_probs_BTV.dtype == torch.float32
    assert model.nll(tokens_BT, tokens_BT, memory).nll_BT.dtype == torch.float32
    assert_equal_to(log_probs_BTV.exp().sum(-1), torch.ones(2, SEGMENT_LEN), within=1e-5)


def test_memory_keeps_what_the_layers_read_dropout_included() -> None:
    torch.manual_seed(0)
    model = tiny_model(dropout=0.5).train()
    calls = layer_calls(model)
    _, memory = model(random_tokens(2, SEGMENT_LEN), model.empty_memory(2))
    inputs_LBTD = torch.stack([call["hidden_BTD"] for call in calls])
    assert torch.equal(memory.hidden_LBMD, inputs_LBTD.detach())
    assert 0.3 < float((memory.hidden_LBMD[0] == 0).double().mean()) < 0.7
    _, memory = model(random_tokens(2, SEGMENT_LEN), memory)
    inputs_LBTD = torch.stack([call["hidden_BTD"] for call in calls[2:]])
    assert torch.equal(memory.hidden_LBMD[:, :, 2:], inputs_LBTD.detach())


def test_the_sinusoids_have_one_dropout_mask_for_all_layers_and_lanes() -> None:
    torch.manual_seed(0)
    model = tiny_model(dropout=0.5)
    projected: list[torch.Tensor] = []
    for layer in model.layers:
        layer.attention.position.register_forward_hook(lambda _, inputs, output: projected.append(inputs[0]))
    tokens_BT = random_tokens(3, SEGMENT_LEN)
    model(tokens_BT, model.zero_memory(3))
    model.train()(tokens_BT, model.zero_memory(3))
    kept, _, first, second = projected
    assert first.shape == (12, 16)
    assert torch.equal(first, second)
    survives = first != 0
    assert 0.35 < float(survives.double().mean()) < 0.65
    assert_equal_to(first[survives], 2 * kept[survives], within=1e-12)


def test_each_dropout_of_the_paper_acts_in_training_only() -> None:
    model = tiny_model(dropout=0.5)
    tokens_BT, memory = random_tokens(2, SEGMENT_LEN), model.zero_memory(2)
    evaluated = model(tokens_BT, memory).hidden_BTD
    assert torch.equal(model(tokens_BT, memory).hidden_BTD, evaluated)
    hidden_BTD = model.train()(tokens_BT, memory).hidden_BTD
    assert 0.3 < float((hidden_BTD == 0).double().mean()) < 0.7  # the last hidden states' own
    dropped: list[tuple[int, ...]] = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _, inputs, output: dropped.append(tuple(output.shape)))
    model(tokens_BT, memory)
    embedding, sinusoid, last = (2, SEGMENT_LEN, 16), (12, 16), (2, SEGMENT_LEN, 16)
    layer = [(2, SEGMENT_LEN, 16), (2, SEGMENT_LEN, 32), (2, SEGMENT_LEN, 16)]  # attention's output; inside, after
    assert dropped == [embedding, sinusoid, *layer, *layer, last]


def test_dropatt_reaches_the_attention_in_training_only() -> None:
    model = tiny_model(dropatt=0.5)
    seen: list[float] = []
    attend = model.position.attend
    model.position.attend = lambda *given, **named: seen.append(named["dropout"]) or attend(*given, **named)
    for mode in (True, False):
        model.train(mode)(random_tokens(2, SEGMENT_LEN), model.empty_memory(2))
    assert seen == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("changes", [{}, {"same_length": True, "pre_norm": True, "untie_r": True}])
def test_twenty_bfloat16_training_steps_are_finite_and_warn_of_nothing(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Transformer(tiny_model_config(dropout=0.1, dropatt=0.1, **changes), vocab_size=V).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    memory, losses = model.empty_memory(3), []
    text = random_tokens(3, 4 * SEGMENT_LEN + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(20):
            start = step % 4 * SEGMENT_LEN
            tokens_BT, targets_BT = (text[:, start + shift : start + shift + SEGMENT_LEN] for shift in (0, 1))
            resets_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
            resets_BT[step % 3, step % SEGMENT_LEN] = True
            with torch.autocast("cpu", dtype=torch.bfloat16):
                nll_BT, memory = model.nll(tokens_BT, targets_BT, memory, resets_BT)
            optimizer.zero_grad()
            nll_BT.mean().backward()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
            optimizer.step()
            losses.append(nll_BT.mean().item())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert memory.hidden_LBMD.isfinite().all()
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def test_initial_weights_are_drawn_as_published() -> None:
    torch.manual_seed(0)
    config = tiny_model_config(d_model=64, n_head=4, d_head=32, d_inner=128, untie_r=True, n_layer=3)
    model = make_model(config, vocab_size=500)
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()
        if name.endswith(".bias") or "biases" in name:
            assert not values.any(), name
            continue
        centre = 1.0 if "norm" in name else 0.0
        assert_close_to_normal(values, mean=centre, std=0.02, name=name)
    assert {name for name, _ in model.named_parameters() if "_bias" in name} == {"content_bias", "position_bias"}


def assert_close_to_normal(values: Tensor, *, mean: float, std: float, name: str) -> None:
    """Within five standard errors."""
    count = len(values)
    assert abs(float(values.mean()) - mean) < 5 * std / count**0.5, name
    assert abs(float(values.std()) - std) < 5 * std / (2 * count) ** 0.5, name


@pytest.mark.parametrize(("untie_r", "pairs"), [(False, 1), (True, 2)])
def test_biases_are_one_pair_or_one_a_layer(untie_r: bool, pairs: int) -> None:
    model = tiny_model(untie_r=untie_r)
    assert model.content_bias.shape == model.position_bias.shape == (pairs, 2, 8)


def test_output_and_embedding_are_one_matrix() -> None:
    names = [
        name for name, parameter in tiny_model().named_parameters() if V in parameter.shape and "layers" not in name
    ]
    assert names == ["embedding.weights.0", "softmax.biases.0"]
