"""Segments of equal and of drawn lengths."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_xl.data.lanes import Segments, Span, eval_starts

lengths_drawn = st.fixed_dictionaries(
    {
        "segment_len": st.integers(1, 12),
        "segment_len_sd": st.floats(0, 4),
        "half_segments": st.sampled_from([0.0, 0.3, 1.0]),
        "bptt_segments": st.integers(1, 4),
        "limit": st.sampled_from([None, 1, 3]),
    }
)


def lengths_of(segments: Segments, epoch: int) -> list[int]:
    spans = [segments.spans(number) for number in range(segments.before(epoch), segments.before(epoch + 1))]
    return [span.stop - span.start for group in spans for span in group]


@given(lane_len=st.integers(1, 90), lengths=lengths_drawn, seed=st.integers(0, 2**63 - 1))
def test_each_epoch_holds_its_positions_once_and_in_order(lane_len: int, lengths: dict[str, Any], seed: int) -> None:
    segments = Segments(lane_len=lane_len, seed=seed, **lengths)
    number = positions = 0
    for epoch in range(3):
        assert segments.before(epoch) == number
        stop = 0
        for place in range(segments.count(epoch)):
            assert segments.positions(number) == positions + stop
            assert segments.epochs(number) == pytest.approx(epoch + place / segments.count(epoch))
            spans, number = segments.spans(number), number + 1
            for span in spans:
                assert span == Span(epoch=epoch, start=stop, counts_from=stop, stop=span.stop)
                stop = span.stop
                assert span.stop - span.start <= lengths["segment_len"] + 3 * lengths["segment_len_sd"]
                assert span.stop - span.start >= min(5, lengths["segment_len"] // 2) or stop == lane_len
            assert len(spans) == lengths["bptt_segments"] or (stop == lane_len and spans)
        assert stop == lane_len or segments.count(epoch) == lengths["limit"]
        positions += stop
    at_once = Segments(lane_len=lane_len, seed=seed, **lengths)
    assert at_once.spans(number - 1) == segments.spans(number - 1)


def test_lengths_are_normal_around_the_whole_and_the_half_and_differ_by_epoch_and_seed() -> None:
    def drawn(**changes: Any) -> Segments:
        return Segments(**{"segment_len": 150, "segment_len_sd": 5, "half_segments": 0.05, "seed": 1, **changes})

    lengths = lengths_of(drawn(lane_len=800_000), 2)[:-1]
    halves = np.array([length for length in lengths if length < 112])
    wholes = np.array([length for length in lengths if length >= 112])
    assert len(halves) / len(lengths) == pytest.approx(0.05, abs=0.01)
    assert wholes.mean() == pytest.approx(150, abs=0.3)
    assert halves.mean() == pytest.approx(75, abs=1.5)
    assert wholes.std() == pytest.approx(5, abs=0.3)
    assert wholes.max() <= 165
    assert lengths_of(drawn(lane_len=40_000), 2)[:-1] == lengths[: len(lengths_of(drawn(lane_len=40_000), 2)) - 1]
    assert lengths_of(drawn(lane_len=800_000), 1)[:20] != lengths[:20]
    assert lengths_of(drawn(lane_len=800_000, seed=2), 2)[:20] != lengths[:20]
    exact = lengths_of(drawn(lane_len=40_000, segment_len=20, segment_len_sd=0, half_segments=0.3), 0)[:-1]
    assert set(exact) == {10, 20}


@pytest.mark.parametrize(("length", "skipped"), [(1, 0), (2, 1), (5, 2), (6, 3)])
def test_half_a_loss_leaves_out_the_first_half(length: int, skipped: int) -> None:
    expected = Span(epoch=1, start=length, counts_from=length + skipped, stop=2 * length)
    for group, (number, place) in {1: (4, 0), 2: (2, 1)}.items():
        segments = Segments(lane_len=3 * length, segment_len=length, half_loss=True, bptt_segments=group)
        assert segments.spans(number)[place] == expected


def test_windows_start_a_stride_apart_up_to_the_first_that_reaches_the_end() -> None:
    assert list(eval_starts(lane_len=10, segment_len=4, stride=None)) == [0, 4, 8]
    assert list(eval_starts(lane_len=10, segment_len=4, stride=2)) == [0, 2, 4, 6]
    assert list(eval_starts(lane_len=11, segment_len=4, stride=2)) == [0, 2, 4, 6, 8]
    assert list(eval_starts(lane_len=3, segment_len=4, stride=1)) == [0]
