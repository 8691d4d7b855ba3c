from __future__ import annotations

import dataclasses

import pytest
import torch

import transformer_xl as txl
from tests.model.kinds import TRANSFORMERS, model_of, one_reset
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


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_memory_is_kept_in_the_type_of_products_where_that_changes_no_bit(kind: str) -> None:
    """Without `detach` it stays as it is, with the same losses and gradients to the bit."""
    model = model_of(kind, dtype=torch.float32, mem_len=7).train()
    tokens_BT, resets_BT = random_tokens(2, SEGMENT_LEN), one_reset(2, SEGMENT_LEN, lane=1, place=2)
    found = []
    for detach in (True, False):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            memory = model.nll(tokens_BT, tokens_BT, model.empty_memory(2), resets_BT, detach=detach).memory
            losses = model.nll(tokens_BT, tokens_BT, memory, detach=True)
        losses.nll_BT.sum().backward()
        found.append((memory.hidden_LBMD, losses.nll_BT, [weight.grad for weight in model.parameters()]))
    (kept, nll_BT, gradients), (unrounded, expected_BT, expected) = found
    assert kept.dtype == (torch.float32 if model.config.pre_norm else torch.bfloat16)
    assert torch.equal(kept, unrounded.to(kept.dtype))
    assert torch.equal(nll_BT, expected_BT)
    pairs = [pair for pair in zip(gradients, expected, strict=True) if pair[0] is not None]
    assert pairs
    assert all(torch.equal(*pair) for pair in pairs)


def test_a_session_goes_on_from_a_memory_in_the_type_of_products() -> None:
    model = model_of("transformer_xl", dtype=torch.float32)
    tokens_BT = random_tokens(2, SEGMENT_LEN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = model(tokens_BT, model.empty_memory(2)).memory
    session = txl.stream(model, batch_size=2)
    session.start_from(memory)
    assert_equal_to(session.log_probs(tokens_BT), model.log_probs(tokens_BT, memory).log_probs_BTV, within=1e-5)


def test_what_is_zero_beyond_the_lengths_is_not_copied_to_make_it_so() -> None:
    model = model_of("transformer_xl")
    memory = model(random_tokens(2, SEGMENT_LEN), model.empty_memory(2)).memory
    assert memory.zeroed() is memory
    made_up = dataclasses.replace(memory, length_B=memory.length_B - 1)
    assert not made_up.zeroed().hidden_LBMD[:, :, 0].any()
