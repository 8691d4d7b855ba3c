from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.varying import varying
from transformer_xl.data.segments import DrawnSegments, EqualSegments, EvalWindows, Lengths, Span, training_segments

lengths_drawn = st.builds(
    varying, segment_len=st.integers(1, 12), sd=st.floats(0, 4), half_share=st.sampled_from([0.0, 0.3, 1.0])
)
limits = st.sampled_from([None, 1, 3])


def drawn(lane_len: int, lengths: Lengths, *, seed: int = 1, limit: int | None = None) -> DrawnSegments:
    return DrawnSegments(lane_len=lane_len, lengths=lengths, seed=seed, limit=limit, half_loss=False)


def epoch_of(segments: DrawnSegments, epoch: int) -> list[int]:
    """Lengths of the segments of an epoch."""
    spans = [segments.span(number) for number in range(segments.before(epoch), segments.before(epoch + 1))]
    return [span.stop - span.start for span in spans]


@given(lane_len=st.integers(1, 90), lengths=lengths_drawn, seed=st.integers(0, 2**63 - 1), limit=limits)
def test_each_epoch_holds_its_positions_once_and_in_order(
    lane_len: int, lengths: Lengths, seed: int, limit: int | None
) -> None:
    segments = drawn(lane_len, lengths, seed=seed, limit=limit)
    number = positions = 0
    for epoch in range(3):
        assert segments.before(epoch) == number
        stop = 0
        for place in range(segments.count(epoch)):
            assert segments.positions(number) == positions + stop
            assert segments.epochs(number) == pytest.approx(epoch + place / segments.count(epoch))
            span = segments.span(number)
            assert span == Span(epoch=epoch, start=stop, counts_from=stop, stop=span.stop)
            stop, number = span.stop, number + 1
            assert span.stop - span.start <= lengths.segment_len + 3 * lengths.sd
            assert span.stop - span.start >= min(5, lengths.segment_len) or stop == lane_len
        assert stop == lane_len or segments.count(epoch) == limit
        positions += stop
    assert segments.positions(number) == positions


@given(lane_len=st.integers(1, 90), lengths=lengths_drawn, number=st.integers(0, 60), limit=limits)
def test_a_segment_is_the_same_whatever_was_asked_before(
    lane_len: int, lengths: Lengths, number: int, limit: int | None
) -> None:
    in_order = drawn(lane_len, lengths, limit=limit)
    spans = [in_order.span(earlier) for earlier in range(number + 1)]
    at_once = drawn(lane_len, lengths, limit=limit)
    assert at_once.span(number) == spans[-1]
    assert [at_once.span(earlier) for earlier in range(number + 1)] == spans


def test_epochs_and_seeds_differ() -> None:
    lengths = varying(segment_len=40, sd=5, half_share=0.05)
    epochs = [epoch_of(drawn(4_000, lengths, seed=seed), epoch) for seed in range(3) for epoch in range(3)]
    assert all(one[:20] != other[:20] for index, one in enumerate(epochs) for other in epochs[:index])


@given(lengths=lengths_drawn, epoch=st.integers(0, 3), limit=st.integers(1, 4))
def test_a_limit_takes_the_first_segments(lengths: Lengths, epoch: int, limit: int) -> None:
    whole, limited = drawn(80, lengths), drawn(80, lengths, limit=limit)
    assert epoch_of(limited, epoch) == epoch_of(whole, epoch)[:limit]


def test_the_corpus_decides_only_where_an_epoch_ends() -> None:
    lengths = varying(segment_len=20, sd=3, half_share=0.1)
    longer, shorter = epoch_of(drawn(60_000, lengths), 1), epoch_of(drawn(20_000, lengths), 1)
    assert longer[: len(shorter) - 1] == shorter[:-1]


def test_lengths_are_normal_around_the_whole_and_the_half() -> None:
    lengths = epoch_of(drawn(8_000_000, varying(segment_len=150, sd=5, half_share=0.05)), 2)[:-1]
    halves = np.array([length for length in lengths if length < 112])
    wholes = np.array([length for length in lengths if length >= 112])
    assert len(halves) / len(lengths) == pytest.approx(0.05, abs=0.004)
    assert wholes.mean() == pytest.approx(150, abs=0.1)
    assert halves.mean() == pytest.approx(75, abs=0.5)
    assert wholes.std() == pytest.approx(5, abs=0.1)
    assert halves.std() == pytest.approx(5, abs=0.4)
    assert wholes.max() == 165
    assert np.abs(np.corrcoef(lengths[:-1], lengths[1:])[0, 1]) < 0.02


