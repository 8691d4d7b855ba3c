from __future__ import annotations

import pytest
import torch

from tests.model.kinds import model_of
from tests.model.tiny import SEGMENT_LEN, assert_equal_to, random_tokens
from transformer_xl.model.transformer import Transformer


def layer_inputs(model: Transformer) -> list[torch.Tensor]:
    """Record what each layer is given from now on."""
    inputs: list[torch.Tensor] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    return inputs


def test_same_length_without_memory_is_refused_by_name() -> None:
    model = model_of("transformer_xl", same_length=True)
    with pytest.raises(ValueError, match=r"same_length .* mem_len 0"):
        model(random_tokens(2, SEGMENT_LEN), model.empty_memory(2, mem_len=0))


def test_tokens_without_lanes_are_refused() -> None:
    model = model_of("transformer_xl")
    with pytest.raises(ValueError, match="lanes, tokens"):
        model(random_tokens(SEGMENT_LEN), model.empty_memory(SEGMENT_LEN))


def test_another_context_rule_shares_the_parameters_and_leaves_the_model_as_it_was() -> None:
    model = model_of("transformer_xl")
    twin = model.with_context(clamp_len=3, same_length=True)
    assert (model.clamp_len, model.same_length) == (None, False)
    assert (twin.clamp_len, twin.same_length) == (3, True)
    ours, twins = dict(model.named_parameters()), dict(twin.named_parameters())
    assert ours.keys() == twins.keys()
    assert all(twins[name] is parameter for name, parameter in ours.items())


def test_a_segment_that_counts_nothing_gives_zero_losses_and_gradients() -> None:
    model = model_of("transformer_xl")
    nothing = torch.full((2, SEGMENT_LEN), -100)
    nll_BT, _ = model.nll(random_tokens(2, SEGMENT_LEN), nothing, model.empty_memory(2))
    nll_BT.sum().backward()
    assert not nll_BT.any()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_memory_keeps_what_the_layers_read_dropout_included() -> None:
    torch.manual_seed(0)
    model = model_of("transformer_xl", dropout=0.5).train()
    inputs = layer_inputs(model)
    _, memory = model(random_tokens(2, SEGMENT_LEN), model.empty_memory(2))
    inputs_LBTD = torch.stack(inputs)
    assert torch.equal(memory.hidden_LBMD, inputs_LBTD.detach())
    assert 0.3 < float((memory.hidden_LBMD[0] == 0).double().mean()) < 0.7
    _, memory = model(random_tokens(2, SEGMENT_LEN), memory)
    inputs_LBTD = torch.stack(inputs[2:])
    assert torch.equal(memory.hidden_LBMD[:, :, 2:], inputs_LBTD.detach())


def test_the_sinusoids_have_one_dropout_mask_for_all_layers_and_lanes() -> None:
    torch.manual_seed(0)
    model = model_of("transformer_xl", dropout=0.5)
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
    model = model_of("transformer_xl", dropout=0.5)
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
