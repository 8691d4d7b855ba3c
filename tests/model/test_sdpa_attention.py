"""What CUDA's kernel demands of its inputs, without it; `tests/benchmarks/gpu.py` looks at what it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transformer_xl.model.attention import plain_attention
from transformer_xl.model.kernels import sdpa
from transformer_xl.model.mask import AttentionMask

B, N = 2, 2
BYTES_AT_ONCE = 16
"""What the kernel reads at once, from an address that must be a multiple of it."""


def random_inputs(*, queries: int, keys: int, width: int, dtype: torch.dtype, requires_grad: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(queries + keys + width)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_(requires_grad)

    return {
        "query_BTNH": draw(B, queries, N, width),
        "key_BSNH": draw(B, keys, N, width),
        "value_BSNH": draw(B, keys, N, width),
        "position_RNH": draw(keys + 1, N, width),
        "content_bias_NH": draw(N, width),
        "position_bias_NH": draw(N, width),
    }


def causal(*, queries: int, keys: int, hidden: int) -> Tensor:
    """Every query sees itself and what is before it but for the first keys."""
    visible_BTS = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries).repeat(B, 1, 1)
    visible_BTS[:, :, :hidden] = False
    return visible_BTS


@pytest.mark.parametrize(("queries", "keys", "width"), [(5, 12, 8), (5, 16, 5), (7, 23, 41), (1, 9, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_and_the_heads_are_what_the_kernel_reads(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int, dtype: torch.dtype
) -> None:
    given: dict[str, Any] = {}

    def attention(query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Tensor:
        given.update(rest, query=query, key=key, value=value)
        return torch.zeros_like(query)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    inputs = random_inputs(queries=queries, keys=keys, width=width, dtype=dtype, requires_grad=True)
    for name in ("content_bias_NH", "position_bias_NH"):
        inputs[name] = inputs[name].float()  # as under autocast, where parameters stay float32
    visible_BTS = causal(queries=queries, keys=keys, hidden=2)
    out = sdpa.sdpa_attention(**inputs, mask=AttentionMask(visible_BTS), dropout=0.25)
    bias = given["attn_mask"]
    assert out.shape == (B, queries, N, width)
    assert bias.shape == (B, N, queries, keys)
    assert bias.requires_grad
    assert given["dropout_p"] == 0.25
    assert given["scale"] == width**-0.5
    assert {bias.dtype, given["query"].dtype, given["key"].dtype, given["value"].dtype} == {dtype}
    assert bias.stride(-1) == 1
    assert all(stride % 8 == 0 for stride in bias.stride()[:-1])
    assert bias.data_ptr() % BYTES_AT_ONCE == 0
    assert all(given[name].shape[-1] % 8 == 0 for name in ("query", "key", "value"))
    assert torch.equal(bias.isinf(), ~visible_BTS[:, None].expand_as(bias))


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.bfloat16, 6e-2)])
def test_long_stretches_of_hidden_keys_change_nothing(requires_grad: bool, dtype: torch.dtype, within: float) -> None:
    """Memory of full size that is nearly empty; without gradients torch takes another kernel on a CPU too."""
    sizes = {"queries": 9, "keys": 701}
    inputs = random_inputs(**sizes, width=12, dtype=dtype, requires_grad=requires_grad)
    visible_BTS = causal(**sizes, hidden=690)
    out = sdpa.sdpa_attention(**inputs, mask=AttentionMask(visible_BTS), dropout=0.0)
    expected = plain_attention(**inputs, mask=AttentionMask(visible_BTS), dropout=0.0)
    torch.testing.assert_close(out, expected, rtol=0, atol=within)
    if requires_grad:
        for grad in torch.autograd.grad(out.float().square().sum(), list(inputs.values())):
            assert grad.isfinite().all()
            assert grad.any()
