from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import tiny_model_config
from tests.model.tiny import SEGMENT_LEN, V, random_tokens, tiny_model
from transformer_xl.model.embedding import make_clusters
from transformer_xl.model.flops import forward_flops, step_flops
from transformer_xl.model_config import TransformerConfig

# no two sizes equal, so that none can stand for another
CONFIG = tiny_model_config(n_layer=3, d_model=16, n_head=2, d_head=6, d_inner=40)


PRODUCTS = tiny_model().products


def counted(count: Callable[..., int], config: TransformerConfig, *, vocab_size: int, **sizes: int) -> int:
    clusters = make_clusters(config, vocab_size=vocab_size)
    return count(config, PRODUCTS, clusters=clusters, cluster_shares=[1.0], **sizes)


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
def test_forward_counts_what_each_query_sees(batch_size: int, segment_len: int, mem_len: int) -> None:
    sizes = {"vocab_size": V, "batch_size": batch_size, "segment_len": segment_len, "mem_len": mem_len}
    assert counted(forward_flops, CONFIG, **sizes) == forward_by_hand(CONFIG, **sizes)


@pytest.mark.parametrize("mem_len", [4, 7])
def test_forward_equals_torchs_counter_where_causality_averages_nothing(mem_len: int) -> None:
    lanes = 3
    model = tiny_model(n_layer=3, d_head=6, d_inner=40, mem_len=mem_len)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model.log_probs(random_tokens(lanes, 1), model.zero_memory(lanes))
    # plain attention multiplies with one row more than there are distances, which is not useful work
    padding = model.config.n_layer * lanes * model.config.n_head * product(1, model.config.d_head, 1)
    sizes = {"vocab_size": V, "batch_size": lanes, "segment_len": 1, "mem_len": mem_len}
    assert counted(forward_flops, model.config, **sizes) == counter.get_total_flops() - padding


def test_backward_costs_twice_forward_less_what_would_flow_into_memory() -> None:
    sizes = {"vocab_size": V, "batch_size": 2, "segment_len": SEGMENT_LEN, "mem_len": 7}
    into_memory = CONFIG.n_layer * product(2 * 7, 2 * CONFIG.n_head * CONFIG.d_head, CONFIG.d_model)
    assert counted(step_flops, CONFIG, **sizes) == 3 * forward_by_hand(CONFIG, **sizes) - into_memory


@pytest.mark.parametrize(("count", "passes"), [(forward_flops, 1), (step_flops, 3)])
def test_twice_the_lanes_cost_twice_as_much_but_for_the_sinusoids(count: Callable[..., int], passes: int) -> None:
    sizes = {"vocab_size": V, "segment_len": SEGMENT_LEN, "mem_len": 7}
    sinusoids = CONFIG.n_layer * product(7 + SEGMENT_LEN, CONFIG.d_model, CONFIG.n_head * CONFIG.d_head)
    once, twice = (counted(count, CONFIG, batch_size=lanes, **sizes) for lanes in (2, 4))
    assert Fraction(twice - passes * sinusoids, once - passes * sinusoids) == 2


def test_a_model_counts_its_own_step() -> None:
    model = tiny_model()
    expected = counted(step_flops, model.config, vocab_size=V, batch_size=3, segment_len=SEGMENT_LEN, mem_len=7)
    assert model.step_flops(batch_size=3, segment_len=SEGMENT_LEN, cluster_shares=[1.0]) == expected