def test_lengths_are_cut_to_at_least_five_or_the_segment() -> None:
    generator = np.random.default_rng(0)
    assert set(varying(segment_len=8, sd=4, half_share=0.5).draw(generator, 4000)) == set(range(5, 21))
    assert set(varying(segment_len=3, sd=1, half_share=0.5).draw(generator, 4000)) == set(range(3, 7))


def test_halves_without_a_deviation_are_exact() -> None:
    lengths = varying(segment_len=20, sd=0, half_share=0.3).draw(np.random.default_rng(0), 4000)
    assert set(lengths) == {10, 20}
    assert (lengths == 10).mean() == pytest.approx(0.3, abs=0.03)


@given(lane_len=st.integers(1, 60), segment_len=st.integers(1, 9), limit=limits, number=st.integers(0, 50))
def test_equal_segments(lane_len: int, segment_len: int, limit: int | None, number: int) -> None:
    segments = EqualSegments(lane_len=lane_len, segment_len=segment_len, limit=limit, half_loss=False)
    starts = list(range(0, lane_len, segment_len))[:limit]
    spans = [(start, min(start + segment_len, lane_len)) for start in starts] * 51
    epoch = number // len(starts)
    start, stop = spans[number]
    assert segments.count(epoch) == len(starts)
    assert segments.before(epoch) == epoch * len(starts)
    assert segments.span(number) == Span(epoch=epoch, start=start, counts_from=start, stop=stop)
    assert segments.positions(number) == sum(stop - start for start, stop in spans[:number])
    assert segments.epochs(number) == pytest.approx(number / len(starts))


@pytest.mark.parametrize(("length", "skipped"), [(1, 0), (2, 1), (5, 2), (6, 3)])
def test_half_a_loss_leaves_out_the_first_half(length: int, skipped: int) -> None:
    for segments in (
        EqualSegments(lane_len=3 * length, segment_len=length, limit=None, half_loss=True),
        DrawnSegments(
            lane_len=3 * length,
            lengths=varying(segment_len=length, sd=0, half_share=0),
            seed=1,
            limit=None,
            half_loss=True,
        ),
    ):
        assert segments.span(4) == Span(epoch=1, start=length, counts_from=length + skipped, stop=2 * length)


def test_the_settings_choose() -> None:
    def chosen(**changes: Any) -> list[Span]:
        segments = training_segments(lane_len=80, segment_len=10, seed=4, limit=3, **changes)
        return [segments.span(number) for number in range(6)]

    equal = [Span(epoch, start, start, start + 10) for epoch in range(2) for start in (0, 10, 20)]
    assert chosen() == equal
    assert chosen(half_loss=True) == [span._replace(counts_from=span.start + 5) for span in equal]
    for changes in ({"segment_len_sd": 2.0, "half_segments": 0.0}, {"segment_len_sd": 0.0, "half_segments": 0.5}):
        lengths = varying(segment_len=10, sd=changes["segment_len_sd"], half_share=changes["half_segments"])
        expected = [drawn(80, lengths, seed=4, limit=3).span(number) for number in range(6)]
        assert chosen(**changes) == expected != equal
        halves = [span._replace(counts_from=span.start + (span.stop - span.start) // 2) for span in expected]
        assert chosen(**changes, half_loss=True) == halves


@given(lane_len=st.integers(1, 60), segment_len=st.integers(1, 9), data=st.data())
def test_windows_start_a_stride_apart_and_count_what_is_new(
    lane_len: int, segment_len: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, segment_len))
    windows = EvalWindows(lane_len=lane_len, segment_len=segment_len, stride=stride)
    spans = list(windows)
    assert len(windows) == len(spans)
    assert [span.start for span in spans] == [number * stride for number in range(len(spans))]
    assert all(span.stop == min(span.start + segment_len, lane_len) for span in spans)
    assert spans[0].counts_from == 0
    assert all(later.counts_from == earlier.stop < later.stop for earlier, later in pairwise(spans))
    assert spans[-1].stop == lane_len
    assert list(EvalWindows(lane_len=lane_len, segment_len=segment_len, stride=segment_len)) == list(
        EvalWindows(lane_len=lane_len, segment_len=segment_len, stride=None)
    )
