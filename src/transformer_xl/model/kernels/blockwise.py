"""The same attention a block at a time: what nobody sees is not computed, and scores are made again in backward.

Letters: B lanes, T queries, S keys, N heads, H head width, R = S + 1 distances; of a
block: n heads, b lanes, p pairs of them, t queries, s keys, r = s + 1 distances.

With a_ij = ((q_i + u)·k_j + (q_i + v)·p_{i-j}) / sqrt(H), p the projected sinusoids, w = softmax of a over the keys
that query i sees, m the mask of dropout over its probability to keep, and o_i = sum_j w_ij m_ij v_j, a gradient g of o
gives

    dv_j = sum_i w_ij m_ij g_i
    da_ij = w_ij (m_ij g_i·v_j - g_i·o_i)
    d(q_i + u) = sum_j da_ij k_j / sqrt(H)              dk_j = sum_i da_ij (q_i + u) / sqrt(H)
    d(q_i + v) = sum_j da_ij p_{i-j} / sqrt(H)          dp_d = sum_{i-j=d} da_ij (q_i + v) / sqrt(H)

Products by distance fill a block (t, s + 1) whose row i begins one distance later for each i. Read s at a time from its
element t - 1 on, the same memory is a block (t, s) by key, as in `relative_shift`. Forward adds what it reads there to
the products of contents; backward writes da there, and reads it by distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transformer_xl.model.attention import AttentionMask, Distances
from transformer_xl.model.kernels.linear import onednn_linear, supports

SCORES_AT_ONCE = 1 << 20
"""Scores of a block: few enough to stay in a processor's cache, many enough for large products."""

READING_SCORES_AT_ONCE = 1 << 21
"""The same where no gradient is asked for: products share the cores, and need no more room than their cache."""

QUERIES_ALONE, SCORES_ALONE = 96, 1 << 18
"""Of a block of one head and lane: from which on all cores are faster at it alone than each at a head of its own."""


def blockwise_attention(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    distances: Distances | None,
    *,
    mask: AttentionMask,
    dropout: float,
) -> Tensor:
    """Attend; see `plain_attention`, whose arguments and result these are.

    Keys and values that lie in memory as (N, B, S, H) are not copied, and positions as (N, R, H) are read fastest.
    """
    given = (query_BTNH, key_BSNH, value_BSNH, *(distances or ()))
    if dropout == 0 and not torch.is_grad_enabled():
        return _attend(_operands(*given), mask, dropout=0.0, reading=True)[0]
    attended_BTNH: Tensor = _Blockwise.apply(mask, dropout, *given)  # type: ignore[no-untyped-call]
    return attended_BTNH


class _Positions(NamedTuple):
    query_NBTH: Tensor  # (q + v) / sqrt(H)
    distance_NRH: Tensor  # p


class _Operands(NamedTuple):
    query_NBTH: Tensor  # (q + u) / sqrt(H)
    key_NBSH: Tensor
    value_NBSH: Tensor
    positions: _Positions | None  # None where scores know no distance


class _Block(NamedTuple):
    """Queries of some heads and lanes: of all lanes, or of one head, so that their pairs lie in one row."""

    heads: slice
    lanes: slice
    queries: slice
    keys: slice
    distances: slice
    hidden: tuple[tuple[slice, Tensor], ...]
    alone: bool  # large products of one pair, for which oneDNN takes all cores

    def of_queries(self, tensor_NBTH: Tensor) -> Tensor:  # (p, t, H)
        return tensor_NBTH[self.heads, self.lanes, self.queries].flatten(0, 1)

    def of_keys(self, tensor_NBSH: Tensor) -> Tensor:  # (p, s, H)
        return tensor_NBSH[self.heads, self.lanes, self.keys].flatten(0, 1)

    def of_distances(self, tensor_NRH: Tensor) -> Tensor:  # (n, r, H)
        return tensor_NRH[self.heads, self.distances]

    def by_head(self, tensor_NBTH: Tensor) -> Tensor:  # (n, b t, H)
        return tensor_NBTH[self.heads, self.lanes, self.queries].flatten(1, 2)

    def hide(self, score_pts: Tensor) -> None:
        score_nbts = score_pts.view(self.heads.stop - self.heads.start, -1, *score_pts.shape[1:])
        for part, hidden_bts in self.hidden:
            some = slice(part.start - self.keys.start, part.stop - self.keys.start)
            score_nbts[..., some].masked_fill_(hidden_bts, -torch.inf)


