"""The fused kernels in Triton's interpreter against the plain equation, and compiled for GPUs that are not there.

Where there is no GPU, tests/conftest.py sets TRITON_INTERPRET=1, so that the kernels run on CPU tensors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tests.model.kinds import model_of
from tests.model.test_compiled import B, Counting, T, losses
from tests.model.test_recompute import two_segments
from tests.model.tiny import random_tokens
from transformer_xl.commands.compose import compose
from transformer_xl.errors import UserError
from transformer_xl.interop.load import load_model
from transformer_xl.interop.native import save_model
from transformer_xl.model.attention import (
    AttentionMask,
    Distances,
    attention_mask,
    attention_scores,
    attention_weights,
)
from transformer_xl.model.compiled import compiled_losses
from transformer_xl.model.kernels import fused, relative_attention
from transformer_xl.model.positions import descending_distances
from transformer_xl.model.streaming import stream
from transformer_xl.run_length import with_precision

pytestmark = pytest.mark.skipif(not fused.INTERPRETED, reason="needs Triton, and its interpreter")

SPILLED = {("bf16", 32): 56, ("bf16", 256): 24, ("fp32", 64): 8, ("fp32", 128): 8, ("fp32", 256): 328}
"""Bytes that kernels for heads of these types and widths spill at most; others none."""
SEED = 0x1234_5678_9ABC_DEF0 >> 2
Inputs = dict[str, Tensor]


def philox(counter: np.ndarray, seed: int) -> np.ndarray:
    """Philox 4x32-10 as it is published: counters (4, ...) to words (4, ...)."""
    c0, c1, c2, c3 = counter.astype(np.uint64) & 0xFFFFFFFF
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (right >> np.uint64(32)) ^ c1 ^ np.uint64(key0), right & np.uint64(0xFFFFFFFF)
        c2, c3 = (left >> np.uint64(32)) ^ c3 ^ np.uint64(key1), left & np.uint64(0xFFFFFFFF)
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def test_the_generator_is_the_published_one() -> None:
    """Known answers of Salmon et al.'s Random123."""
    zero = np.zeros((4, 1), np.uint64)
    assert [hex(int(word)) for (word,) in philox(zero, 0)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    pi = np.array([[0x243F6A88], [0x85A308D3], [0x13198A2E], [0x03707344]], np.uint64)
    words = [hex(int(word)) for (word,) in philox(pi, 0x299F31D0_A4093822)]
    assert words == ["0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"]


def kept_weights(*, lanes: int, heads: int, queries: int, keys: int, dropout: float) -> Tensor:
    """Which weights are kept, (B, N, T, S)."""
    pair, query, key = np.meshgrid(np.arange(lanes * heads), np.arange(queries), np.arange(keys), indexing="ij")
    words = philox(np.stack([key // 4, query, pair, 0 * pair]), SEED)
    word = np.take_along_axis(words, (key % 4)[None], axis=0)[0]
    kept = torch.from_numpy(word.astype(np.int64) // 2 >= round(dropout * 2**31))
    return kept.view(lanes, heads, queries, keys)


def expected_attention(inputs: Inputs, mask: AttentionMask, *, dropout: float) -> Tensor:
    """Attend as the equation reads, weights dropped as the counting generator says."""
    query_BTNH, key_BSNH, value_BSNH, *others = inputs.values()
    distances = Distances(*others) if others else None
    weight_BNTS = attention_weights(attention_scores(query_BTNH, key_BSNH, distances), mask)
    lanes, heads, queries, keys = weight_BNTS.shape
    kept_BNTS = kept_weights(lanes=lanes, heads=heads, queries=queries, keys=keys, dropout=dropout)
    return torch.einsum("bnts,bsnh->btnh", weight_BNTS * kept_BNTS / (1 - dropout), value_BSNH)


def fused_attention(inputs: Inputs, mask: AttentionMask, *, dropout: float) -> Tensor:
    query_BTNH, key_BSNH, value_BSNH, *others = inputs.values()
    distances = Distances(*others) if others else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", lambda *_, **__: torch.tensor([SEED]))
        return fused.fused_attention(query_BTNH, key_BSNH, value_BSNH, distances, mask=mask, dropout=dropout)


def drawn(
    *, lanes: int, heads: int, queries: int, keys: int, width: int, value_width: int, distances: int, seed: int = 0
) -> Inputs:
    """Inputs in float64, each exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "query_BTNH": (lanes, queries, heads, width),
        "key_BSNH": (lanes, keys, heads, width),
        "value_BSNH": (lanes, keys, heads, value_width),
        "position_RNH": (distances, heads, width),
        "content_bias_NH": (heads, width),
        "position_bias_NH": (heads, width),
    }
    return {name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()}


def with_gradients(attend: Callable[..., Tensor], inputs: Inputs, upstream: Tensor, **others: Any) -> dict[str, Tensor]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    output = attend(leaves, **others)
    gradients = torch.autograd.grad(output, list(leaves.values()), upstream.to(output.dtype))
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


def errors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest error of each tensor, as a share of its largest number, or of one."""
    assert all(actual[name].shape == tensor.shape for name, tensor in expected.items())
    return {
        name: float((actual[name].double() - tensor).abs().max() / tensor.abs().max().clamp(min=1.0))
        for name, tensor in expected.items()
    }


def small_blocks(patch: pytest.MonkeyPatch, blocks: fused.Blocks) -> None:
    """Cut small shapes into several blocks."""
    patch.setattr(fused, "blocks_of", lambda *_, **__: blocks)


def check_against_plain(
    *,
    lanes: int,
    heads: int,
    segment_len: int,
    mem_len: int,
    slots: int,
    lengths: list[int],
    same_length: bool,
    clamp_len: int | None,
    dropout: float,
    width: int,
    value_width: int,
    inputs: int,
) -> None:
    """Compare output and all gradients in float32 with those of the equation in float64."""
    keys, shape = slots + segment_len, {"lanes": lanes, "heads": heads, "queries": segment_len}
    given = drawn(**shape, keys=keys, width=width, value_width=value_width, distances=keys + 1)
    if clamp_len is not None:
        distance_S = descending_distances(keys=keys, clamp_len=clamp_len, device=torch.device("cpu"))
        given["position_RNH"] = torch.cat([given["position_RNH"][distance_S], given["position_RNH"][:1]])
    given = {name: given[name] for name in list(given)[:inputs]}
    mask = attention_mask(
        length_B=torch.tensor(lengths),
        slots=slots,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=same_length,
        resets_BT=torch.rand(lanes, segment_len, generator=torch.Generator().manual_seed(slots)) < 0.1,
    )
    upstream = torch.randn(lanes, segment_len, heads, value_width, generator=torch.Generator().manual_seed(9)).double()
    expected = with_gradients(expected_attention, given, upstream, mask=mask, dropout=dropout)
    single = {name: tensor.float() for name, tensor in given.items()}
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch, fused.Blocks(16, 16, 4, 1))
        actual = with_gradients(fused_attention, single, upstream, mask=mask, dropout=dropout)
    of_plain = errors(with_gradients(expected_attention, single, upstream, mask=mask, dropout=dropout), expected)
    for name, error in errors(actual, expected).items():
        assert error <= max(1e-6, 2 * of_plain[name]), name


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_output_and_all_gradients_are_those_of_the_equation_at_many_shapes(data: st.DataObject) -> None:
    draw, case = data.draw, {}
    case["lanes"], case["heads"] = draw(st.integers(1, 2), label="lanes"), draw(st.integers(1, 2), label="heads")
    case["segment_len"] = draw(st.integers(1, 36), label="segment_len")
    case["mem_len"] = draw(st.integers(0, 40), label="mem_len")
    case["slots"] = slots = draw(st.integers(0, case["mem_len"]), label="slots")
    case["lengths"] = draw(st.lists(st.integers(0, slots), min_size=case["lanes"], max_size=case["lanes"]))
    case["same_length"] = case["mem_len"] > 0 and draw(st.booleans(), label="same_length")
    case["clamp_len"] = draw(st.none() | st.integers(0, 20), label="clamp_len")
    case["dropout"] = draw(st.sampled_from([0.0, 0.3]), label="dropout")
    case["width"] = draw(st.sampled_from([3, 16, 17]), label="width")
    case["value_width"] = draw(st.sampled_from([4, 16]), label="value_width")
    check_against_plain(**case, inputs=draw(st.sampled_from([6, 6, 3]), label="inputs"))


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.3, "lengths": [20, 5], "clamp_len": 9},
        {"same_length": True, "mem_len": 18, "slots": 18, "lengths": [18, 18], "heads": 2},
        {"slots": 0, "lengths": [0, 0], "width": 17, "value_width": 3},
        {"inputs": 3, "dropout": 0.5, "lanes": 1, "lengths": [20]},
    ],
    ids=str,
)
def test_output_and_all_gradients_are_those_of_the_equation(changes: dict[str, Any]) -> None:
    case = {"lanes": 2, "heads": 1, "segment_len": 18, "mem_len": 20, "slots": 20, "lengths": [20, 20]}
    case |= {"same_length": False, "clamp_len": None, "dropout": 0.0, "width": 5, "value_width": 5, "inputs": 6}
    check_against_plain(**case | changes)


def relative_inputs(*, lanes: int, queries: int, keys: int, heads: int = 2, width: int = 8) -> Inputs:
    """Inputs of bidirectional attention."""
    sizes = {"lanes": lanes, "queries": queries, "keys": keys, "heads": heads, "width": width, "value_width": width}
    return drawn(**sizes, distances=keys + queries - 1)


@pytest.mark.parametrize(("queries", "keys"), [(17, 17), (3, 20)])
def test_later_keys_have_distances_below_zero(queries: int, keys: int) -> None:
    """Padded lanes of unequal lengths, as bidirectional models read them."""
    inputs = relative_inputs(lanes=2, queries=queries, keys=keys)
    seen_BT2 = torch.tensor([[0, keys], [1, keys - 1]])[:, None].expand(-1, queries, -1)

    def by_loop(inputs: Inputs) -> Tensor:
        q, k, value, r, u, v = inputs.values()
        outputs = torch.zeros(2, queries, 2, 8, dtype=torch.float64)
        for b, i, n in np.ndindex(2, queries, 2):
            place, (first, until) = keys - queries + i, seen_BT2[b, i].tolist()
            # the row of distance place - j among keys-1 ... 1-queries
            rows = [keys - 1 - (place - j) for j in range(first, until)]
            scores = k[b, first:until, n] @ (q[b, i, n] + u[n]) + r[rows, n] @ (q[b, i, n] + v[n])
            outputs[b, i, n] = (scores / 8**0.5).softmax(dim=0) @ value[b, first:until, n]
        return outputs

    def attend(inputs: Inputs, attention: str) -> Tensor:
        return relative_attention(*inputs.values(), causal=False, seen_BT2=seen_BT2, attention=attention)

    upstream = torch.randn(2, queries, 2, 8, generator=torch.Generator().manual_seed(1)).double()
    expected = with_gradients(by_loop, inputs, upstream)
    for name, within in (("plain", 1e-12), ("sdpa", 1e-12), ("auto", 1e-12), ("fused", 1e-6)):
        given_inputs = {key: tensor.float() for key, tensor in inputs.items()} if name == "fused" else inputs
        with pytest.MonkeyPatch.context() as patch:
            small_blocks(patch, fused.Blocks(16, 16, 4, 1))
            found = with_gradients(attend, given_inputs, upstream, attention=name)
        assert max(errors(found, expected).values()) <= within, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_it_is_as_near_to_exact_as_the_plain_one(dtype: torch.dtype) -> None:
    sizes = {"lanes": 1, "heads": 2, "queries": 20, "keys": 33, "width": 16, "value_width": 16, "distances": 34}
    inputs = {name: tensor.to(dtype) for name, tensor in drawn(**sizes).items()}
    mask = causal_mask(lanes=1, queries=20, keys=33)
    upstream = torch.randn(1, 20, 2, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = {name: tensor.double() for name, tensor in inputs.items()}
    expected = with_gradients(expected_attention, exact, upstream, mask=mask, dropout=0.0)
    plain = with_gradients(expected_attention, inputs, upstream, mask=mask, dropout=0.0)
    actual = with_gradients(fused_attention, inputs, upstream, mask=mask, dropout=0.0)
    for name, tensor in expected.items():
        assert actual[name].dtype == dtype
        allowed = 2 * float((plain[name].double() - tensor).abs().max()) + 2e-3
        torch.testing.assert_close(actual[name].double(), tensor, rtol=0, atol=allowed)


def causal_mask(*, lanes: int, queries: int, keys: int) -> AttentionMask:
    return attention_mask(
        length_B=torch.full((lanes,), keys - queries),
        slots=keys - queries,
        segment_len=queries,
        mem_len=keys,
        same_length=False,
        resets_BT=None,
    )


def test_nothing_of_queries_by_keys_is_kept_for_backward() -> None:
    sizes = {"lanes": 1, "heads": 1, "queries": 64, "keys": 128, "width": 16, "value_width": 16, "distances": 129}
    inputs = {name: tensor.float().requires_grad_() for name, tensor in drawn(**sizes).items()}
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        fused_attention(inputs, causal_mask(lanes=1, queries=64, keys=128), dropout=0.1)
    assert 0 < max(kept) < 64 * 128 // 3


def test_autocast_and_keys_in_a_larger_buffer_change_nothing() -> None:
    """Sessions read keys where they lie; under autocast u and v are float32."""
    sizes = {"lanes": 2, "heads": 2, "queries": 3, "keys": 20, "width": 8, "value_width": 8, "distances": 21}
    inputs = {name: tensor.bfloat16() for name, tensor in drawn(**sizes).items()}
    mask = causal_mask(lanes=2, queries=3, keys=20)
    expected = fused_attention(inputs, mask, dropout=0.0)
    for name in ("key_BSNH", "value_BSNH"):
        buffer_NBCH = torch.full((2, 2, 27, 8), torch.nan, dtype=torch.bfloat16)
        buffer_NBCH[:, :, 4:24] = inputs[name].permute(2, 0, 1, 3)
        inputs[name] = buffer_NBCH[:, :, 4:24].permute(1, 2, 0, 3)
    for name in ("content_bias_NH", "position_bias_NH"):
        inputs[name] = inputs[name].float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fused_attention(inputs, mask, dropout=0.0), expected)


def test_each_call_drops_other_weights_and_a_seed_repeats_them() -> None:
    sizes = {"lanes": 2, "heads": 2, "queries": 20, "keys": 40, "width": 4, "value_width": 4, "distances": 41}
    inputs = {name: tensor.float() for name, tensor in drawn(**sizes).items()} | {"value_BSNH": torch.ones(2, 40, 2, 4)}
    mask, distances = causal_mask(lanes=2, queries=20, keys=40), Distances(*list(inputs.values())[3:])
    query_BTNH, key_BSNH, value_BSNH, *_ = inputs.values()

    def sums(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        attend = fused.fused_attention
        return [attend(query_BTNH, key_BSNH, value_BSNH, distances, mask=mask, dropout=0.2) for _ in range(2)]

    (first, second), (again, _) = sums(1), sums(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_torch_finds_the_operators_sound() -> None:
    sizes = {"lanes": 1, "heads": 2, "queries": 3, "keys": 5, "width": 4, "value_width": 3, "distances": 6}
    inputs = [tensor.float().requires_grad_() for tensor in drawn(**sizes).values()]
    seen_BT2, seed = causal_mask(lanes=1, queries=3, keys=5).seen_BT2, torch.tensor([SEED])
    assert seen_BT2 is not None
    operator = torch.ops.transformer_xl.fused_attention.default
    torch.library.opcheck(operator, (inputs, seen_BT2, seed, 0.2, 0.5))


@pytest.mark.slow
def test_recomputed_layers_have_the_gradients_to_the_bit() -> None:
    expected, kept = two_segments("transformer_xl", nullcontext(), attention="fused")
    found, kept_less = two_segments("transformer_xl", nullcontext(), attention="fused", recompute="layers")
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert kept_less < kept / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer_xl", "transformer_rope"])
def test_a_model_trains_as_with_plain_attention(kind: str) -> None:
    plain, model = (
        model_of(kind, dtype=torch.float32, attention=name, same_length=True).train() for name in ("plain", "fused")
    )
    expected, _ = losses(plain, plain.training_losses, memory=plain.empty_memory(B))
    found, _ = losses(model, model.training_losses, memory=model.empty_memory(B))
    assert found == pytest.approx(expected, rel=1e-6)


def test_sessions_read_as_the_model_does() -> None:
    model = model_of("transformer_xl", dtype=torch.float32, attention="fused", mem_len=7)
    tokens_BT, session = random_tokens(B, 9), stream(model, batch_size=B)
    plain = stream(model_of("transformer_xl", dtype=torch.float32, attention="plain", mem_len=7), batch_size=B)
    for piece in (slice(0, 4), slice(4, 5), slice(5, 9)):
        expected = plain.log_probs(tokens_BT[:, piece])
        torch.testing.assert_close(session.log_probs(tokens_BT[:, piece]), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dropatt", [0.0, 0.2])
def test_one_compiled_graph_serves_all_layers(dropatt: float) -> None:
    plain, model = (
        model_of("transformer_xl", dtype=torch.float32, attention=name, dropatt=dropatt).train()
        for name in ("plain", "fused")
    )
    counting = Counting()
    found, _ = losses(model, compiled_losses(model, segment_len=T, backend=counting), memory=model.empty_memory(B))
    assert counting.graphs == 1
    if dropatt == 0:
        expected, _ = losses(plain, plain.training_losses, memory=plain.empty_memory(B))
        assert found == pytest.approx(expected, rel=1e-6)


def test_where_it_cannot_run_it_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("model.attention=fused", "trainer.precision=32-true")
    sizes = {"lanes": 1, "heads": 1, "queries": 2, "keys": 3, "width": 4, "value_width": 4, "distances": 4}
    inputs = [tensor.float() for tensor in drawn(**sizes).values()]
    inputs[3] = inputs[3][:-1]
    assert with_precision(config) == config
    with pytest.raises(UserError, match="needs 32 or 16 bits, and 64-true has 64: use model"):
        with_precision(compose("model.attention=fused", "trainer.precision=64-true"))
    with pytest.raises(ValueError, match=r"not 4 of .*float64"):
        relative_attention(*(tensor.double() for tensor in inputs), attention="fused")
    with pytest.raises(ValueError, match="may have gaps"):
        relative_attention(*inputs, causal=torch.ones(1, 2, 3, dtype=torch.bool), attention="fused")
    monkeypatch.setattr(fused, "INTERPRETED", False)
    with pytest.raises(UserError, match=r"attention is 'fused', and needs a CUDA device.*: use model"):
        with_precision(config)
    with pytest.raises(UserError, match="and needs a CUDA device, and this one is cpu: use 'auto'"):
        relative_attention(*inputs, attention="fused")
    monkeypatch.setattr(fused, "triton", None)
    with pytest.raises(UserError, match="attention is 'fused', and needs Triton"):
        relative_attention(*inputs, attention="fused")


def test_a_model_trained_with_it_loads_where_it_cannot_run(tmp_path: Path) -> None:
    save_model(model_of("transformer_xl", dtype=torch.float32, attention="fused"), tmp_path)
    assert load_model(tmp_path).config.attention == "auto"


@pytest.mark.slow
def test_compiled_for_gpus_the_kernels_spill_nothing_and_fit() -> None:
    """What 80 and more GPUs have: 99 kB of shared memory for a program on the smallest of them since sm_80."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.model.compiled_ahead"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) > 80
    for row in rows:
        assert row["spilled"] <= SPILLED.get((row["dtype"], row["width"]), 0), row
        assert row["shared"] <= 99 * 1024, row
