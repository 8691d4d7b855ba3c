"""The matrix products of a training step, alone: what is left of its time if nothing else took any.

Letters: B lanes, T tokens, M memory slots, D width, N heads, H head width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from transformer_xl.model.transformer import Transformer


class Product(NamedTuple):
    """(rows x inner) times (inner x columns), for each of `batch`, `times` times a step."""

    batch: int
    rows: int
    inner: int
    columns: int
    times: int

    @property
    def flops(self) -> int:
        """Count the operations."""
        return 2 * self.batch * self.rows * self.inner * self.columns * self.times


def step_products(model: Transformer, request: dict[str, Any]) -> list[Product]:
    """List what `Transformer.flops` counts, forward and backward, each in its own shape.

    A query's keys are as many as causality leaves it on average; a loss visits the tails that the shares say.
    """
    config, lanes, segment = model.config, request["batch_size"], request["segment_len"]
    memory, heads, width = config.mem_len, config.n_head * config.d_head, config.d_model
    tokens = lanes * segment
    feed_forward = 3 if config.feed_forward == "swiglu" else 2
    keys = memory + (segment + 1) // 2
    layer = [
        *_linear(tokens, width, heads),  # queries
        *_linear(tokens, width, 2 * heads),  # keys and values of the segment
        *_linear(tokens, heads, width),  # output
        *_linear(tokens, width, (feed_forward - 1) * config.d_inner),
        *_linear(tokens, config.d_inner, width),
        # of memory: what its gradient would be is not computed
        Product(1, lanes * memory, width, 2 * heads, 1),
        Product(1, width, lanes * memory, 2 * heads, 1),
        *_attended(lanes * config.n_head, segment, config.d_head, keys, times=model.position.scored),
    ]
    if model.position.has_biases:
        layer += _linear(memory + segment, width, heads)
    one_layer = [product for product in layer if product.flops]
    vocabulary = _vocabulary(model, tokens=tokens, shares=request["cluster_shares"])
    return [product._replace(times=product.times * config.n_layer) for product in one_layer] + vocabulary


def _linear(rows: int, inner: int, columns: int) -> list[Product]:
    """Forward, and the gradients of input and weight."""
    return [
        Product(1, rows, inner, columns, 1),
        Product(1, rows, columns, inner, 1),
        Product(1, inner, rows, columns, 1),
    ]


def _attended(batch: int, queries: int, width: int, keys: int, *, times: int) -> list[Product]:
    """Of q·k, say: forward, and the gradients of queries and keys."""
    return [
        Product(batch, queries, width, keys, times),
        Product(batch, queries, keys, width, times),
        Product(batch, width, queries, keys, times),
    ]


def _vocabulary(model: Transformer, *, tokens: int, shares: Sequence[float]) -> list[Product]:
    clusters = model.clusters
    products = []
    for number, (size, width) in enumerate(zip(clusters.sizes, clusters.widths, strict=True)):
        rows = round(tokens * shares[number]) if number else tokens
        products += _linear(rows, width, size if number else size + len(clusters.tails))
        if clusters.projected:
            products += _linear(rows, clusters.d_model, width)
            products += _linear(round(tokens * shares[number]), width, clusters.d_model)
    return [product for product in products if product.flops]


def timed_products(products: list[Product], *, dtype: torch.dtype) -> Callable[[], None]:
    """Give a function that does the products, on numbers and into memory of its own, made now."""
    calls = []
    for product in products:
        left = torch.randn(product.batch, product.rows, product.inner).to(dtype)
        right = torch.randn(product.batch, product.inner, product.columns).to(dtype)
        calls.append((left, right, torch.bmm(left, right), product.times))

    def run() -> None:
        for left, right, out, times in calls:
            for _ in range(times):
                if len(left) == 1:
                    torch.mm(left[0], right[0], out=out[0])
                else:
                    torch.bmm(left, right, out=out)

    return run
