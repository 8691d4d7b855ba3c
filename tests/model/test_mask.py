"""Which keys a query sees; distances and their sinusoids."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.tiny import assert_equal_to
from transformer_xl.model.attention import attention_mask
from transformer_xl.model.positions import descending_distances, sinusoids


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


CPU = torch.device("cpu")


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
