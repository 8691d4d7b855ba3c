"""Each kind's count of operations against torch's counter, and against a count by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.model.kinds import RECURRENT, TRANSFORMERS, model_of
from tests.model.tiny import V, random_tokens
from transformer_xl.model.flops import forward_flops

# no two sizes equal, so that none can stand for another
SIZES = {"n_layer": 3, "d_head": 6, "d_inner": 40}
LANES, GATES = 3, {"rnn": 1, "gru": 3, "lstm": 4}


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("mem_len", [4, 7])
@pytest.mark.parametrize("vocabulary", [{}, {"d_embed": 12}], ids=["embedding as wide as the model", "narrower"])
def test_forward_equals_torchs_counter_where_causality_averages_nothing(
    kind: str, mem_len: int, vocabulary: dict[str, int]
) -> None:
    model = model_of(kind, **SIZES, mem_len=mem_len, **vocabulary)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model.log_probs(random_tokens(LANES, 1), model.zero_memory(LANES))
    # the relative shift has one column more than there are distances, which is not useful work
    padding = 3 * LANES * 2 * 2 * 6 if kind in ("transformer_xl", "shaw") else 0
    expected = forward_flops(
        model.config,
        model.products,
        clusters=model.clusters,
        batch_size=LANES,
        segment_len=1,
        mem_len=mem_len,
        cluster_shares=[1.0],
    )
    assert expected == counter.get_total_flops() - padding


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("segment_len", [1, 5])
def test_a_recurrent_step_is_counted_by_its_matrices(kind: str, segment_len: int) -> None:
    model = model_of(kind, n_layer=3, mem_len=7)
    tokens = LANES * segment_len
    matrix = 2 * 16 * 16
    assert sum(p.numel() for layer in model.layers for p in layer.parameters() if p.dim() == 2) == (
        3 * 2 * GATES[kind] * 16 * 16
    )
    forward = 3 * tokens * 2 * GATES[kind] * matrix + tokens * 2 * 16 * V
    into_memory = 3 * LANES * GATES[kind] * matrix
    actual = model.step_flops(batch_size=LANES, segment_len=segment_len, cluster_shares=[1.0])
    assert actual == 3 * forward - into_memory
