"""Which keys a query sees; distances and their sinusoids."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.tiny import assert_equal_to
from transformer_xl.model.attention import AttentionMask, attention_mask
from transformer_xl.model.positions import descending_distances, sinusoids


@pytest.mark.parametrize("fixed_size", [False, True])
@pytest.mark.parametrize(
    ("segment_len", "length", "mem_len", "expected"),
    [
        (4, 4, 4, [4, 4, 4, 4]),
        (4, 2, 4, [3, 4, 4, 4]),
        (5, 0, 2, [1, 2, 2, 2, 2]),
        (3, 1, 1, [1, 1, 1]),
        (2, 7, 7, [7, 7]),
    ],
)
def test_with_same_length_a_query_sees_mem_len_keys_once_they_exist(
    segment_len: int, length: int, mem_len: int, expected: list[int], fixed_size: bool
) -> None:
    visible_BTS = attention_mask(
        length_B=torch.tensor([length]),
        slots=mem_len if fixed_size else length,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=True,
        resets_BT=None,
    ).visible_BTS
    assert visible_BTS.sum(-1).tolist() == [expected]


@settings(deadline=None, max_examples=200)
@given(data=st.data(), same_length=st.booleans(), lanes=st.integers(1, 3), segment_len=st.integers(1, 6))
def test_visibility_equals_its_definition(data: st.DataObject, same_length: bool, lanes: int, segment_len: int) -> None:
    mem_len = data.draw(st.integers(int(same_length), 7), label="mem_len")
    slots = data.draw(st.integers(0, mem_len), label="slots")
    lengths = data.draw(st.lists(st.integers(0, slots), min_size=lanes, max_size=lanes), label="lengths")
    row = st.lists(st.booleans(), min_size=segment_len, max_size=segment_len)
    resets = data.draw(st.none() | st.lists(row, min_size=lanes, max_size=lanes), label="resets")
    visible_BTS = attention_mask(
        length_B=torch.tensor(lengths),
        slots=slots,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=same_length,
        resets_BT=None if resets is None else torch.tensor(resets),
    ).visible_BTS
    assert visible_BTS.dtype == torch.bool
    assert visible_BTS.shape == (lanes, segment_len, slots + segment_len)

    for lane in range(lanes):
        for query in range(segment_len):
            place = slots + query
            first = slots - lengths[lane]
            if same_length:
                first = max(first, place - mem_len + 1)
            for border in range(query + 1):
                if resets is not None and resets[lane][border]:
                    first = max(first, slots + border)
            expected = [first <= key <= place for key in range(slots + segment_len)]
            assert visible_BTS[lane, query].tolist() == expected
            assert expected[place]
            assert not any(expected[place + 1 :])


@settings(deadline=None, max_examples=200)
@given(data=st.data(), lanes=st.integers(1, 2), queries=st.integers(1, 7), slots=st.integers(0, 5))
def test_blocks_name_every_key_that_is_seen_and_every_one_that_is_not(
    data: st.DataObject, lanes: int, queries: int, slots: int
) -> None:
    keys = slots + queries
    drawn = data.draw(st.lists(st.booleans(), min_size=lanes * queries * keys, max_size=lanes * queries * keys))
    itself = torch.eye(queries, keys, dtype=torch.bool).roll(slots, dims=1)
    visible_BTS = (torch.tensor(drawn).view(lanes, queries, keys) | itself) & torch.ones_like(itself).tril(slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_xl.model.attention.QUERIES_AT_ONCE", data.draw(st.integers(1, 7)))
        blocks = AttentionMask(visible_BTS).blocks
    rebuilt_BTS = torch.zeros_like(visible_BTS)
    for block in blocks:
        rebuilt_BTS[:, block.queries, block.keys] = True
        for part, hidden_Bts in block.hidden:
            rebuilt_BTS[:, block.queries, part] = ~hidden_Bts
        assert visible_BTS[:, block.queries, block.keys.start].any(), "a key that nobody sees"
    assert [place for block in blocks for place in range(queries)[block.queries]] == list(range(queries))
    assert torch.equal(rebuilt_BTS, visible_BTS)


def test_where_all_is_seen_but_what_comes_later_only_the_last_keys_of_a_block_need_a_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transformer_xl.model.attention.QUERIES_AT_ONCE", 2)
    causal = AttentionMask(torch.ones(1, 4, 10, dtype=torch.bool).tril(6))
    assert [(block.keys, [part for part, _ in block.hidden]) for block in causal.blocks] == [
        (slice(0, 8), [slice(7, 8)]),
        (slice(0, 10), [slice(9, 10)]),
    ]
    same_length = AttentionMask(causal.visible_BTS.triu(2))
    assert [(block.keys, [part for part, _ in block.hidden]) for block in same_length.blocks] == [
        (slice(2, 8), [slice(2, 3), slice(7, 8)]),
        (slice(4, 10), [slice(4, 5), slice(9, 10)]),
    ]


CPU = torch.device("cpu")


def test_sinusoids_equal_the_snippet_of_the_articles() -> None:
    length, embedding_dim = 128, 512
    position = torch.arange(length - 1, -1, -1.0, dtype=torch.float)
    inv_freq = 1 / (10000 ** (torch.arange(0.0, embedding_dim, 2.0) / embedding_dim))
    sinusoid = torch.einsum("i,j->ij", position, inv_freq)
    relative_positional_embeddings = torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)[:, None, :]
    assert relative_positional_embeddings.shape == (128, 1, 512)

    distance_S = descending_distances(keys=length, clamp_len=None, device=CPU)
    actual = sinusoids(distance_S, d_model=embedding_dim, dtype=torch.float32)[:, None, :]
    assert actual.shape == (128, 1, 512)
    assert_equal_to(actual, relative_positional_embeddings, within=1e-5)


def test_float64_sinusoids_are_exact_to_float64() -> None:
    distances, width = [0, 1, 17, 3800], 16
    angles = [[d / 10000 ** (2 * f / width) for f in range(width // 2)] for d in distances]
    expected = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    actual = sinusoids(torch.tensor(distances), d_model=width, dtype=torch.float64)
    assert actual.dtype == torch.float64
    assert_equal_to(actual, torch.tensor(expected, dtype=torch.float64), within=1e-11)


def test_bfloat16_rounds_the_result_and_not_the_distance() -> None:
    distance_S = torch.tensor([256, 257, 3799, 3800])  # bfloat16 knows no 257 and no 3799
    actual = sinusoids(distance_S, d_model=16, dtype=torch.bfloat16)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, sinusoids(distance_S, d_model=16, dtype=torch.float32).bfloat16())
    assert not torch.equal(actual[0], actual[1])
    assert not torch.equal(actual[2], actual[3])


@pytest.mark.parametrize(
    ("clamp_len", "expected"),
    [
        (None, [5, 4, 3, 2, 1, 0]),
        (6, [5, 4, 3, 2, 1, 0]),
        (5, [5, 4, 3, 2, 1, 0]),
        (4, [4, 4, 3, 2, 1, 0]),
        (1, [1, 1, 1, 1, 1, 0]),
        (0, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_distances_descend_and_stop_at_the_clamp(clamp_len: int | None, expected: list[int]) -> None:
    assert descending_distances(keys=6, clamp_len=clamp_len, device=CPU).tolist() == expected
