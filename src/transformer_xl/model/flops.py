"""Useful operations of a training step: matrix products only, a multiplication and an addition each.

A query's keys are counted as M + (T + 1) / 2, what causality leaves; memory's keys and values are projected once, the
encodings of distances once a step. A tail of an adaptive softmax counts for the tokens that visit it. Backward costs
twice forward, less what would flow into memory. Recomputation does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_xl.model.embedding import Clusters
from transformer_xl.model_config import RecurrentConfig, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class LayerProducts:
    """Which matrix products a layer has.

    Attributes:
        scored: products of every query with its keys: q·k, p·v, and q·r where a score knows the distance.
        projects_positions: whether each layer projects the encodings of all distances.
        feed_forward: matrices of the feed-forward network.
    """

    scored: int
    projects_positions: bool
    feed_forward: int


def forward_flops(
    config: TransformerConfig,
    products: LayerProducts,
    *,
    clusters: Clusters,
    batch_size: int,
    segment_len: int,
    mem_len: int,
    cluster_shares: Sequence[float],
) -> int:
    """Count the operations of reading one segment in every lane, the loss included."""
    heads = config.n_head * config.d_head
    tokens = batch_size * segment_len
    layer = (
        2 * tokens * config.d_model * 3 * heads  # queries, and the segment's keys and values
        + _memory_projection(config, batch_size=batch_size, mem_len=mem_len)
        + products.scored * tokens * heads * (2 * mem_len + segment_len + 1)  # over M + (T + 1) / 2 keys
        + 2 * tokens * heads * config.d_model  # output projection
        + 2 * tokens * config.d_model * config.d_inner * products.feed_forward
    )
    if products.projects_positions:
        layer += 2 * (mem_len + segment_len) * config.d_model * heads
    vocabulary = clusters.input_flops(tokens=tokens, shares=cluster_shares)
    vocabulary += clusters.output_flops(tokens=tokens, shares=cluster_shares)
    return config.n_layer * layer + vocabulary


def step_flops(
    config: TransformerConfig,
    products: LayerProducts,
    *,
    clusters: Clusters,
    batch_size: int,
    segment_len: int,
    mem_len: int,
    cluster_shares: Sequence[float],
) -> int:
    """Count the operations of a training step: forward, and backward without what would flow into memory."""
    forward = forward_flops(
        config,
        products,
        clusters=clusters,
        batch_size=batch_size,
        segment_len=segment_len,
        mem_len=mem_len,
        cluster_shares=cluster_shares,
    )
    return 3 * forward - config.n_layer * _memory_projection(config, batch_size=batch_size, mem_len=mem_len)


def recurrent_step_flops(
    config: RecurrentConfig,
    *,
    gates: int,
    clusters: Clusters,
    batch_size: int,
    segment_len: int,
    cluster_shares: Sequence[float],
) -> int:
    """Count the operations of a training step of a recurrent network.

    Args:
        config: of the network.
        gates: D x D matrices that a cell has for its input, and again for its state.
        clusters: of the vocabulary.
        batch_size: B.
        segment_len: T.
        cluster_shares: the share of each cluster among the tokens.
    """
    tokens = batch_size * segment_len
    matrix = 2 * config.d_model * config.d_model
    vocabulary = clusters.input_flops(tokens=tokens, shares=cluster_shares)
    vocabulary += clusters.output_flops(tokens=tokens, shares=cluster_shares)
    forward = config.n_layer * tokens * 2 * gates * matrix + vocabulary
    into_memory = config.n_layer * batch_size * gates * matrix  # the first token's state is memory
    return 3 * forward - into_memory


def _memory_projection(config: TransformerConfig, *, batch_size: int, mem_len: int) -> int:
    return 2 * batch_size * mem_len * config.d_model * 2 * config.n_head * config.d_head
