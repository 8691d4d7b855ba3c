"""The order in which an epoch reads documents."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_xl.data.lanes import CorpusLanes, Sequential, Shuffled, evaluation_lanes, training_lanes

DOCUMENTS = [[10, 11, 12], [20], [30, 31], [40, 41, 42, 43], [50, 51]]
TOKENS = np.concatenate(DOCUMENTS).astype(np.uint16)
STARTS = np.array([0, 3, 4, 6, 10], np.int64)


def documents_read(order: Shuffled, epoch: int) -> list[list[int]]:
    tokens = order.read(epoch=epoch, start=0, stop=len(order)).tolist()
    (borders,) = order.borders(epoch=epoch, starts=[0], stops=[len(order)])
    edges = [*borders.tolist(), len(order)]
    return [tokens[start:stop] for start, stop in pairwise(edges)]


def test_every_epoch_reads_each_document_whole_and_once_in_another_order() -> None:
    order = Shuffled(tokens=TOKENS, starts=STARTS, seed=1)
    epochs = [documents_read(order, epoch) for epoch in range(6)]
    assert all(sorted(epoch) == DOCUMENTS for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) > 3
    assert documents_read(Shuffled(tokens=TOKENS, starts=STARTS, seed=1), 3) == epochs[3]
    assert documents_read(Shuffled(tokens=TOKENS, starts=STARTS, seed=2), 3) != epochs[3]


def test_what_stands_before_the_first_document_is_one() -> None:
    order = Shuffled(tokens=TOKENS, starts=STARTS[1:], seed=0)
    assert sorted(documents_read(order, 0)) == DOCUMENTS
    assert documents_read(Shuffled(tokens=TOKENS, starts=STARTS[:0], seed=0), 0) == [TOKENS.tolist()]


@given(st.data())
@settings(deadline=None)
def test_any_range_is_part_of_the_whole(data: st.DataObject) -> None:
    order = Shuffled(tokens=TOKENS, starts=STARTS, seed=data.draw(st.integers(0, 9)))
    epoch = data.draw(st.integers(0, 5))
    whole = order.read(epoch=epoch, start=0, stop=len(order))
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    assert order.read(epoch=epoch, start=start, stop=stop).tolist() == whole[start:stop].tolist()
    (all_borders,) = order.borders(epoch=epoch, starts=[0], stops=[len(order)])
    (borders,) = order.borders(epoch=epoch, starts=[start], stops=[stop])
    assert borders.tolist() == [place for place in all_borders.tolist() if start <= place < stop]


def test_documents_reset_memory_in_any_order() -> None:
    for order in (Sequential(tokens=TOKENS, starts=STARTS), Shuffled(tokens=TOKENS, starts=STARTS, seed=4)):
        lanes = training_lanes(order, batch_size=2, segment_len=5, resets=True)
        segments = [lanes.read(epoch=1, lanes=range(2), start=start, stop=start + 1) for start in range(5)]
        whole = lanes.read(epoch=1, lanes=range(2), start=0, stop=5)
        assert np.concatenate([segment.resets_BT for segment in segments], axis=1).tolist() == whole.resets_BT.tolist()
        firsts = {document[0] for document in DOCUMENTS}
        expected = [[token in firsts for token in row] for row in whole.tokens_BT.tolist()]
        for row in expected:
            row[0] = True
        assert whole.resets_BT.tolist() == expected


def test_memory_runs_on_where_it_shall_or_where_nothing_is_known() -> None:
    for starts, resets in ((STARTS, False), (None, True)):
        lanes = evaluation_lanes(Sequential(tokens=TOKENS, starts=starts), batch_size=1, split="test", resets=resets)
        segment = lanes.read(epoch=0, lanes=range(1), start=0, stop=11)
        assert segment.resets_BT.tolist() == [[True] + [False] * 10]


def test_padding_carries_no_reset() -> None:
    lanes = CorpusLanes(order=Sequential(tokens=TOKENS, starts=STARTS), batch_size=5, evaluation=True, resets=True)
    segment = lanes.read(epoch=0, lanes=range(5), start=0, stop=lanes.lane_len)
    assert segment.resets_BT[4].tolist() == [True, False, False]
    assert (segment.targets_BT[4] == -100).tolist() == [True, True, True] or segment.tokens_BT[4, 0] == 51