class _Scratch:
    """Memory that serves one block after another: getting new memory takes longer than the sums done in it."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._memory = like.new_empty(0)

    def __call__(self, *shape: int) -> Tensor:
        size = torch.Size(shape).numel()
        if len(self._memory) < size:
            self._memory = self._like.new_empty(size)
        return self._memory[:size].view(shape)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mask: AttentionMask, dropout: float, *given: Tensor) -> Tensor:
        with torch.autocast(given[0].device.type, enabled=False):
            attended_BTNH, kept = _attend(_operands(*given), mask, dropout=dropout, reading=False)
        ctx.save_for_backward(*given, attended_BTNH, *kept)
        ctx.mask, ctx.dropout, ctx.number_given = mask, dropout, len(given)
        return attended_BTNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTNH: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: where layers are recomputed, each reading would make them again
        given, (attended_BTNH, *kept) = saved[: ctx.number_given], saved[ctx.number_given :]
        operands = _operands(*given)
        with torch.autocast(grad_BTNH.device.type, enabled=False):
            gradients = _gradients(operands, ctx.mask, grad_BTNH, attended_BTNH, kept=kept, dropout=ctx.dropout)
        return (None, None, *gradients)


def _operands(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_RNH: Tensor | None = None,
    content_bias_NH: Tensor | None = None,
    position_bias_NH: Tensor | None = None,
) -> _Operands:
    query_NBTH = query_BTNH.permute(2, 0, 1, 3)
    scale = query_BTNH.shape[-1] ** -0.5

    def biased(bias_NH: Tensor | None) -> Tensor:
        sum_NBTH = query_NBTH if bias_NH is None else query_NBTH + bias_NH[:, None, None]
        scaled_NBTH: Tensor = (sum_NBTH * scale).to(query_BTNH.dtype).contiguous()
        return scaled_NBTH

    positions = None if position_RNH is None else _Positions(biased(position_bias_NH), position_RNH.transpose(0, 1))
    return _Operands(biased(content_bias_NH), _heads_first(key_BSNH), _heads_first(value_BSNH), positions)


def _heads_first(tensor_BSNH: Tensor) -> Tensor:
    """Return (N, B, S, H) with all pairs of a head and a lane in one row."""
    tensor_NBSH = tensor_BSNH.permute(2, 0, 1, 3)
    heads, lanes, _, width = tensor_NBSH.shape
    head_stride, lane_stride, row_stride, _ = tensor_NBSH.stride()
    in_a_row = heads == 1 or lanes == 1 or head_stride == lanes * lane_stride
    return tensor_NBSH if row_stride == width and in_a_row else tensor_NBSH.contiguous()


def _attend(operands: _Operands, mask: AttentionMask, *, dropout: float, reading: bool) -> tuple[Tensor, list[Tensor]]:
    """Return what queries attend to, and for each block which weights dropout kept."""
    heads, lanes, queries, _ = operands.query_NBTH.shape
    attended_NBTH = operands.value_NBSH.new_empty(heads, lanes, queries, operands.value_NBSH.shape[-1])
    weights, distances = _Scratch(attended_NBTH), _Scratch(attended_NBTH)
    kept: list[Tensor] = []
    for block in _blocks(operands, mask, reading=reading):
        weight_pts = _weights(operands, block, weights, distances)
        if dropout > 0:
            kept.append(torch.empty_like(weight_pts, dtype=torch.bool).bernoulli_(1 - dropout))
            weight_pts.mul_(kept[-1])
        value_psH = block.of_keys(operands.value_NBSH)
        if block.alone:
            attended_ptH = onednn_linear(weight_pts[0], value_psH[0].t())[None]
        else:
            attended_ptH = torch.bmm(weight_pts, value_psH)
        block.of_queries(attended_NBTH).copy_(attended_ptH)
    if dropout > 0:
        attended_NBTH.div_(1 - dropout)
    return attended_NBTH.permute(1, 2, 0, 3), kept


def _gradients(
    operands: _Operands,
    mask: AttentionMask,
    grad_BTNH: Tensor,
    attended_BTNH: Tensor,
    *,
    kept: Sequence[Tensor],
    dropout: float,
) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys and values; where scores know distances, of positions, u and v too."""
    positions = operands.positions
    to_query, to_key, to_value = (part.new_zeros(part.shape) for part in operands[:3])
    to_positions = positions and _Positions(*(part.new_zeros(part.shape) for part in positions))
    grad_NBTH = grad_BTNH.permute(2, 0, 1, 3).contiguous()
    mean_NBT1 = (grad_NBTH * attended_BTNH.permute(2, 0, 1, 3)).sum(dim=-1, keepdim=True)
    if dropout > 0:
        grad_NBTH = grad_NBTH / (1 - dropout)
    weights, distances, scores, dropped = (_Scratch(grad_NBTH) for _ in range(4))
    for number, block in enumerate(_blocks(operands, mask, reading=False)):
        weight_pts = _weights(operands, block, weights, distances)
        grad_ptH = block.of_queries(grad_NBTH)
        score_pts = scores(*weight_pts.shape)
        torch.bmm(grad_ptH, block.of_keys(operands.value_NBSH).transpose(1, 2), out=score_pts)
        dropped_pts = weight_pts
        if dropout > 0:
            score_pts.mul_(kept[number])
            dropped_pts = torch.mul(weight_pts, kept[number], out=dropped(*weight_pts.shape))
        block.of_keys(to_value).add_(torch.bmm(dropped_pts.transpose(1, 2), grad_ptH))
        score_pts.sub_(block.of_queries(mean_NBT1)).mul_(weight_pts)
        block.of_queries(to_query).copy_(torch.bmm(score_pts, block.of_keys(operands.key_NBSH)))
        block.of_keys(to_key).add_(torch.bmm(score_pts.transpose(1, 2), block.of_queries(operands.query_NBTH)))
        if positions is not None and to_positions is not None:
            score_nqr = _by_distance(score_pts, block, distances)
            position_nqH = torch.bmm(score_nqr, block.of_distances(positions.distance_NRH))
            block.of_queries(to_positions.query_NBTH).copy_(position_nqH.view(len(score_pts), -1, to_query.shape[-1]))
            block.of_distances(to_positions.distance_NRH).add_(
                torch.bmm(score_nqr.transpose(1, 2), block.by_head(positions.query_NBTH))
            )
    scale = to_query.shape[-1] ** -0.5
    to_key_BSNH, to_value_BSNH = to_key.permute(1, 2, 0, 3), to_value.permute(1, 2, 0, 3)
    if to_positions is None:
        return to_query.mul_(scale).permute(1, 2, 0, 3), to_key_BSNH, to_value_BSNH
    return (
        (to_query + to_positions.query_NBTH).mul_(scale).permute(1, 2, 0, 3),
        to_key_BSNH,
        to_value_BSNH,
        to_positions.distance_NRH.transpose(0, 1),
        to_query.sum(dim=(1, 2)) * scale,
        to_positions.query_NBTH.sum(dim=(1, 2)) * scale,
    )


