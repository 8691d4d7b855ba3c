from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.model.tiny import assert_equal_to
from transformer_xl.model.linear import Linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [3, 16])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 3), (2, 2), (1, 9), (0, 4)], ids=str)
def test_it_gives_what_torchs_own_does(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    torch.manual_seed(0)
    own = Linear(5, outputs, bias=bias)
    expected = nn.Linear(5, outputs, bias=bias)
    expected.load_state_dict(own.state_dict())
    rows = torch.randn(*shape, 5)
    with torch.no_grad():
        assert_equal_to(own(rows), expected(rows), within=1e-6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert own(rows).dtype == torch.bfloat16


def test_it_learns_as_torchs_own() -> None:
    own = Linear(5, 16)
    rows = torch.randn(1, 5)
    own(rows).sum().backward()
    assert own.weight.grad is not None
    assert_equal_to(own.weight.grad, rows.expand(16, 5), within=0)
