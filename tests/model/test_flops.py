"""Counts of operations, by hand and by torch's counter; no two sizes are equal, so that none stands for another."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import tiny_model_config
from tests.model.kinds import RECURRENT, TRANSFORMERS, model_of
from tests.model.tiny import V, random_tokens
from transformer_xl.model.base import make_model
from transformer_xl.model_config import TransformerConfig

# no two sizes equal, so that none can stand for another
CONFIG = tiny_model_config(n_layer=3, d_model=16, n_head=2, d_head=6, d_inner=40)


def product(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns


def forward_by_hand(
    config: TransformerConfig, *, vocab_size: int, batch_size: int, segment_len: int, mem_len: int
) -> int:
    """A lane, a query, a head, a visible key at a time."""
    heads, width = config.n_head, config.d_head
    total = 0
    for _ in range(config.n_layer):
        total += product(mem_len + segment_len, config.d_model, heads * width)  # sinusoids
        for _ in range(batch_size):
            total += product(mem_len, config.d_model, 2 * heads * width)  # memory's keys and values
            for i in range(segment_len):
                total += product(1, config.d_model, 3 * heads * width)  # query, key, value
                for _ in range(heads):
                    seen = mem_len + i + 1
                    total += 2 * product(1, width, seen)  # with keys, with positions
                    total += product(1, seen, width)  # with values
                total += product(1, heads * width, config.d_model)
                total += product(1, config.d_model, config.d_inner) + product(1, config.d_inner, config.d_model)
    return total + batch_size * segment_len * product(1, config.d_model, vocab_size)


@pytest.mark.parametrize(("batch_size", "segment_len", "mem_len"), [(1, 1, 0), (3, 1, 7), (2, 5, 7), (3, 4, 0)])
def test_a_transformer_counts_what_each_query_sees(batch_size: int, segment_len: int, mem_len: int) -> None:
    model = make_model(CONFIG, vocab_size=V)
    model.mem_len = mem_len
    flops = model.flops(batch_size=batch_size, segment_len=segment_len, cluster_shares=[1.0])
    sizes = {"batch_size": batch_size, "segment_len": segment_len, "mem_len": mem_len}
    assert flops.forward == forward_by_hand(CONFIG, vocab_size=V, **sizes)
    into_memory = CONFIG.n_layer * product(batch_size * mem_len, 2 * CONFIG.n_head * CONFIG.d_head, CONFIG.d_model)
    assert flops.step == 3 * flops.forward - into_memory


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
    expected = model.flops(batch_size=LANES, segment_len=1, cluster_shares=[1.0]).forward
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
    actual = model.flops(batch_size=LANES, segment_len=segment_len, cluster_shares=[1.0]).step
    assert actual == 3 * forward - into_memory
