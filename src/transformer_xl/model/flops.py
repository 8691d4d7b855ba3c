"""Useful operations of a training step: matrix products only, a multiplication and an addition each.

A query's keys are counted as M + (T + 1) / 2, what causality leaves; memory's keys and values are projected once, the
encodings of distances once a step. A tail of an adaptive softmax counts for the tokens that visit it. Backward costs
twice forward, less what would flow into memory. Recomputation does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformer_xl.model.embedding import Clusters
from transformer_xl.model_config import RecurrentConfig, TransformerConfig


class LayerProducts(NamedTuple):
    """Which matrix products a layer has.

    Attributes:
        scored: products of every query with its keys: q·k, p·v, and q·r where a score knows the distance.
        projects_positions: whether each layer projects the encodings of all distances.
        feed_forward: matrices of the feed-forward network.
    """

    scored: int
    projects_positions: bool
    feed_forward: int


class Flops(NamedTuple):
    """Operations of reading one segment in every lane, and of the gradients that would flow into memory."""

    forward: int
    into_memory: int

    @property
    def step(self) -> int:
        """Operations of a training step."""
        return 3 * self.forward - self.into_memory


def transformer_flops(
    config: TransformerConfig,
    products: LayerProducts,
    clusters: Clusters,
    *,
    batch_size: int,
    segment_len: int,
    mem_len: int,
    cluster_shares: Sequence[float],
) -> Flops:
    """Count the operations of a transformer, the loss included."""
    heads = config.n_head * config.d_head
    tokens = batch_size * segment_len
    memory_projection = 2 * batch_size * mem_len * config.d_model * 2 * heads
    layer = (
        2 * tokens * config.d_model * 3 * heads  # queries, and the segment's keys and values
        + memory_projection
        + products.scored * tokens * heads * (2 * mem_len + segment_len + 1)  # over M + (T + 1) / 2 keys
        + 2 * tokens * heads * config.d_model  # output projection
        + 2 * tokens * config.d_model * config.d_inner * products.feed_forward
    )
    if products.projects_positions:
        layer += 2 * (mem_len + segment_len) * config.d_model * heads
    vocabulary = clusters.flops(tokens=tokens, shares=cluster_shares)
    return Flops(config.n_layer * layer + vocabulary, config.n_layer * memory_projection)


def recurrent_flops(
    config: RecurrentConfig,
    clusters: Clusters,
    *,
    gates: int,
    batch_size: int,
    segment_len: int,
    cluster_shares: Sequence[float],
) -> Flops:
    """Count the operations of a network whose cells have `gates` D x D matrices for the input, and for the state."""
    tokens = batch_size * segment_len
    matrix = 2 * config.d_model * config.d_model
    vocabulary = clusters.flops(tokens=tokens, shares=cluster_shares)
    into_memory = config.n_layer * batch_size * gates * matrix  # the first token's state is memory
    return Flops(config.n_layer * tokens * 2 * gates * matrix + vocabulary, into_memory)
