"""Attention by kernels of its own, in Triton: nothing of the size queries x keys is kept for backward.

One product outside of the kernels makes the scores by distance, (q + v)·r, (N, B, T, C). The kernels read them skewed,
key j of query i in column T-1-i+j, so that the shift costs nothing (see `relative_shift`), and go through blocks of
keys with a running maximum and sum of the softmax (FlashAttention, Dao et al., 2022). Backward makes both again; each
place of the gradient by distance is written once, and nothing depends on the order in which blocks are done.

Which weights dropout keeps is decided by a generator that counts (Philox 4x32-10, Salmon et al., 2011): key j of query
i of pair p = b N + n has word j mod 4 of what the generator, with the seed as its key, makes of (j div 4, i, p, 0), and
is kept where half of that word, rounded down, is at least dropout * 2^31. So backward sees the mask that forward saw.

Letters: B lanes, T queries, S keys, N heads, H head width, R distances, C = R rounded up; in kernels t and s are a
block's queries and keys, and Z = H rounded up to a power of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from transformer_xl.errors import UserError
from transformer_xl.model.attention import AttentionMask, Distances

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

INTERPRETED = triton is not None and triton.knobs.runtime.interpret
"""Whether Triton's interpreter runs the kernels, on CPU tensors: TRITON_INTERPRET=1 was set before the import."""


def missing(device: str) -> str | None:
    """Return what the kernels lack on a type of device; None: nothing."""
    if triton is None:
        return "Triton, which pip install triton brings"
    return None if device == "cuda" or INTERPRETED else f"a CUDA device, and this one is {device}"


def fused_attention(
    query_BTNH: Tensor,
    key_BSNH: Tensor,
    value_BSNH: Tensor,
    distances: Distances | None,
    *,
    mask: AttentionMask,
    dropout: float,
) -> Tensor:
    """Attend; see `plain_attention`, whose arguments and result these are.

    Raises:
        UserError: Triton or a CUDA device is missing.
        ValueError: numbers of a type, or heads of a width, that there are no kernels for; a mask that may have gaps.
    """
    if lacks := missing(query_BTNH.device.type):
        raise UserError(f"attention is 'fused', and needs {lacks}: use 'auto'")
    dtype, width = key_BSNH.dtype, max(key_BSNH.shape[-1], value_BSNH.shape[-1])
    if width > 256 or dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"attention is 'fused', for at most 256 numbers a head of 32 or 16 bits, not {width} of {dtype}"
        )
    if mask.seen_BT2 is None:
        raise ValueError("attention is 'fused', for queries that see neighbouring keys, and this mask may have gaps")
    given = [query_BTNH.to(dtype), key_BSNH, value_BSNH.to(dtype)]
    if distances is not None:
        given += [distances.position_RNH.to(dtype), distances.content_bias_NH, distances.position_bias_NH]
    # rows of a width like 41 would be loaded a number at a time; zeros add nothing to a product
    given = [functional.pad(x, (0, -x.shape[-1] % 16)) if x.shape[-1] % 16 else x for x in given]
    # of torch's own generator, which a seed and a recomputation set
    seed = torch.randint(1 << 62, (1,), device=query_BTNH.device) if dropout > 0 else None
    with torch.autocast(query_BTNH.device.type, enabled=False):
        attended_BTNH: Tensor = _attend(given, mask.seen_BT2, seed, dropout, query_BTNH.shape[-1] ** -0.5)[0]
    return attended_BTNH[..., : value_BSNH.shape[-1]]


# ---- the operators that autograd and torch.compile see
# `given`: queries, keys and values; where scores know distances, positions, u and v too


