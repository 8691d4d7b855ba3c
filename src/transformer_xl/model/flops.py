"""Useful operations of a training step: matrix products only, a multiplication and an addition each.

A query's keys are counted as M + (T + 1) / 2, what causality leaves; memory's keys and values are projected once, the
sinusoids' once a step. Backward costs twice forward, less what would flow into memory. Recomputation does not count.
"""

from __future__ import annotations

from transformer_xl.config import ModelConfig


def forward_flops(config: ModelConfig, *, vocab_size: int, batch_size: int, segment_len: int, mem_len: int) -> int:
    """Count the operations of reading one segment in every lane, the loss included."""
    heads = config.n_head * config.d_head
    tokens = batch_size * segment_len
    layer = (
        2 * tokens * config.d_model * heads  # queries
        + 2 * tokens * config.d_model * 2 * heads  # the segment's keys and values
        + _memory_projection(config, batch_size=batch_size, mem_len=mem_len)
        + 2 * (mem_len + segment_len) * config.d_model * heads  # projected sinusoids
        + 3 * tokens * heads * (2 * mem_len + segment_len + 1)  # q·k, q·r, p·v over M + (T + 1) / 2 keys
        + 2 * tokens * heads * config.d_model  # output projection
        + 4 * tokens * config.d_model * config.d_inner  # feed-forward
    )
    return config.n_layer * layer + 2 * tokens * config.d_model * vocab_size


def step_flops(config: ModelConfig, *, vocab_size: int, batch_size: int, segment_len: int, mem_len: int) -> int:
    """Count the operations of a training step: forward, and backward without what would flow into memory."""
    forward = forward_flops(
        config, vocab_size=vocab_size, batch_size=batch_size, segment_len=segment_len, mem_len=mem_len
    )
    return 3 * forward - config.n_layer * _memory_projection(config, batch_size=batch_size, mem_len=mem_len)


def _memory_projection(config: ModelConfig, *, batch_size: int, mem_len: int) -> int:
    return 2 * batch_size * mem_len * config.d_model * 2 * config.n_head * config.d_head