def _blocks(operands: _Operands, mask: AttentionMask, *, reading: bool) -> Iterator[_Block]:
    """Cut queries into blocks of not too many scores; `reading`: without gradients."""
    heads, lanes, queries, _ = operands.query_NBTH.shape
    can_be_alone = reading and supports(operands.query_NBTH, operands.key_NBSH)
    for rows, keys, hidden in mask.blocks:
        scores = (rows.stop - rows.start) * (keys.stop - keys.start)
        alone = can_be_alone and rows.stop - rows.start >= QUERIES_ALONE and scores >= SCORES_ALONE
        most = 1 if alone else READING_SCORES_AT_ONCE if reading else SCORES_AT_ONCE
        heads_at_once = max(1, min(heads, most // (scores * lanes)))
        lanes_at_once = lanes if heads_at_once > 1 else max(1, min(lanes, most // scores))
        # the first key's distance from the last query, to no distance at all
        distances = slice(queries - rows.stop + keys.start, queries - rows.stop + keys.stop + 1)
        for head in range(0, heads, heads_at_once):
            some_heads = slice(head, min(head + heads_at_once, heads))
            for lane in range(0, lanes, lanes_at_once):
                some_lanes = slice(lane, min(lane + lanes_at_once, lanes))
                hidden_here = tuple((part, hidden_Bts[some_lanes]) for part, hidden_Bts in hidden)
                yield _Block(some_heads, some_lanes, rows, keys, distances, hidden_here, alone)


def _weights(operands: _Operands, block: _Block, weights: _Scratch, distances: _Scratch) -> Tensor:
    """Return a block's attention weights (p, t, s) before dropout."""
    query_ptH, key_psH = block.of_queries(operands.query_NBTH), block.of_keys(operands.key_NBSH)
    score_pts = _products(query_ptH, key_psH, weights, alone=block.alone)
    if operands.positions is not None:
        position_nqH = block.by_head(operands.positions.query_NBTH)
        distance_nrH = block.of_distances(operands.positions.distance_NRH)
        by_distance_nqr = _products(position_nqH, distance_nrH, distances, alone=block.alone)
        score_pts.add_(_read_by_key(by_distance_nqr.view(len(score_pts), -1), queries=score_pts.shape[1]))
    block.hide(score_pts)
    return torch.softmax(score_pts, dim=-1, out=score_pts)


def _products(left_pqH: Tensor, right_prH: Tensor, scratch: _Scratch, *, alone: bool) -> Tensor:
    """Return each pair's products (p, q, r); `alone`: of one pair, large ones."""
    if alone:
        return onednn_linear(left_pqH[0], right_prH[0])[None]
    pairs, queries, keys = len(left_pqH), left_pqH.shape[1], right_prH.shape[1]
    if queries > 1:
        return torch.bmm(left_pqH, right_prH.transpose(1, 2), out=scratch(pairs, queries, keys))
    if left_pqH.dtype != torch.float32:
        # the library of products in bfloat16 copies what is not dense, and slowly what is transposed besides
        return torch.bmm(left_pqH, right_prH.contiguous().transpose(1, 2), out=scratch(pairs, 1, keys))
    # a query alone is a vector: as the right factor it is read once, and keys and distances as they lie
    return torch.bmm(right_prH, left_pqH.transpose(1, 2), out=scratch(pairs, keys, 1)).transpose(1, 2)


def _by_distance(score_pts: Tensor, block: _Block, distances: _Scratch) -> Tensor:
    """Return gradients of scores by distance (n, b t, r), 0 where a distance has no key."""
    pairs, queries, keys = score_pts.shape
    by_distance_pa = distances(pairs, queries * (keys + 1))
    by_distance_pa[:, : queries - 1] = 0
    by_distance_pa[:, -1] = 0
    _read_by_key(by_distance_pa, queries=queries).copy_(score_pts)
    return by_distance_pa.view(block.heads.stop - block.heads.start, -1, keys + 1)


def _read_by_key(by_distance_pa: Tensor, *, queries: int) -> Tensor:
    """Read rows of s + 1 distances as rows of s keys (p, t, s), a view; see `relative_shift`."""
    return by_distance_pa[:, queries - 1 : -1].view(len(by_distance_pa), queries, -1)
