"""Attention for reading alone: what `blockwise_attention` gives where no gradient is asked for.

Letters: B lanes, T queries, S keys, N heads, H head width, R = S + 1 distances; of a block: n heads, b lanes, p pairs
of them, t queries, s keys, r = s + 1 distances.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_xl.model.kernels import onednn
from transformer_xl.model.mask import AttentionMask

QUERIES_ALONE, SCORES_ALONE = 96, 1 << 18
"""Of a block of one head and lane: from which on all cores are faster at it alone than each at a head of its own."""

SCORES_AT_ONCE = 1 << 21
"""Scores of a block of several heads or lanes: enough that products share the cores, few enough for their cache."""


def forward_attention(
    *,
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    position_RNH: Tensor,
    content_bias_NH: Tensor,
    position_bias_NH: Tensor,
    mask: AttentionMask,
) -> Tensor:
    """Attend without dropout; see `plain_attention`, whose arguments and result these are.

    Keys and values that lie in memory as (N, B, S, H), and positions as (N, R, H), are read fastest.
    """
    scale = query_BTNH.shape[-1] ** -0.5
    content_NBTH = ((query_BTNH + content_bias_NH) * scale).to(query_BTNH.dtype).permute(2, 0, 1, 3)
    position_NBTH = ((query_BTNH + position_bias_NH) * scale).to(query_BTNH.dtype).permute(2, 0, 1, 3)
    key_NBSH, value_NBSH = key_BSNH.permute(2, 0, 1, 3), value_BSNH.permute(2, 0, 1, 3)
    distance_NRH = position_RNH.transpose(0, 1)
    heads, lanes, queries, _ = content_NBTH.shape
    attended_NBTH = query_BTNH.new_empty(heads, lanes, queries, value_NBSH.shape[-1])
    for rows, keys, hidden in mask.blocks:
        # the first key's distance from the last query, to no distance at all
        distances = slice(queries - rows.stop + keys.start, queries - rows.stop + keys.stop + 1)
        scores = (rows.stop - rows.start) * (keys.stop - keys.start)
        is_large = rows.stop - rows.start >= QUERIES_ALONE and scores >= SCORES_ALONE
        alone = is_large and onednn.supports(content_NBTH, key_NBSH)
        at_once = 1 if alone else SCORES_AT_ONCE
        for some_heads, some_lanes in _parts(heads=heads, lanes=lanes, scores=scores, at_once=at_once):
            score_nbts = _scores(
                content_NBTH[some_heads, some_lanes, rows],
                position_NBTH[some_heads, some_lanes, rows],
                key_NBSH[some_heads, some_lanes, keys],
                distance_NRH[some_heads, distances],
                alone=alone,
            )
            for part, hidden_Bts in hidden:
                columns = slice(part.start - keys.start, part.stop - keys.start)
                score_nbts[..., columns].masked_fill_(hidden_Bts[some_lanes], -torch.inf)
            torch.softmax(score_nbts, dim=-1, out=score_nbts)
            value_nbsH = value_NBSH[some_heads, some_lanes, keys]
            if alone:
                attended_NBTH[some_heads, some_lanes, rows] = onednn.linear(score_nbts[0, 0], value_nbsH[0, 0].t())
            else:
                attended_NBTH[some_heads, some_lanes, rows] = torch.matmul(score_nbts, value_nbsH)
    return attended_NBTH.permute(1, 2, 0, 3)


def _parts(*, heads: int, lanes: int, scores: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """Cut the pairs of heads and lanes, each with so many scores: several heads of all lanes, or lanes of one head."""
    heads_at_once = max(1, min(heads, at_once // (scores * lanes)))
    lanes_at_once = lanes if heads_at_once > 1 else max(1, min(lanes, at_once // scores))
    for head in range(0, heads, heads_at_once):
        for lane in range(0, lanes, lanes_at_once):
            yield slice(head, min(head + heads_at_once, heads)), slice(lane, min(lane + lanes_at_once, lanes))


def _scores(
    content_nbtH: Tensor, position_nbtH: Tensor, key_nbsH: Tensor, distance_nrH: Tensor, *, alone: bool
) -> Tensor:
    """Give scores (n, b, t, s)."""
    heads, lanes, queries, _ = content_nbtH.shape
    keys = key_nbsH.shape[2]
    content_ptH, key_psH = content_nbtH.flatten(0, 1), key_nbsH.flatten(0, 1)
    position_nqH = position_nbtH.flatten(1, 2)
    by_distance_nqr = _products(position_nqH, distance_nrH, alone=alone)
    by_key_pts = by_distance_nqr.view(len(content_ptH), queries * (keys + 1))[:, queries - 1 : -1].view(
        -1, queries, keys
    )
    score_pts = _products(content_ptH, key_psH, alone=alone)
    return score_pts.add_(by_key_pts).view(heads, lanes, queries, keys)


def _products(query_pqH: Tensor, key_prH: Tensor, *, alone: bool) -> Tensor:
    """Give each pair's products (p, q, r); `alone`: of one pair, large ones."""
    if alone:
        return onednn.linear(query_pqH[0], key_prH[0])[None]
    if query_pqH.shape[1] > 1:
        return torch.bmm(query_pqH, key_prH.transpose(1, 2))
    if query_pqH.dtype != torch.float32:
        # the library of products in bfloat16 copies what is not dense, and slowly what is transposed besides
        return torch.bmm(query_pqH, key_prH.contiguous().transpose(1, 2))
    # a query alone is a vector: as the right factor it is read once, and keys and distances as they lie
    return torch.bmm(key_prH, query_pqH.transpose(1, 2)).transpose(1, 2)
