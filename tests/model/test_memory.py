from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.kinds import model_of
from tests.model.tiny import SEGMENT_LEN, random_tokens
from transformer_xl.model.memory import HiddenMemory, Memory

L, D = 2, 16


def numbered(tokens: int, *, start: int = 1) -> Tensor:
    """Rows (tokens, 1) that say which token they belong to; never 0, which is what empty slots hold."""
    return torch.arange(start, start + tokens, dtype=torch.float64)[:, None]


def memory_of(lanes: list[Tensor], *, slots: int, mem_len: int) -> HiddenMemory:
    """Put each lane's rows at the new end of its slots, zeros before."""
    padded = [torch.cat([row.new_zeros(slots - len(row), 1), row]) for row in lanes]
    return HiddenMemory(
        hidden_LBMD=torch.stack(padded)[None].repeat(L, 1, 1, 1),
        length_B=torch.tensor([len(row) for row in lanes]),
        mem_len=mem_len,
    )


@settings(deadline=None, max_examples=200)
@given(data=st.data(), mem_len=st.integers(0, 9), segment_len=st.integers(1, 6), lanes=st.integers(1, 3))
def test_the_new_memory_is_the_last_rows_of_old_and_new_since_the_last_border(
    data: st.DataObject, mem_len: int, segment_len: int, lanes: int
) -> None:
    slots = data.draw(st.integers(0, mem_len), label="slots")
    lengths = data.draw(st.lists(st.integers(0, slots), min_size=lanes, max_size=lanes), label="lengths")
    row = st.lists(st.booleans(), min_size=segment_len, max_size=segment_len)
    resets = data.draw(st.none() | st.lists(row, min_size=lanes, max_size=lanes), label="resets")
    old = [numbered(length, start=100 * lane + 1) for lane, length in enumerate(lengths)]
    new = [numbered(segment_len, start=100 * lane + 51) for lane in range(lanes)]
    memory = memory_of(old, slots=slots, mem_len=mem_len)
    rows_BTD = torch.stack(new)
    after = memory.after([rows_BTD, rows_BTD], resets_BT=None if resets is None else torch.tensor(resets))

    expected = []
    for lane in range(lanes):
        borders = [t for t in range(segment_len) if resets is not None and resets[lane][t]]
        document = new[lane][borders[-1] :] if borders else torch.cat([old[lane], new[lane]])
        expected.append(document[max(len(document) - mem_len, 0) :])
        if not borders:
            assert len(expected[lane]) == min(mem_len, lengths[lane] + segment_len)
    slots_after = min(mem_len, slots + segment_len)
    wanted = memory_of(expected, slots=slots_after, mem_len=mem_len)
    assert after.mem_len == mem_len
    assert torch.equal(after.length_B, wanted.length_B)
    assert after.length_B.dtype == torch.int64
    assert torch.equal(after.hidden_LBMD, wanted.hidden_LBMD)


@pytest.mark.parametrize("mem_len", [0, 1, 3, 7, 12])
def test_a_models_memory_grows_to_mem_len_and_stays_there(mem_len: int) -> None:
    model = model_of("transformer_xl")
    memory, seen = model.empty_memory(2, mem_len=mem_len), 0
    for segment_len in (SEGMENT_LEN, 3, 1, SEGMENT_LEN):
        _, memory = model(random_tokens(2, segment_len), memory)
        seen += segment_len
        assert memory.length_B.tolist() == [min(mem_len, seen)] * 2
        assert memory.hidden_LBMD.shape == (L, 2, min(mem_len, seen), D)
        assert memory.mem_len == mem_len


def test_lanes_of_different_age_keep_their_newest_rows_last() -> None:
    young = memory_of([numbered(2)], slots=2, mem_len=9)
    old = memory_of([numbered(7, start=20)], slots=7, mem_len=9)
    both = HiddenMemory.join([young, old])
    expected = memory_of([numbered(2), numbered(7, start=20)], slots=7, mem_len=9)
    assert torch.equal(both.hidden_LBMD, expected.hidden_LBMD)
    assert both.length_B.tolist() == [2, 7]


def test_a_tensor_whose_name_does_not_say_where_its_lanes_are_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Nameless(Memory):
        kind = "nameless"
        state: Tensor

    with pytest.raises(ValueError, match="state is a memory's tensor, and must end with the letters of its axes"):
        Nameless(state=torch.zeros(2, 3), mem_len=1).lanes(slice(0, 1))
