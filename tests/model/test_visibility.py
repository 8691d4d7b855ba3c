from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.model.visibility import visible_keys


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
    visible_BTS = visible_keys(
        length_B=torch.tensor([length]),
        slots=mem_len if fixed_size else length,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=True,
        resets_BT=None,
    )
    assert visible_BTS.sum(-1).tolist() == [expected]


@settings(deadline=None, max_examples=200)
@given(data=st.data(), same_length=st.booleans(), lanes=st.integers(1, 3), segment_len=st.integers(1, 6))
def test_visibility_equals_its_definition(data: st.DataObject, same_length: bool, lanes: int, segment_len: int) -> None:
    mem_len = data.draw(st.integers(int(same_length), 7), label="mem_len")
    slots = data.draw(st.integers(0, mem_len), label="slots")
    lengths = data.draw(st.lists(st.integers(0, slots), min_size=lanes, max_size=lanes), label="lengths")
    row = st.lists(st.booleans(), min_size=segment_len, max_size=segment_len)
    resets = data.draw(st.none() | st.lists(row, min_size=lanes, max_size=lanes), label="resets")
    visible_BTS = visible_keys(
        length_B=torch.tensor(lengths),
        slots=slots,
        segment_len=segment_len,
        mem_len=mem_len,
        same_length=same_length,
        resets_BT=None if resets is None else torch.tensor(resets),
    )
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
