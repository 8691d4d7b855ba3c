from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.model.tiny import assert_equal_to
from transformer_xl.model.mask import AttentionMask
from transformer_xl.model.positions import CONTENT_ATTENTION

B, T, S, N, H = 2, 5, 12, 2, 4


every_kernel = pytest.mark.parametrize("content_attention", CONTENT_ATTENTION.values(), ids=CONTENT_ATTENTION)


def parts(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, T, N, H), (B, S, N, H), (B, S, N, H), (B, T, N, H)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def some_visible() -> torch.Tensor:
    visible_BTS = torch.rand(B, T, S, generator=torch.Generator().manual_seed(3)) < 0.5
    visible_BTS[:, :, 0] = True
    return visible_BTS


@every_kernel
def test_it_equals_a_loop_over_queries_and_keys_with_its_gradients(
    content_attention: Callable[..., torch.Tensor],
) -> None:
    *inputs, upstream = parts(0)
    visible_BTS = some_visible()
    query, key, value = (tensor.clone().requires_grad_() for tensor in inputs)
    rows = []
    for b in range(B):
        for t in range(T):
            for n in range(N):
                seen = [s for s in range(S) if visible_BTS[b, t, s]]
                weights = torch.stack([(query[b, t, n] @ key[b, s, n] / math.sqrt(H)).exp() for s in seen])
                rows.append(sum(w / weights.sum() * value[b, s, n] for w, s in zip(weights, seen, strict=True)))
    expected = torch.stack(rows).view(B, T, N, H)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    names = ("query_BTNH", "key_BSNH", "value_BSNH")
    actual = content_attention(**dict(zip(names, leaves, strict=True)), mask=AttentionMask(visible_BTS), dropout=0.0)
    assert_equal_to(actual, expected, within=1e-12)
    wanted = torch.autograd.grad(expected, (query, key, value), upstream)
    for gradient, loop in zip(torch.autograd.grad(actual, leaves, upstream), wanted, strict=True):
        assert_equal_to(gradient, loop, within=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@every_kernel
def test_weights_are_dropped_and_the_others_made_up_for_it(
    content_attention: Callable[..., torch.Tensor], dropout: float
) -> None:
    torch.manual_seed(0)
    ones = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    attended = content_attention(
        query_BTNH=ones.expand(200, 1, 1, 1),
        key_BSNH=ones.expand(200, 10, 1, 1),
        value_BSNH=ones.expand(200, 10, 1, 1),
        mask=AttentionMask(torch.ones(200, 1, 10, dtype=torch.bool)),
        dropout=dropout,
    )
    assert float(attended.mean()) == pytest.approx(1.0, abs=0.1)
    kept = attended.flatten() * 10 * (1 - dropout)  # a whole number of keys, each of weight 1/10
    assert_equal_to(kept, kept.round(), within=1e-9)
    assert (float(kept.std()) > 1) is (dropout > 0)
