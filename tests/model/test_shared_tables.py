from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.model.tiny import V, assert_equal_to, random_tokens, tiny_model, tiny_model_config
from transformer_xl.model.transformer import Transformer

SHAPES: list[dict[str, Any]] = [
    {},
    {"tie_weights": False},
    {"cutoffs": [4, 10]},
    {"cutoffs": [4, 10], "div_val": 2},
    {"cutoffs": [4, 10], "div_val": 2, "tie_weights": False},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [2, 3 * V])
def test_the_loss_of_a_segment_has_the_gradients_of_its_two_halves(shape: dict[str, Any], tokens: int) -> None:
    model = tiny_model(**shape)
    tokens_BT, targets_BT = random_tokens(1, tokens), random_tokens(1, tokens, seed=5)
    model.head_nll(model(tokens_BT, model.empty_memory(1)).hidden_BTD, targets_BT).sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model.nll(tokens_BT, targets_BT, model.empty_memory(1)).nll_BT.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.layout == torch.strided, name
        assert_equal_to(parameter.grad, expected[name], within=1e-12)


class _Tables(TorchDispatchMode):
    """Counts the new tensors of a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.layout == torch.strided and tuple(out.shape) == self.shape:
            self.storages.add(out.untyped_storage().data_ptr())
        return out


def test_one_gradient_of_a_tied_table_is_made() -> None:
    vocab_size = 997
    model = Transformer(tiny_model_config(cutoffs=[4, 10]), vocab_size=vocab_size)
    tokens_BT = random_tokens(1, 5)
    with _Tables((vocab_size, 16)) as tables:
        model.nll(tokens_BT, tokens_BT, model.empty_memory(1)).nll_BT.sum().backward()
    assert len(tables.storages - {model.embedding.weights[0].untyped_storage().data_ptr()}) == 1


def test_hidden_states_alone_give_the_table_a_gradient_that_optimizers_take() -> None:
    model = tiny_model()
    model(random_tokens(1, 2), model.empty_memory(1)).hidden_BTD.sum().backward()
    gradient = model.embedding.weights[0].grad
    assert gradient is not None
    assert gradient.layout == torch.strided
