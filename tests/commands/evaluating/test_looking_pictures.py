"""Pictures of what a model looks at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from transformer_xl.commands.evaluating.looking_pictures import _in_bins, _lines, _nodes, draw_attention, draw_reach
from transformer_xl.inference.looking import AttentionByDistance
from transformer_xl.inference.reach import Reach

PNG = b"\x89PNG"


def looked_at(*, layers: int, heads: int, mem_len: int, segment_len: int) -> AttentionByDistance:
    distances = mem_len + segment_len
    weight = np.random.default_rng(0).dirichlet(np.ones(distances), size=(layers, heads))
    seen = np.clip((distances - np.arange(distances)) / segment_len, 0, 1)
    return AttentionByDistance(
        weight=weight,
        seen=seen,
        memory_share=weight[..., segment_len:].sum(-1),
        predictions=1000,
        lanes=1,
        segment_len=segment_len,
        mem_len=mem_len,
    )


@pytest.mark.parametrize(("layers", "mem_len"), [(5, 12), (1, 0)])
def test_attention_is_drawn_for_layers_that_fill_no_row_and_without_memory(
    tmp_path: Path, layers: int, mem_len: int
) -> None:
    path = tmp_path / "attention.png"
    draw_attention(looked_at(layers=layers, heads=2, mem_len=mem_len, segment_len=4), path, title="a model")
    assert path.read_bytes().startswith(PNG)


def test_bins_hold_every_distance_that_is_seen_once() -> None:
    weight = np.arange(20, dtype=np.float64)[None, None]
    weight[..., 17:] = np.nan
    middle, mean = _in_bins(weight)
    assert middle[0] == 0
    assert middle[-1] <= 16
    np.testing.assert_allclose(mean[0, 0], middle)  # a straight line stays one


@pytest.mark.parametrize("distances", [(6, 12, 18), (0, 0, 0)])
def test_the_picture_of_reach_ends_at_the_measured_distances(tmp_path: Path, distances: tuple[int, ...]) -> None:
    mem_len = distances[0] + 1
    found = Reach(distances=distances, segment_len=5, mem_len=mem_len, same_length=True)
    path = tmp_path / "reach.png"
    draw_reach(found, path, title="a model")
    assert path.read_bytes().startswith(PNG)
    nodes = _nodes(found)
    assert [min(places) for places in nodes] == [-distances[2], -distances[1], -distances[0], 0]
    # each output that is drawn is joined to the last one
    reached = {(0, 3)}
    for _ in range(3):
        reached |= {
            (x, y) for lines in _lines(found, nodes).values() for (top, (x, y)) in map(tuple, lines) if top in reached
        }
    assert reached == {(place, layer) for layer, places in enumerate(nodes) for place in places}