@torch.library.custom_op("transformer_xl::fused_attention", mutates_args=())
def _attend(
    given: list[Tensor], seen_BT2: Tensor, seed: Tensor | None, dropout: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Return what queries attend to (B, T, N, H), and the logarithm of the sum of each softmax (B, N, T)."""
    call = _Call(given, seen_BT2, seed, dropout, scale)
    attended_BTNH, sum_BNT = _attend_empty(given)
    call.launch(_forward, OUT=attended_BTNH, SUM=sum_BNT)
    return attended_BTNH, sum_BNT


@_attend.register_fake
def _attend_empty(given: list[Tensor], *others: Any) -> tuple[Tensor, Tensor]:
    query_BTNH, value_BSNH = given[0], given[2]
    lanes, queries, heads, _ = query_BTNH.shape
    attended_BTNH = query_BTNH.new_empty(lanes, queries, heads, value_BSNH.shape[-1])
    return attended_BTNH, query_BTNH.new_empty(lanes, heads, queries, dtype=torch.float32)


@torch.library.custom_op("transformer_xl::fused_attention_backward", mutates_args=())
def _gradients(
    grad_BTNH: Tensor,
    attended_BTNH: Tensor,
    sum_BNT: Tensor,
    given: list[Tensor],
    seen_BT2: Tensor,
    seed: Tensor | None,
    dropout: float,
    scale: float,
) -> list[Tensor]:
    """Return the gradients of what was given."""
    call = _Call(given, seen_BT2, seed, dropout, scale)
    call.arguments |= {"GRAD": grad_BTNH.contiguous(), "SUM": sum_BNT, "MEAN": torch.empty_like(sum_BNT)}
    gradients = [tensor.new_empty(tensor.shape) for tensor in given]
    to_query_BTNH, to_key_BSNH, to_value_BSNH, *_ = gradients
    to_score_NBTC = torch.zeros_like(call.arguments["BIAS"]) if call.relative else to_query_BTNH
    call.launch(_to_queries, OUT=attended_BTNH, TO_QUERY=to_query_BTNH, TO_BIAS=to_score_NBTC)
    call.launch(_to_keys, TO_KEY=to_key_BSNH, TO_VALUE=to_value_BSNH)
    if call.relative:
        _, _, _, to_position_RNH, to_content_bias_NH, to_position_bias_NH = gradients
        to_biased_BTNH = torch.einsum("nbtc,cnh->btnh", to_score_NBTC, call.padded_CNH)
        to_padded_CNH = torch.einsum("nbtc,btnh->cnh", to_score_NBTC, call.biased_BTNH)
        to_position_RNH.copy_(to_padded_CNH[: len(to_position_RNH)])
        to_content_bias_NH.copy_(to_query_BTNH.sum(dim=(0, 1), dtype=torch.float32))
        to_position_bias_NH.copy_(to_biased_BTNH.sum(dim=(0, 1), dtype=torch.float32))
        to_query_BTNH.add_(to_biased_BTNH)
    return gradients


_gradients.register_fake(lambda *inputs: [tensor.new_empty(tensor.shape) for tensor in inputs[3]])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    given, seen_BT2, seed, *ctx.numbers = inputs
    ctx.save_for_backward(*output, seen_BT2, seed, *given)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad_BTNH: Tensor, _: Tensor) -> tuple[Any, ...]:
    attended_BTNH, sum_BNT, seen_BT2, seed, *given = ctx.saved_tensors
    with torch.autocast(grad_BTNH.device.type, enabled=False):
        gradients = _gradients(grad_BTNH, attended_BTNH, sum_BNT, given, seen_BT2, seed, *ctx.numbers)
    return gradients, None, None, None, None


_attend.register_autograd(_backward, setup_context=_keep)


# ---- how kernels are called


class Blocks(NamedTuple):
    """Queries and keys of a block, warps of a program, and how many blocks ahead its loop loads."""

    queries: int
    keys: int
    warps: int
    stages: int


_BLOCKS = {  # kernel: of heads of up to 64, 128 and 256 numbers of 16 bits, and the same of 32 bits
    "_forward": ((128, 64, 8, 2), (64, 64, 8, 2), (32, 32, 4, 1), (64, 32, 8, 1), (32, 32, 8, 1), (16, 16, 4, 1)),
    "_to_queries": ((32, 64, 4, 2), (32, 32, 4, 2), (16, 32, 4, 1), (16, 16, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)),
    "_to_keys": ((64, 32, 4, 2), (32, 32, 4, 2), (16, 32, 8, 1), (16, 32, 8, 1), (16, 16, 8, 1), (16, 16, 8, 1)),
}


def blocks_of(kernel: str, *, bits: int, width: int) -> Blocks:
    """Return how a kernel goes through heads of so many numbers: see `tests.model.compiled_ahead`."""
    return Blocks(*_BLOCKS[kernel][(width > 64) + (width > 128) + 3 * (bits == 32)])


class _Call:
    """An attention: what its kernels are given, by the names of their arguments."""

    def __init__(
        self, given: list[Tensor], seen_BT2: Tensor, seed: Tensor | None, dropout: float, scale: float
    ) -> None:
        query_BTNH, key_BSNH, value_BSNH, *distances = (x if x.stride(-1) == 1 else x.contiguous() for x in given)
        lanes, queries, heads, width = query_BTNH.shape
        query_BTNH, value_width = query_BTNH.contiguous(), value_BSNH.shape[-1]
        self.relative = bool(distances)
        bias_NBTC = content_bias_NH = query_BTNH  # which is not read
        if distances:
            position_RNH, content_bias_NH, position_bias_NH = distances
            self.biased_BTNH = (query_BTNH + position_bias_NH).to(query_BTNH.dtype)
            # rows that begin at multiples of eight can be written and read by fast products
            self.padded_CNH = functional.pad(position_RNH, (0, 0, 0, 0, 0, -len(position_RNH) % 8))
            bias_NBTC = torch.einsum("btnh,cnh->nbtc", self.biased_BTNH, self.padded_CNH).contiguous()
        precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
        self.arguments: dict[str, Any] = {
            **{"QUERY": query_BTNH, "KEY": key_BSNH, "VALUE": value_BSNH, "SEEN": seen_BT2, "BIAS": bias_NBTC},
            **{"U": content_bias_NH.contiguous(), "SEED": seen_BT2 if seed is None else seed},
            **dict(zip(("k_lane", "k_row", "k_head"), key_BSNH.stride(), strict=False)),
            **dict(zip(("v_lane", "v_row", "v_head"), value_BSNH.stride(), strict=False)),
            **{"lanes": lanes, "heads": heads, "queries": queries, "keys": key_BSNH.shape[1]},
            **{"columns": bias_NBTC.shape[-1], "scale": scale, "WIDTH": width, "VALUE_WIDTH": value_width},
            **{"Z": max(16, 1 << (max(width, value_width) - 1).bit_length()), "RELATIVE": self.relative},
            **{"DROPS": seed is not None, "threshold": round(dropout * (1 << 31)), "grow": 1 / (1 - dropout)},
            "PRECISION": precision if query_BTNH.is_cuda else "interpreted",
        }

    def launch(self, kernel: Any, **more: Tensor) -> None:
        given = self.arguments | more
        blocks = blocks_of(kernel.__name__, bits=8 * given["QUERY"].element_size(), width=given["Z"])
        given |= {"BT": blocks.queries, "BS": blocks.keys}
        rows, at_once = (given["keys"], blocks.keys) if kernel is _to_keys else (given["queries"], blocks.queries)
        grid = (given["lanes"] * given["heads"], triton.cdiv(rows, at_once))
        named = {name: given[name] for name in kernel.arg_names}
        with torch.cuda.device_of(given["QUERY"]):
            kernel[grid](**named, num_warps=blocks.warps, num_stages=blocks.stages)


# ---- the kernels: a program for each pair of a lane and a head, and each block of queries or of keys


def _jit(function: Any) -> Any:
    # code is made anew for sizes that are 1 or a multiple of 16, but not for these, which change all the time
    return function if triton is None else triton.jit(function, do_not_specialize=["queries", "columns"])


@_jit
def _load(POINTER, row, stride, there, WIDTH: tl.constexpr, Z: tl.constexpr):
    """Load rows of a head; zeros where there is nothing."""
    h = tl.arange(0, Z)
    return tl.load(POINTER + row[:, None] * stride + h[None, :], mask=there[:, None] & (h < WIDTH)[None, :], other=0.0)


@_jit
def _store(POINTER, value, row, stride, there, WIDTH: tl.constexpr, Z: tl.constexpr):
    h = tl.arange(0, Z)
    place = POINTER + row[:, None] * stride + h[None, :]
    tl.store(place, value.to(POINTER.dtype.element_ty), mask=there[:, None] & (h < WIDTH)[None, :])


@_jit
def _load_queries(QUERY, U, t, queries, stride, WIDTH: tl.constexpr, Z: tl.constexpr, RELATIVE: tl.constexpr):
    """Load queries, u added to them."""
    query = _load(QUERY, t, stride, t < queries, WIDTH, Z)
    if RELATIVE:
        h = tl.arange(0, Z)
        u = tl.load(U + h, mask=h < WIDTH, other=0.0).to(tl.float32)
        query = (query.to(tl.float32) + u[None, :]).to(query.dtype)
    return query


@_jit
def _load_seen(SEEN, t, queries):
    """Load the first key of each query, and the one after its last; none where there is no query."""
    first = tl.load(SEEN + 2 * t, mask=t < queries, other=1 << 30)
    return first, tl.load(SEEN + 2 * t + 1, mask=t < queries, other=0)


@_jit
def _dot(left, right, PRECISION: tl.constexpr):
    if PRECISION == "interpreted":  # which multiplies the bits of bfloat16
        product = tl.dot(left.to(tl.float32), right.to(tl.float32))
    else:
        product = tl.dot(left, right, input_precision=PRECISION)
    return product


@_jit
def _scores(
    left, right, BIAS, t, s, first, until, queries, columns, scale,
    RELATIVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return scores, minus infinity where they are hidden; which are not; where they stand among those by distance.

    Queries and what is said of them are rows, keys columns; or the other way round.
    """
    seen = (s >= first) & (s < until)
    place = t * (columns - 1) + (queries - 1) + s
    score = _dot(left, tl.trans(right), PRECISION)
    if RELATIVE:
        score += tl.load(BIAS + place, mask=seen, other=0.0).to(tl.float32)
    return tl.where(seen, score * scale, -float("inf")), seen, place


@_jit
def _kept(SEED, pair, t, s0, threshold, BT: tl.constexpr, BS: tl.constexpr):
    """Return which weights of a block are kept; s0, its first key, is a multiple of four."""
    zero = tl.zeros((BT, BS // 4), tl.int32)
    group = s0 // 4 + tl.arange(0, BS // 4)
    w0, w1, w2, w3 = tl.philox(tl.load(SEED), zero + group[None, :], zero + t[:, None], zero + pair, zero)
    k0, k1, k2, k3 = _passes(w0, threshold), _passes(w1, threshold), _passes(w2, threshold), _passes(w3, threshold)
    return tl.reshape(tl.join(tl.join(k0, k2), tl.join(k1, k3)), (BT, BS))


@_jit
def _passes(word, threshold):
    return (word >> 1).to(tl.int32) >= threshold


@_jit
def _forward(
    QUERY, KEY, VALUE, BIAS, U, SEEN, SEED, OUT, SUM,
    k_lane, k_row, k_head, v_lane, v_row, v_head,
    lanes, heads, queries, columns, scale, threshold, grow,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, Z: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    RELATIVE: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend from a block of queries to all keys that any of them sees."""
    pair, t = tl.program_id(0), tl.program_id(1) * BT + tl.arange(0, BT)
    lane, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    KEY += lane * k_lane + head * k_head
    VALUE += lane * v_lane + head * v_head
    BIAS += (head * lanes + lane) * queries * columns
    row0 = lane * queries * heads + head
    query = _load_queries(QUERY + row0 * WIDTH, U + head * WIDTH, t, queries, heads * WIDTH, WIDTH, Z, RELATIVE)
    first, until = _load_seen(SEEN + lane * queries * 2, t, queries)
    end = tl.max(until)
    top, total = tl.full((BT,), -float("inf"), tl.float32), tl.zeros((BT,), tl.float32)
    out = tl.zeros((BT, Z), tl.float32)
    for s0 in range(tl.min(first) // BS * BS, end, BS):
        s = s0 + tl.arange(0, BS)
        key = _load(KEY, s, k_row, s < end, WIDTH, Z)
        score, _, _ = _scores(
            query, key, BIAS, t[:, None], s[None, :], first[:, None], until[:, None], queries, columns, scale,
            RELATIVE, PRECISION,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(score, axis=1))
        finite = tl.where(higher == -float("inf"), 0.0, higher)
        weight, shrink = tl.exp(score - finite[:, None]), tl.exp(top - finite)
        total = total * shrink + tl.sum(weight, axis=1)
        if DROPS:
            weight = tl.where(_kept(SEED, pair, t, s0, threshold, BT, BS), weight, 0.0)
        value = _load(VALUE, s, v_row, s < end, VALUE_WIDTH, Z)
        out = out * shrink[:, None] + _dot(weight.to(value.dtype), value, PRECISION)
        top = higher
    seen = total > 0  # not so where there is no query
    total = tl.where(seen, total, 1.0)
    _store(OUT + row0 * VALUE_WIDTH, out * (grow / total)[:, None], t, heads * VALUE_WIDTH, t < queries, VALUE_WIDTH, Z)
    tl.store(SUM + pair * queries + t, tl.where(seen, top, 0.0) + tl.log(total), mask=t < queries)


@_jit
def _to_queries(
    QUERY, KEY, VALUE, BIAS, U, SEEN, SEED, OUT, SUM,
    GRAD, MEAN, TO_QUERY, TO_BIAS,
    k_lane, k_row, k_head, v_lane, v_row, v_head,
    lanes, heads, queries, columns, scale, threshold, grow,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, Z: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    RELATIVE: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Make the gradients of a block of queries with u, and of their scores by distance."""
    pair, t = tl.program_id(0), tl.program_id(1) * BT + tl.arange(0, BT)
    lane, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    KEY += lane * k_lane + head * k_head
    VALUE += lane * v_lane + head * v_head
    BIAS += (head * lanes + lane) * queries * columns
    TO_BIAS += (head * lanes + lane) * queries * columns
    row0, there = lane * queries * heads + head, t < queries
    query = _load_queries(QUERY + row0 * WIDTH, U + head * WIDTH, t, queries, heads * WIDTH, WIDTH, Z, RELATIVE)
    first, until = _load_seen(SEEN + lane * queries * 2, t, queries)
    end = tl.max(until)
    grad = _load(GRAD + row0 * VALUE_WIDTH, t, heads * VALUE_WIDTH, there, VALUE_WIDTH, Z)
    out = _load(OUT + row0 * VALUE_WIDTH, t, heads * VALUE_WIDTH, there, VALUE_WIDTH, Z)
    mean = tl.sum(grad.to(tl.float32) * out.to(tl.float32), axis=1)
    tl.store(MEAN + pair * queries + t, mean, mask=there)
    total = tl.load(SUM + pair * queries + t, mask=there, other=0.0)
    to_query = tl.zeros((BT, Z), tl.float32)
    for s0 in range(tl.min(first) // BS * BS, end, BS):
        s = s0 + tl.arange(0, BS)
        key = _load(KEY, s, k_row, s < end, WIDTH, Z)
        score, seen, place = _scores(
            query, key, BIAS, t[:, None], s[None, :], first[:, None], until[:, None], queries, columns, scale,
            RELATIVE, PRECISION,
        )  # fmt: skip
        value = _load(VALUE, s, v_row, s < end, VALUE_WIDTH, Z)
        to_weight = _dot(grad, tl.trans(value), PRECISION)
        if DROPS:
            to_weight = tl.where(_kept(SEED, pair, t, s0, threshold, BT, BS), to_weight * grow, 0.0)
        to_score = tl.exp(score - total[:, None]) * (to_weight - mean[:, None]) * scale
        if RELATIVE:
            tl.store(TO_BIAS + place, to_score.to(TO_BIAS.dtype.element_ty), mask=seen)
        to_query += _dot(to_score.to(key.dtype), key, PRECISION)
    _store(TO_QUERY + row0 * WIDTH, to_query, t, heads * WIDTH, there, WIDTH, Z)


@_jit
def _to_keys(
    QUERY, KEY, VALUE, BIAS, U, SEEN, SEED, SUM,
    GRAD, MEAN, TO_KEY, TO_VALUE,
    k_lane, k_row, k_head, v_lane, v_row, v_head,
    lanes, heads, queries, keys, columns, scale, threshold, grow,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, Z: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    RELATIVE: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Make the gradients of a block of keys and values."""
    pair, s0 = tl.program_id(0), tl.program_id(1) * BS
    lane, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    KEY += lane * k_lane + head * k_head
    VALUE += lane * v_lane + head * v_head
    BIAS += (head * lanes + lane) * queries * columns
    SEEN += lane * queries * 2
    row0, s = lane * queries * heads + head, s0 + tl.arange(0, BS)
    key, value = _load(KEY, s, k_row, s < keys, WIDTH, Z), _load(VALUE, s, v_row, s < keys, VALUE_WIDTH, Z)
    start, end = queries, 0  # of the queries that see any of these keys
    for t0 in range(0, queries, BT):
        t = t0 + tl.arange(0, BT)
        first, until = _load_seen(SEEN, t, queries)
        sees = (first < s0 + BS) & (until > s0)
        start = tl.minimum(start, tl.min(tl.where(sees, t, queries)))
        end = tl.maximum(end, tl.max(tl.where(sees, t + 1, 0)))
    to_key, to_value = tl.zeros((BS, Z), tl.float32), tl.zeros((BS, Z), tl.float32)
    for t0 in range(start, end, BT):
        t = t0 + tl.arange(0, BT)
        there = t < queries
        query = _load_queries(QUERY + row0 * WIDTH, U + head * WIDTH, t, queries, heads * WIDTH, WIDTH, Z, RELATIVE)
        first, until = _load_seen(SEEN, t, queries)
        score, _, _ = _scores(
            key, query, BIAS, t[None, :], s[:, None], first[None, :], until[None, :], queries, columns, scale,
            RELATIVE, PRECISION,
        )  # fmt: skip
        weight = tl.exp(score - tl.load(SUM + pair * queries + t, mask=there, other=0.0)[None, :])
        grad = _load(GRAD + row0 * VALUE_WIDTH, t, heads * VALUE_WIDTH, there, VALUE_WIDTH, Z)
        to_weight = _dot(value, tl.trans(grad), PRECISION)
        kept = weight
        if DROPS:
            keeps = tl.trans(_kept(SEED, pair, t, s0, threshold, BT, BS))
            kept = tl.where(keeps, weight * grow, 0.0)
            to_weight = tl.where(keeps, to_weight * grow, 0.0)
        to_value += _dot(kept.to(grad.dtype), grad, PRECISION)
        mean = tl.load(MEAN + pair * queries + t, mask=there, other=0.0)
        to_score = weight * (to_weight - mean[None, :]) * scale
        to_key += _dot(to_score.to(query.dtype), query, PRECISION)
    row0 = lane * keys * heads + head
    _store(TO_KEY + row0 * WIDTH, to_key, s, heads * WIDTH, s < keys, WIDTH, Z)
    _store(TO_VALUE + row0 * VALUE_WIDTH, to_value, s, heads * VALUE_WIDTH, s < keys, VALUE_WIDTH, Z)
